package slot

import (
	"strings"
	"testing"
)

func TestParseUKI(t *testing.T) {
	for name, want := range map[string]UKI{
		"edge_1.2.0.efi":         {Version: "1.2.0"},
		"edge_1.2.0+3.efi":       {Version: "1.2.0", Counted: true, Left: 3},
		"edge_1.2.0+2-1.efi":     {Version: "1.2.0", Counted: true, Left: 2, Done: 1},
		"edge_1.2.0-rc1+0-3.efi": {Version: "1.2.0-rc1", Counted: true, Done: 3},
		"EDGE_1.2.0~rc1.EFI":     {Version: "1.2.0~rc1"},
	} {
		got, ok := ParseUKI(name)
		if !ok || got != want {
			t.Errorf("%s: got %+v, %v", name, got, ok)
		}
		if back, _ := ParseUKI(got.Name()); back != got || !strings.EqualFold(got.Name(), name) {
			t.Errorf("%s: is named %s", name, got.Name())
		}
	}
	for _, name := range []string{"", "edge_.efi", "edge_1.2.0", "edge_1.2.0+.efi", "edge_1.2.0+3-.efi", "edge_1.2.0+3-1-2.efi", "edge_1.2.0+-1.efi", "edge_1+2+3.efi", "edge_1+99999999999.efi", "linux.efi", "edge_x.efi", "edge_1.2.0+3.efi.tmp", "EDGE_"} {
		if u, ok := ParseUKI(name); ok {
			t.Errorf("%q is taken as %+v", name, u)
		}
	}
}

func FuzzParseUKI(f *testing.F) {
	f.Add("edge_1.2.0+2-1.efi")
	f.Add("edge_1.efi")
	f.Fuzz(func(t *testing.T, name string) {
		u, ok := ParseUKI(name)
		if !ok {
			return
		}
		if back, ok := ParseUKI(u.Name()); !ok || back != u {
			t.Errorf("%q is %+v, whose name is %q", name, u, u.Name())
		}
	})
}

func TestNext(t *testing.T) {
	parse := func(names string) (out []UKI) {
		for _, n := range strings.Fields(names) {
			u, ok := ParseUKI("edge_" + n + ".efi")
			if !ok {
				t.Fatal(n)
			}
			out = append(out, u)
		}
		return out
	}
	for _, c := range []struct{ all, want string }{
		{"1.0.0 1.1.0", "1.1.0"},
		{"1.1.0 1.2.0+3", "1.2.0+3"},
		{"1.1.0 1.2.0+1-2", "1.2.0+1-2"},
		{"1.1.0 1.2.0+0-3", "1.1.0"},
		{"1.0.0+3 1.1.0", "1.1.0"},       // older, and the newer one not set aside
		{"1.0.0+3 1.1.0+0", "1.0.0+3"},   // a rollback
		{"1.0.0+0-3 1.1.0+0", "1.1.0+0"}, // that failed
		{"1.0.0+0-3 1.1.0+0-3", "1.1.0+0-3"},
	} {
		got, ok := Next(parse(c.all))
		if want := parse(c.want)[0]; !ok || got != want {
			t.Errorf("of %s: %s, want %s", c.all, got.Name(), want.Name())
		}
	}
	if _, ok := Next(nil); ok {
		t.Error("there is one of none")
	}
}

func TestOf(t *testing.T) {
	good, copied, booted := UKI{Version: "1"}, UKI{Version: "1", Counted: true}, UKI{Version: "1", Counted: true, Left: 2, Done: 1}
	other := UKI{Version: "2"}
	for _, c := range []struct {
		all  []UKI
		want UKI
		ok   bool
		bad  bool
	}{
		{all: []UKI{other}},
		{all: []UKI{other, good}, want: good, ok: true},
		{all: []UKI{good, copied}, want: good, ok: true},
		{all: []UKI{copied, good}, want: good, ok: true},
		{all: []UKI{copied, booted}, want: booted, ok: true},
		{all: []UKI{copied}, want: copied, ok: true},
		{all: []UKI{good, booted}, bad: true},
		{all: []UKI{booted, good}, bad: true},
		{all: []UKI{copied, {Version: "1", Counted: true, Left: 3}}, want: UKI{Version: "1", Counted: true, Left: 3}, ok: true},
		{all: []UKI{{Version: "1", Counted: true, Left: 3}, copied}, want: UKI{Version: "1", Counted: true, Left: 3}, ok: true},
	} {
		got, ok, err := Of(c.all, "1")
		if got != c.want || ok != c.ok || (err != nil) != c.bad {
			t.Errorf("of %v: %v, %v, %v", c.all, got, ok, err)
		}
	}
}
