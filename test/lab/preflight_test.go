package lab

import (
	"strings"
	"testing"
)

func TestPreflight(t *testing.T) {
	if err := Preflight(); err != nil {
		t.Errorf("this machine cannot have a lab:\n%v", err)
	}
	for _, err := range []error{needTool("no-such-tool", "some-package"), needFile("/no/such/file", "some-package")} {
		if err == nil || !strings.HasSuffix(err.Error(), "is missing: apt-get install some-package") || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want one line with the package", err)
		}
	}
}

func TestNewNeedsTheHook(t *testing.T) {
	hooked.Store(false)
	defer hooked.Store(true)
	if _, err := New(t.Context(), small()); err == nil || !strings.Contains(err.Error(), "lab.Janitor()") {
		t.Errorf("got %v, want a word about lab.Janitor()", err)
	}
}

func TestNewRefusesABadTopology(t *testing.T) {
	top := small()
	top.Clients[0].Router = "none"
	if _, err := New(t.Context(), top); err == nil || !strings.Contains(err.Error(), `no router "none"`) {
		t.Errorf("got %v", err)
	}
}
