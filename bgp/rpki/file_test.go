package rpki

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The shapes of three validators, as they write them.
const (
	rpkiClient = `{
	"metadata": {
		"buildmachine": "rpki.example.net",
		"buildtime": "1999-12-31T23:50:00Z",
		"elapsedtime": "215",
		"roas": 3, "failedroas": 0, "invalidroas": 1, "certificates": 41000, "vrps": 3
	},
	"roas": [
		{ "asn": 64500, "prefix": "192.0.2.0/24", "maxLength": 24, "ta": "ripe", "expires": 946690000 },
		{ "asn": 64501, "prefix": "2001:db8::/32", "maxLength": 48, "ta": "arin", "expires": 946700000 },
		{ "asn": 64502, "prefix": "198.51.100.0/24", "maxLength": 24, "ta": "lacnic", "expires": 946684000 }
	],
	"bgpsec_keys": [ { "asn": 64500, "ski": "00", "pubkey": "AA==", "expires": 1, "nested": [[{}], {"a": [1]}] } ],
	"aspas": []
}`
	routinator = `{
  "metadata": { "generated": 946684200, "generatedTime": "1999-12-31T23:50:00Z" },
  "roas": [
    { "asn": "AS64500", "prefix": "192.0.2.0/24", "maxLength": 24, "ta": "ripe" },
    { "asn": "AS64501", "prefix": "2001:db8::/32", "maxLength": 48, "ta": "arin" },
    { "asn": "AS64501", "prefix": "2001:db8::/32", "maxLength": 48, "ta": "apnic" }
  ]
}`
	stayRTR = `{"metadata":{"buildtime":"1999-12-31T23:50:00Z","vrps":2},"roas":[{"prefix":"192.0.2.0/24","maxLength":24,"asn":64500},{"prefix":"2001:db8::/32","maxLength":48,"asn":"64501","ta":"x"}]}`
	plain   = `{"roas":[{"prefix":"192.0.2.0/24","asn":"as64500"},{"prefix":"2001:db8::/32","maxLength":48,"asn":64501}]}`
)

// epoch is when a synctest bubble begins.
func epoch() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func inFile() []VRP { return []VRP{vrp("192.0.2.0/24", 24, 64500), vrp("2001:db8::/32", 48, 64501)} }

func TestFileShapes(t *testing.T) {
	for name, text := range map[string]string{"rpki-client": rpkiClient, "routinator": routinator, "stayrtr": stayRTR, "plain": plain} {
		data, err := parseFile(t.Context(), strings.NewReader(text), epoch(), 100)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []VRP
		for _, r := range data.set.records {
			got = append(got, r.vrp())
		}
		if fmt.Sprint(got) != fmt.Sprint(inFile()) {
			t.Errorf("%s: %v", name, got)
		}
		if want := epoch().Add(-10 * time.Minute); name != "plain" && !data.made.Equal(want) || name == "plain" && !data.made.IsZero() {
			t.Errorf("%s: made at %s", name, data.made)
		}
		if name == "rpki-client" != data.next.Equal(time.Unix(946690000, 0)) {
			t.Errorf("%s: the first VRP expires at %s", name, data.next)
		}
	}
}

func TestFileRefused(t *testing.T) {
	roa := func(text string) string { return `{"roas":[` + text + `]}` }
	for _, test := range []struct{ in, want string }{
		{"", "unexpected EOF"},
		{"[]", "byte 1: expected"},
		{"{}", `no list "roas"`},
		{`{"roas":[]`, "unexpected EOF"},
		{`{"roas":[]} x`, "behind the end"},
		{`{"roas":[]}{"roas":[]}`, "behind the end"},
		{`{"roas":[],"roas":[]}`, "second list"},
		{`{"roas":{}}`, "expected"},
		{`{"roas":null}`, "expected"},
		{`{"roas":[{"asn":1,"prefix":"192.0.2.0/24"}`, "unexpected EOF"},
		{`{"metadata":[],"roas":[]}`, "byte 14: "},
		{`{"x":[[[`, "unexpected EOF"},
		{roa(`{}`), "no asn"},
		{roa(`{"asn":1}`), `"" is not a prefix`},
		{roa(`{"asn":1,"prefix":"192.0.2.0"}`), `"192.0.2.0" is not a prefix`},
		{roa(`{"asn":1,"prefix":"192.0.2.1/24"}`), "host bits"},
		{roa(`{"asn":1,"prefix":"192.0.2.0/24","maxLength":33}`), "maximum length"},
		{roa(`{"asn":1,"prefix":"192.0.2.0/24","maxLength":23}`), "maximum length"},
		{roa(`{"asn":-1,"prefix":"192.0.2.0/24"}`), "not an AS number"},
		{roa(`{"asn":4294967296,"prefix":"192.0.2.0/24"}`), "not an AS number"},
		{roa(`{"asn":"AS","prefix":"192.0.2.0/24"}`), "not an AS number"},
		{roa(`{"asn":null,"prefix":"192.0.2.0/24"}`), "not an AS number"},
		{roa(`{"asn":1.5,"prefix":"192.0.2.0/24"}`), "not an AS number"},
		{roa(strings.Repeat(`{"asn":1,"prefix":"192.0.2.0/24"},`, 10) + `{"asn":1,"prefix":"192.0.2.0/24"}`), "more than 10 VRPs"},
		{`{"x":"` + strings.Repeat("x", 3*maxValue), "a value of more than 1048576 bytes"},
		{roa(strings.Repeat(" ", 3*maxValue)), "a value of more than 1048576 bytes"},
	} {
		if _, err := parseFile(t.Context(), strings.NewReader(test.in), epoch(), 10); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60s: %v, want %q", test.in, err, test.want)
		}
	}
}

// put replaces the file as validators do, by a rename, at the time of the bubble.
func put(t *testing.T, path, text string) {
	t.Helper()
	next := path + ".new"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chtimes(next, time.Now(), time.Now()), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
}

// TestFile: a file that changes is read again; while it is broken or gone the
// data stay, until their time is over.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		if _, s := l.wantUnknown(); s.LastErr != "VRP file "+path+": stat: no such file or directory" {
			t.Errorf("%+v", s)
		}
		put(t, path, plain)
		time.Sleep(filePause + 1)
		made := l.want(inFile()...).Updated
		if s := l.want(inFile()...); s.Source != "file "+path || s.LastErr != "" || !s.Expires.Equal(made.Add(fileLife)) || s.Serial != 0 {
			t.Errorf("%+v", s)
		}
		changes, _ := l.seen()
		time.Sleep(10 * time.Minute)
		if now, _ := l.seen(); now != changes {
			t.Error("a change was told of a file that is the same")
		}

		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() { put(t, path, plain[:40]) }, ": byte 9: unexpected EOF"},
			{func() { os.Remove(path) }, "no such file"},
			{func() { os.Mkdir(path, 0o755) }, "not a regular file"},
			{func() { os.Remove(path); syscall.Mkfifo(path, 0o644) }, "not a regular file"},
			{func() { put(t, path, ""); os.Truncate(path, maxFile+1) }, "536870913 bytes, at most"},
			{func() { put(t, path, `{"roas":[]`) }, "unexpected EOF"},
		} {
			step.do()
			time.Sleep(filePause + 1)
			if s := l.want(inFile()...); !strings.Contains(s.LastErr, step.want) || !s.Updated.Equal(made) {
				t.Errorf("%+v, want %q", s, step.want)
			}
		}
		old := time.Now().Add(time.Hour - fileLife).UTC().Format(time.RFC3339)
		put(t, path, `{"metadata":{"generatedTime":"`+old+`"},"roas":[{"prefix":"192.0.2.0/24","asn":1}]}`)
		time.Sleep(filePause + 1)
		if s := l.want(vrp("192.0.2.0/24", 24, 1)); s.LastErr != "" {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Hour) // the validator has stopped
		if v, s := l.wantUnknown(); !strings.Contains(v.Evidence, "expired") || s.LastErr == "" {
			t.Errorf("%v, %+v", v, s)
		}
		l.set(Config{}) // and away
		if _, s := l.wantUnknown(); s != (Status{}) {
			t.Errorf("%+v", s)
		}
	}))
}

// TestFileOld: a file is not younger than it says, or than when it was written.
func TestFileOld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		put(t, path, strings.ReplaceAll(routinator, "1999-12-31T23:50:00Z", "1999-12-30T23:50:00Z"))
		time.Sleep(filePause + 1)
		if _, s := l.wantUnknown(); !strings.Contains(s.LastErr, "made at 1999-12-30T23:50:00Z, more than 24h0m0s ago: is the validator running?") {
			t.Errorf("%+v", s)
		}
		put(t, path, strings.ReplaceAll(routinator, "1999-12-31T23:50:00Z", "2099-12-30T23:50:00Z"))
		written := time.Now()
		time.Sleep(filePause + 1)
		if s := l.want(inFile()...); !s.Updated.Equal(written) {
			t.Errorf("%+v", s)
		}
	}))
}

// TestFileExpires: VRPs of a file that stays end at their own time, too.
func TestFileExpires(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		soon := time.Now().Add(time.Hour).Unix()
		put(t, path, fmt.Sprintf(`{"roas":[{"prefix":"192.0.2.0/24","asn":64500},{"prefix":"192.0.3.0/24","asn":1,"expires":%d},{"prefix":"2001:db8::/32","asn":64501,"maxLength":48,"expires":9e99}]}`, soon))
		time.Sleep(filePause + 1)
		l.want(inFile()[0], vrp("192.0.3.0/24", 24, 1), inFile()[1])
		time.Sleep(time.Hour + filePause)
		l.want(inFile()...)
	}))
}

// TestFileChanging: half a file is never used.
func TestFileChanging(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrps.json")
	synctest.Test(t, inLab(Config{File: path}, func(l *lab) {
		put(t, path, plain)
		time.Sleep(filePause + 1)
		l.want(inFile()...)
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for i := range plain { // a validator that writes in place, slowly
			if _, err := file.WriteString(plain[i : i+1]); err != nil {
				t.Fatal(err)
			}
			os.Chtimes(path, time.Now(), time.Now())
			time.Sleep(filePause)
			l.want(inFile()...)
		}
		time.Sleep(filePause)
		if s := l.want(inFile()...); s.LastErr != "" {
			t.Errorf("%+v", s)
		}
	}))
}

// TestFileStops: reading ends with the context.
func TestFileStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		path := filepath.Join(t.TempDir(), "vrps.json")
		put(t, path, plain)
		l.set(Config{File: path})
		l.run()
		l.stop()
	})
}

// FuzzFile: no text crashes the reader, and what it takes can be asked.
func FuzzFile(f *testing.F) {
	for _, text := range []string{rpkiClient, routinator, stayRTR, plain, `{"roas":[]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		data, err := parseFile(t.Context(), strings.NewReader(string(b)), epoch(), 100)
		if err != nil {
			return
		}
		if data.set.Len() > 100 {
			t.Fatalf("%d VRPs", data.set.Len())
		}
		for i, r := range data.set.records {
			v := r.vrp()
			if again, err := toRecord(v); err != nil || again != r {
				t.Fatalf("%v is the VRP %v: %v", r, v, err)
			}
			if i > 0 && compare(data.set.records[i-1], r) >= 0 {
				t.Fatalf("%v is not in order", v)
			}
			if got := data.set.Validate(v.Prefix, v.ASN).Validity; got != Valid && v.ASN != 0 {
				t.Fatalf("%v is %s", v, got)
			}
		}
		data.set.Validate(netip.MustParsePrefix("0.0.0.0/0"), 1)
	})
}
