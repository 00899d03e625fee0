package health

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

var (
	errStray     = errors.New("not an answer to the question")
	errTruncated = errors.New("the answer is cut off")
)

// maxRecords is how many records of an answer are looked at.
const maxRecords = 4096

// judge compares an answer with the query and with the text that is wanted.
// errStray: it does not belong to the query; errTruncated: ask over TCP.
func (q query) judge(b []byte, want string) error {
	var parser dnsmessage.Parser
	h, err := parser.Start(b)
	if err != nil || h.ID != q.id || !h.Response || h.OpCode != 0 {
		return errStray
	}
	question, err := parser.Question()
	switch {
	case errors.Is(err, dnsmessage.ErrSectionDone) && h.RCode != dnsmessage.RCodeSuccess:
		// A server that could not read the question has none to repeat.
	case err != nil || !q.asks(question):
		return errStray
	}
	switch {
	case h.RCode != dnsmessage.RCodeSuccess:
		return fmt.Errorf("answered %s", rcode(h.RCode))
	case h.Truncated:
		return errTruncated
	}
	if err := parser.SkipAllQuestions(); err != nil {
		return fmt.Errorf("read answer: malformed: %.80s", err)
	}
	texts, err := q.records(&parser)
	if err != nil {
		return fmt.Errorf("read answer: malformed: %.80s", err)
	}
	return q.compare(texts, want)
}

// asks says whether a question that was repeated is ours.
func (q query) asks(other dnsmessage.Question) bool {
	return other.Type == q.question.Type && other.Class == q.question.Class && sameName(other.Name, q.question.Name)
}

// sameName compares two names as DNS does, without regard to case.
func sameName(a, b dnsmessage.Name) bool { return strings.EqualFold(a.String(), b.String()) }

// compare looks for want among the texts of the records.
func (q query) compare(texts []string, want string) error {
	kind := strings.TrimPrefix(q.question.Type.String(), "Type")
	if len(texts) == 0 {
		return fmt.Errorf("answered without a record %s of %s", kind, q.question.Name)
	}
	if want == "" || slices.ContainsFunc(texts, func(text string) bool { return sameText(q.question.Type, text, want) }) {
		return nil
	}
	slices.Sort(texts) // servers turn them round
	return fmt.Errorf("no record %s of %s is %.60q: answered %s", kind, q.question.Name, want, clean(strings.Join(texts, ", ")))
}

// sameText compares the text of a record with a wanted one: as an address, as a
// name without regard to case and the last dot, or as it is.
func sameText(kind dnsmessage.Type, text, want string) bool {
	switch kind {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
		a, err := netip.ParseAddr(want)
		return err == nil && a.Unmap().String() == text
	case dnsmessage.TypeNS:
		return strings.EqualFold(strings.TrimSuffix(text, "."), strings.TrimSuffix(want, "."))
	}
	return text == want
}

// records returns the texts of the records that answer the question, by way of
// the aliases in the answer.
func (q query) records(parser *dnsmessage.Parser) ([]string, error) {
	texts := map[string][]string{} // by owner, in lower case
	aliases := map[string]string{} // CNAME (RFC 1035 section 3.3.1)
	for range maxRecords {
		r, err := parser.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return nil, err
		}
		owner := strings.ToLower(r.Header.Name.String())
		if alias, ok := r.Body.(*dnsmessage.CNAMEResource); ok {
			aliases[owner] = strings.ToLower(alias.CNAME.String())
		} else if r.Header.Type == q.question.Type && r.Header.Class == q.question.Class {
			texts[owner] = append(texts[owner], recordText(r.Body))
		}
	}
	owner := strings.ToLower(q.question.Name.String())
	for range len(aliases) {
		if next, ok := aliases[owner]; ok && len(texts[owner]) == 0 {
			owner = next
		}
	}
	return texts[owner], nil
}

// recordText writes a record as zone files do, without quotes; the parts of a
// TXT record are joined.
func recordText(body dnsmessage.ResourceBody) string {
	switch r := body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(r.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(r.AAAA).Unmap().String()
	case *dnsmessage.TXTResource:
		return strings.Join(r.TXT, "")
	case *dnsmessage.NSResource:
		return r.NS.String()
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("%s %s %d %d %d %d %d", r.NS, r.MBox, r.Serial, r.Refresh, r.Retry, r.Expire, r.MinTTL)
	}
	return ""
}

// rcode names a response code (RFC 6895 section 2.3).
func rcode(code dnsmessage.RCode) string {
	names := []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("response code %d", code)
}
