package setup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// terminal gives a box one; kind is the type of a serial port.
func (b *box) terminal(name, kind, device string) {
	b.t.Helper()
	dir := filepath.Join(b.place.Sys, "class/tty", name)
	err := os.MkdirAll(dir, 0o755)
	if err == nil && kind != "" {
		err = os.WriteFile(filepath.Join(dir, "type"), []byte(kind+"\n"), 0o644)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(b.place.Sys, "dev/char"), 0o755)
	}
	if err == nil {
		err = os.Symlink("../../class/tty/"+name, filepath.Join(b.place.Sys, "dev/char", device))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestConsolesInRescue: all that there are let people in, and none any more once there
// is a configuration; a shell of whoever makes the change goes on.
func TestConsolesInRescue(t *testing.T) {
	b := newBox(t)
	for i, kind := range []string{"4", "4", "0", "0"} {
		b.terminal(fmt.Sprintf("ttyS%d", i), kind, fmt.Sprintf("4:%d", 64+i))
	}
	b.terminal("tty1", "", "4:1")
	b.terminal("console", "", "5:1")
	if err := os.WriteFile(filepath.Join(b.place.Sys, "class/tty/console/active"), []byte("tty0 ttyS0 hvc0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	told := func() string {
		defer func() { *b.place.System.(notes).told = nil }()
		return strings.Join(slices.DeleteFunc(*b.place.System.(notes).told, func(s string) bool { return !strings.HasPrefix(s, "reload") }), ", ")
	}
	b.boot(nil)
	if got := told(); got != "reload units getty@tty1.service serial-getty@ttyS0.service serial-getty@ttyS1.service serial-getty@hvc0.service" {
		t.Error(got)
	}
	for name := range logins() {
		if text := b.run(name); !strings.Contains(text, "ExecStart=\nExecStart=-/sbin/agetty --autologin root ") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := b.run(issueFile); !strings.Contains(text, "Every console, screen and serial ports, is logged in as root") {
		t.Error(text)
	}
	b.again(nil)
	if got := told(); got != "" {
		t.Errorf("nothing has changed, and: %s", got)
	}
	b.place.Terminal = "ttyS1"
	b.want(b.again(goodTree(t)), OK, 1, "")
	if got := told(); got != "reload units getty@tty1.service serial-getty@ttyS0.service serial-getty@hvc0.service" {
		t.Error(got)
	}
	for name := range logins() {
		if _, err := os.Stat(filepath.Join(b.place.Run, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// TestIssueIsShownAnew: those who wait at a login are told of a new text, and of no
// old one.
func TestIssueIsShownAnew(t *testing.T) {
	b := newBox(t)
	b.boot(goodTree(t))
	name := filepath.Join(b.place.Run, "agetty.reload")
	if err := os.WriteFile(name, nil, 0o600); err != nil { // a login waits
		t.Fatal(err)
	}
	old := fileTime(t, name, true)
	b.again(goodTree(t))
	if now := fileTime(t, name, false); now != old {
		t.Error("nothing has changed")
	}
	b.again(goodTree(t).changed("asn: 64512", "asn: 0"))
	if now := fileTime(t, name, false); now == old {
		t.Error("the new text is not shown")
	}
}

// fileTime returns when a file was changed; before, it may be set to long ago.
func fileTime(t *testing.T, name string, long bool) string {
	t.Helper()
	info, err := os.Stat(name)
	if err == nil && long {
		ago := info.ModTime().Add(-1e12)
		err = os.Chtimes(name, ago, ago)
	}
	if err == nil {
		info, err = os.Stat(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime().String()
}

func TestTerminalOf(t *testing.T) {
	b := newBox(t)
	b.terminal("ttyS1", "4", "4:65")
	b.terminal("tty1", "", "4:1")
	b.terminal("tty2", "", "4:2")
	for line, want := range map[string]string{
		"7 (edgectl) S 1 7 7 1089 7 4194304 1": "ttyS1",
		"7 (a) b) S 1 7 7 1025 7 4194304 1":    "tty1",
		"7 (edgectl) S 1 7 7 1026 7 4194304 1": "", // another screen is not ours
		"7 (edgectl) S 1 7 7 34816 7 1":        "", // pts/0
		"7 (edgectl) S 1 7 7 0 -1 1":           "",
		"7 (edgectl) S 1":                      "",
		"":                                     "",
	} {
		if got := TerminalOf([]byte(line), b.place.Sys); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
