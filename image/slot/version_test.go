package slot

import (
	"slices"
	"testing"
)

// TestCompareOrder has the order of UAPI.10's examples, and of what is meant by ours.
func TestCompareOrder(t *testing.T) {
	for _, order := range [][]string{
		{"1.2.0~rc1", "1.2.0~rc2", "1.2.0", "1.2.0-rc1", "1.2.0^fix1", "1.2.0.1", "1.2.1", "1.10.0", "2", "10"},
		{"~1", "", "1"},
		{"1_", "1.1"},
		{"a", "1"},
		{"122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-a1", "123-a1.1", "123-3", "123-3.1", "123^patch1", "123^1", "123.a-1", "123.1-1", "123a-1", "124"},
		{"abc", "abcde"},
		{"1.2.0", "1.2.00001"},
	} {
		for i, a := range order {
			for j, b := range order {
				want := 0
				if i < j {
					want = -1
				} else if i > j {
					want = 1
				}
				if got := Compare(a, b); got != want {
					t.Errorf("Compare(%q, %q) = %d, want %d", a, b, got, want)
				}
			}
		}
	}
}

func TestCompareEqual(t *testing.T) {
	for _, c := range [][2]string{{"123", "0123"}, {"1_2", "1*2"}, {"", ""}, {"_1", "1"}, {"1.2.0", "1.2.0"}, {"1..2", "1..2"}, {"--", "--"}, {"1é", "1"}} {
		if got := Compare(c[0], c[1]); got != 0 {
			t.Errorf("Compare(%q, %q) = %d", c[0], c[1], got)
		}
	}
}

// FuzzCompare: whatever the text, it ends, and the order is one.
func FuzzCompare(f *testing.F) {
	f.Add("1.2.0", "1.2.0-rc1", "1.2.0~rc1")
	f.Add("^-.", "-^.", "~~")
	f.Add("00", "0", "")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if Compare(a, a) != 0 || Compare(a, b) != -Compare(b, a) {
			t.Errorf("%q and %q: %d and %d", a, b, Compare(a, b), Compare(b, a))
		}
		list := []string{a, b, c}
		slices.SortFunc(list, Compare)
		if CheckVersion(a) == nil && CheckVersion(b) == nil && CheckVersion(c) == nil && Compare(list[0], list[2]) > 0 {
			t.Errorf("no order: %q", list)
		}
	})
}

func TestCheckVersion(t *testing.T) {
	for _, good := range []string{"1", "1.2.0", "1.2.0-rc1", "1.2.0~rc1", "1.2.0^git.20260101", "2026.10.3-a.b-c"} {
		if err := CheckVersion(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "v1", "1.", ".1", "1..2", "1.2.0+3", "1_2", "1/2", "1.2.0-", "1 2", "1.2.0\n", "../1", "1" + string(make([]byte, 70))} {
		if CheckVersion(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
