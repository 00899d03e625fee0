package edge

import (
	"github.com/goccy/go-yaml/token"
)

// tokens looks at the scanned file before it is parsed and refuses what a
// configuration does not need and what can make a small file cost a lot. It
// returns whether the file may be parsed.
func (r *reader) tokens(all token.Tokens) bool {
	s := shape{r: r}
	for _, t := range all {
		if word := refused(t.Type); word != "" {
			r.failAt(placeOf(t), "", "%s", word)
			continue
		}
		s.see(t)
		if s.stop {
			return false
		}
	}
	return len(r.errs) == 0
}

// refused returns why a kind of token is not taken, or nothing.
func refused(t token.Type) string {
	switch t {
	case token.AnchorType:
		return "YAML anchors (&) are not supported; quote a value that begins with &"
	case token.AliasType:
		return "YAML aliases (*) are not supported; quote a value that begins with *"
	case token.TagType:
		return "YAML tags (!) are not supported; quote a value that begins with !"
	case token.MergeKeyType:
		return "YAML merge keys (<<) are not supported"
	case token.DirectiveType:
		return "YAML directives (%) are not supported"
	case token.MappingKeyType:
		return "YAML complex keys (?) are not supported; quote a value that begins with ?"
	}
	return ""
}

// shape follows how deep the file is nested and how many keys its block
// mappings have.
type shape struct {
	r       *reader
	flow    int
	block   []level
	content bool
	stop    bool
}

// level is a block mapping or list, or both: a list may stand in the column of
// the key that it belongs to.
type level struct{ column, keys, items int }

func (s *shape) see(t *token.Token) {
	switch t.Type {
	case token.DocumentHeaderType:
		if s.content {
			s.refuse(t, "only one YAML document is taken; this begins another")
		}
		s.content = true
		return
	case token.DocumentEndType, token.CommentType:
		return
	case token.MappingStartType, token.SequenceStartType:
		s.flow++
	case token.MappingEndType, token.SequenceEndType:
		s.flow--
	case token.SequenceEntryType:
		s.entry(placeOf(t).column).items++
	case token.MappingValueType:
		if s.flow == 0 { // brackets are read without calling oneself
			s.entry(placeOf(t.Prev).column).keys++
		}
	}
	s.content = true
	if s.flow+len(s.block) > maxDepth {
		s.refuse(t, "nested more than 16 levels deep")
	}
	if n := len(s.block); n > 0 && (s.block[n-1].keys > maxKeys || s.block[n-1].items > maxItems) {
		s.refuse(t, "too many entries in one place for a configuration")
	}
}

// entry returns the level of a block entry at a column; a smaller column ends
// the deeper ones.
func (s *shape) entry(column int) *level {
	for len(s.block) > 0 && s.block[len(s.block)-1].column > column {
		s.block = s.block[:len(s.block)-1]
	}
	if len(s.block) == 0 || s.block[len(s.block)-1].column < column {
		s.block = append(s.block, level{column: column})
	}
	return &s.block[len(s.block)-1]
}

func (s *shape) refuse(t *token.Token, why string) {
	s.r.failAt(placeOf(t), "", "%s", why)
	s.stop = true
}
