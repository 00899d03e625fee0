package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

// TestDiff: what changes, what it takes, and nothing of a file with a mistake.
func TestDiff(t *testing.T) {
	src, err := os.ReadFile("../../reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, was, is string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Replace(string(src), was, is, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := write("old.yaml", "", "")
	for _, c := range []struct{ what, was, is, want string }{
		{"nothing", "", "", "nothing changes\n"},
		{"a reload", "lease: 5s", "lease: 7s", "node.bgp.lease: 5s -> 7s\n"},
		{"a restart", "run_dir: /run/edge", "run_dir: /run/other", "node.run_dir: /run/edge -> /run/other\n" +
			"node.run_dir takes a restart of edged, by which nothing is withdrawn\nnode.run_dir takes a restart of edgeproxy: drain the node first\n"},
		{"the data plane", "flows: 1000000", "flows: 2000000", "node.forwarder.flows: 1000000 -> 2000000\n" +
			"node.forwarder.flows takes the data plane loaded anew: drain the node first, edgectl reload says how\n"},
	} {
		out, errs, code := call(t, false, "diff", write("new.yaml", c.was, c.is), old)
		if d := cmp.Diff(c.want, out); d != "" || code != 0 || errs != "" {
			t.Errorf("%s: exit code %d, %q (-want +got)\n%s", c.what, code, errs, d)
		}
	}
	out, _, code := call(t, false, "diff", write("new.yaml", "lease: 5s", "lease: 7s"), old, "-o", "json")
	var got difference
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if d := cmp.Diff(difference{Changes: []string{"node.bgp.lease: 5s -> 7s"}}, got); d != "" {
		t.Errorf("JSON (-want +got)\n%s", d)
	}
	if out, errs, code := call(t, false, "diff", write("new.yaml", "lease: 5s", "lease: soon"), old); code != 1 || out != "" || !strings.Contains(errs, "new.yaml:") {
		t.Errorf("a mistake: exit code %d, %q, %q", code, out, errs)
	}
	if _, _, code := call(t, false, "diff"); code != 2 {
		t.Errorf("without a file: exit code %d", code)
	}
}

func TestDiffStale(t *testing.T) {
	d := difference{Stale: true, Takes: edge.Effort{}}
	if got := d.text(); !strings.HasPrefix(got, "nothing changes\nedged goes by another configuration than /etc/edge/edge.yaml") {
		t.Errorf("it says %q", got)
	}
}
