package watch

import "encoding/binary"

// paths holds each AS path once: a vantage point has the same one to most of our
// prefixes. A path is named by a number; 0 is one that is not known, as there
// was no room for it.
type paths struct {
	names map[string]uint32
	list  []pathUse
	free  []uint32
}

type pathUse struct {
	text string // four bytes for an AS
	uses int
}

func newPaths() paths { return paths{names: map[string]uint32{}, list: make([]pathUse, 1)} }

// put returns the name of a path, of which the end is kept, for one more use.
func (p *paths) put(path []uint32) uint32 {
	var b [4 * maxPath]byte
	text := b[:0]
	for _, n := range tail(path) {
		text = binary.BigEndian.AppendUint32(text, n)
	}
	name, there := p.names[string(text)]
	switch {
	case there:
	case len(p.free) > 0:
		name = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
	case len(p.list) > maxPaths:
		return 0
	default:
		name = uint32(len(p.list))
		p.list = append(p.list, pathUse{})
	}
	u := &p.list[name]
	if u.uses++; u.uses == 1 {
		u.text = string(text)
		p.names[u.text] = name
	}
	return name
}

// drop ends one use.
func (p *paths) drop(name uint32) {
	if name == 0 {
		return
	}
	u := &p.list[name]
	if u.uses--; u.uses == 0 {
		delete(p.names, u.text)
		u.text = ""
		p.free = append(p.free, name)
	}
}

// get returns a path; false: it is not known.
func (p *paths) get(name uint32) ([]uint32, bool) {
	text := p.list[name].text
	path := make([]uint32, 0, len(text)/4)
	for ; len(text) > 0; text = text[4:] {
		path = append(path, binary.BigEndian.Uint32([]byte(text[:4])))
	}
	return path, name > 0
}

// tail is the end of a path, which is what is judged.
func tail(path []uint32) []uint32 { return path[max(0, len(path)-maxPath):] }
