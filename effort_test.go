package edge

import (
	"strings"
	"testing"
)

func TestEffortOf(t *testing.T) {
	src := read(t, "reference.yaml")
	old, err := Parse("f", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, was, is string
		want          Effort
	}{
		{"nothing", "", "", Effort{}},
		{"what a reload does", "lease: 5s", "lease: 7s", Effort{}},
		{"the console", "management: 127.0.0.1:9180", "management: 127.0.0.1:9999", Effort{Edged: "node.management"}},
		{"sockets", "run_dir: /run/edge", "run_dir: /run/other", Effort{Edged: "node.run_dir", Proxy: "node.run_dir"}},
		{"a user", "proxy_user: edgeproxy", "proxy_user: nobody", Effort{Proxy: "node.proxy_user"}},
		{"the flow table", "flows: 1000000", "flows: 1000001", Effort{DataPlane: "node.forwarder.flows"}},
		{"the seed", "ring_seed_file: /etc/edge/", "ring_seed_file: /etc/", Effort{Edged: "fleet.ring_seed_file"}},
	} {
		if !strings.Contains(src, c.was) {
			t.Errorf("%s: reference.yaml has no %q", c.what, c.was)
		}
		next, err := Parse("f", []byte(strings.Replace(src, c.was, c.is, 1)))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if got := EffortOf(old, next); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
