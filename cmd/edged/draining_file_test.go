package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestBadDrainingFile(t *testing.T) {
	dir := t.TempDir()
	if m, err := readDraining(dir); err != nil || len(m.Left) > 0 {
		t.Errorf("no file: %+v, %v", m, err)
	}
	for text, want := range map[string]string{
		"{": "unexpected end of JSON",
		`{"left":[{"service":"lb","backend":"","address":"192.0.2.1"}]}`:                                                       "entry 0 has no usable name",
		`{"left":[{"service":"lb","backend":"` + strings.Repeat("x", 33) + `","address":"192.0.2.1"}]}`:                        "entry 0 has no usable name",
		`{"left":[{"service":"lb","backend":"b"}]}`:                                                                            "backend b: address invalid IP is not one of a host",
		`{"left":[{"service":"lb","backend":"b","address":"fe80::1%eth0"}]}`:                                                   "fe80::1%eth0 is not one of a host",
		`{"left":[{"service":"lb","backend":"b","address":"0.0.0.0"}]}`:                                                        "is not one of a host",
		`{"left":[{"service":"lb","backend":"b","address":"192.0.2.1"},{"service":"lb","backend":"b","address":"192.0.2.2"}]}`: "backend b of service lb is there twice",
		`{"left":[{"service":"lb","backend":"b","address":"192.0.2.1","since":"yesterday"}]}`:                                  "parsing time",
		`{"left":[{"service":"lb","backend":"a\u0000","address":"192.0.2.1"}]}`:                                                "entry 0 has no usable name",
		`{"pools":[{"service":"lb","pool":"x"}]}`:                                                                              `pool "x" of service lb is not known`,
	} {
		if err := os.WriteFile(filepath.Join(dir, drainingName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if m, err := readDraining(dir); err == nil || !strings.Contains(err.Error(), want) || !reflect.DeepEqual(m, draining{}) {
			t.Errorf("%s: %+v, %v; want %q", text, m, err, want)
		}
	}
}

// FuzzDraining: what is taken from the file is fit for a table, and is written
// back as it was read.
func FuzzDraining(f *testing.F) {
	f.Add([]byte(`{"left":[{"service":"lb","backend":"b","address":"192.0.2.1","since":"2026-01-01T12:00:00Z"}],"pools":[{"service":"lb","pool":"failover","since":"2026-01-01T12:00:00Z"}]}`))
	f.Add([]byte(`{"left":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseDraining(b)
		if err != nil {
			return
		}
		for _, l := range m.Left {
			if l.Backend == "" || len(l.Backend) > 32 || !l.Addr.IsValid() || l.Addr.IsMulticast() {
				t.Errorf("%q gives %+v", b, l)
			}
		}
		text, err := json.Marshal(m)
		if err != nil {
			return // a year that JSON cannot write
		}
		if again, err := parseDraining(text); err != nil || len(again.Left) != len(m.Left) || len(again.Pools) != len(m.Pools) {
			t.Errorf("%q is written as %q: %v", b, text, err)
		}
	})
}
