package slot

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// maxVersion bounds a version, in bytes: it becomes part of file names on a FAT.
const maxVersion = 64

// versionForm is digits and dots, then perhaps a suffix. A '+' would be taken for
// a boot counter, a '_' for the end of the name.
var versionForm = regexp.MustCompile(`^[0-9]+(\.[0-9]+)*([-~^][0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?$`)

// CheckVersion says what is wrong with the text of a version; nil: nothing.
func CheckVersion(v string) error {
	if len(v) > maxVersion || !versionForm.MatchString(v) {
		return fmt.Errorf("%.70q is no version: digits and dots, then perhaps -, ~ or ^ and a suffix, like 1.2.0 or 1.2.0~rc1", v)
	}
	return nil
}

// Compare orders versions as systemd-boot does (UAPI.10), since that is what
// decides which of two is booted: negative if a is older. What surprises: a
// suffix after '-' is newer than none (1.2.0 < 1.2.0-rc1), one after '~' is
// older (1.2.0~rc1 < 1.2.0). It takes any text, and never fails.
func Compare(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, noVersionRune), strings.TrimLeftFunc(b, noVersionRune)
		if r, more := separator(&a, &b, '~'); !more {
			return r
		}
		if a == "" || b == "" {
			return cmp.Compare(min(len(a), 1), min(len(b), 1))
		}
		for _, c := range []byte("-^.") {
			if r, more := separator(&a, &b, c); !more {
				return r
			}
		}
		digits := a != "" && digit(a[0]) || b != "" && digit(b[0])
		take, order := letters, strings.Compare
		if digits {
			take, order = number, compareNumbers
		}
		headA, headB := take(a), take(b)
		if r := order(headA, headB); r != 0 {
			return r
		}
		a, b = a[len(headA):], b[len(headB):]
	}
}

// separator takes c off both; if only one begins with it, that one is older.
func separator(a, b *string, c byte) (order int, more bool) {
	hasA, hasB := strings.HasPrefix(*a, string(c)), strings.HasPrefix(*b, string(c))
	switch {
	case hasA && hasB:
		*a, *b = (*a)[1:], (*b)[1:]
		return 0, true
	case hasA:
		return -1, false
	case hasB:
		return 1, false
	}
	return 0, true
}

// compareNumbers compares runs of digits of any length; no digits are less than 0.
func compareNumbers(a, b string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(len(a), len(b))
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func number(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}

func letters(s string) string {
	n := 0
	for n < len(s) && letter(s[n]) {
		n++
	}
	return s[:n]
}

func digit(c byte) bool  { return c >= '0' && c <= '9' }
func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func noVersionRune(r rune) bool {
	return r >= 0x80 || !digit(byte(r)) && !letter(byte(r)) && !strings.ContainsRune("-^.~", r)
}
