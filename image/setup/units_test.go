package setup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unitTree has something of each kind.
func unitTree(t *testing.T) Tree {
	return goodTree(t).with(map[string]string{
		"units/edged.service.d/memory.conf":           "# for the large table\n[Service]\nMemoryMax=8G\nReadWritePaths=/srv\n",
		"units/edged.service.d/leave.conf":            "[Unit]\nWants=edge-leave.service\n",
		"units/systemd-journald.service.d/x.conf":     "[Service]\nMemoryHigh=200M\n",
		"units/serial-getty@ttyS1.service.d/off.conf": "[Unit]\nConditionPathExists=/nothing\n",
		"units/journald.conf.d/size.conf":             "[Journal]\nSystemMaxUse=2G\n",
		"units/timesyncd.conf.d/servers.conf":         "[Time]\nNTP=192.0.2.123\n",
		"units/edgebgp.service.d/10-appliance.conf":   "[Service]\nTimeoutStopSec=5min\nExecStart=\r\nExecStart=-/usr/bin/edgebgp -v\r\n",
	})
}

func TestCheckUnits(t *testing.T) {
	good := unitTree(t)
	if _, problems := Check(good); len(problems) > 0 {
		t.Error(problems)
	}
	if got := strings.Join(Warnings(good), "\n"); !strings.Contains(got, "units/edged.service.d/memory.conf: ReadWritePaths changes what edged.service may do") || strings.Contains(got, "journald") {
		t.Errorf("warnings %s", got)
	}
	for want, file := range map[string][2]string{
		"this unit cannot be changed":                                    {"units/edge-confirm.service.d/a.conf", "[Service]\nNice=1\n"},
		"this unit cannot be changed ":                                   {"units/getty@tty1.service.d/a.conf", ""},
		"this unit cannot be changed  ":                                  {"units/system.conf.d/a.conf", ""},
		"it is not a part of a configuration":                            {"units/edged.service.d/a.txt", ""},
		"it is not a part of a configuration ":                           {"units/edged.service", "[Service]\n"},
		"it is not a part of a configuration  ":                          {"units/edged.service.d/a/b.conf", ""},
		`a.conf:2: "MemoryMx" cannot be set in [Service]`:                {"units/edged.service.d/a.conf", "[Service]\nMemoryMx=1G\n"},
		`a.conf:1: "[Srvice]" is none of the sections [Service], [Unit]`: {"units/edged.service.d/a.conf", "[Srvice]\n"},
		`a.conf:1: "[Service" is none of`:                                {"units/edged.service.d/a.conf", "[Service\n"},
		`a.conf:2: "User" cannot be set`:                                 {"units/edged.service.d/a.conf", "[Service]\nUser=root\n"},
		`a.conf:1: expected [SECTION]`:                                   {"units/edged.service.d/a.conf", "MemoryMax=1G\n"},
		`a.conf:2: expected [SECTION]`:                                   {"units/edged.service.d/a.conf", "[Service]\nMemoryMax\n"},
		`a.conf:2: a line that goes on`:                                  {"units/edged.service.d/a.conf", "[Service]\nEnvironment=a \\\nb\n"},
		`a.conf:2: the only unit that may be wanted`:                     {"units/edged.service.d/a.conf", "[Unit]\nWants=emergency.target\n"},
		`a.conf:2: "MemoryMax" cannot be set in [Journal]`:               {"units/journald.conf.d/a.conf", "[Journal]\nMemoryMax=1G\n"},
		`a.conf:2: it has control characters`:                            {"units/edged.service.d/a.conf", "[Service]\nNice=1\rUser=nobody\r\n"},
		`a.conf:2: it comes beside the program`:                          {"units/ssh.service.d/a.conf", "[Service]\nExecStart=/usr/sbin/sshd -D -p 2222\n"},
		`a.conf:4: it is a second program`:                               {"units/ssh.service.d/a.conf", "[Service]\nExecStart=\nExecStart=-/a\nExecStart=/b\n"},
		`a.conf:3: it does not begin with the path`:                      {"units/ssh.service.d/a.conf", "[Service]\nExecStart=\nExecStart=$X\n"},
		`a.conf:2: no program is left`:                                   {"units/edgebgp.service.d/a.conf", "[Service]\nExecStart=\n"},
	} {
		b := newBuilder()
		b.put(file[0], []byte(file[1]))
		text := append(b.problems, checkUnits(b.tree)...).Error()
		if !strings.Contains(text, strings.TrimRight(want, " ")) {
			t.Errorf("%s: %q, want %q", file[0], text, want)
		}
	}
}

// TestKeysAreKnown: systemd knows each key that a unit may be given.
func TestKeysAreKnown(t *testing.T) {
	dir := t.TempDir()
	text := "[Unit]\nDescription=test\n" + strings.Join(tunable()["Unit"], "=\n") + "=\n[Service]\n"
	for _, key := range tunable()["Service"] {
		if key != "ExecStart" && key != "Restart" {
			text += key + "=\n"
		}
	}
	unit := filepath.Join(dir, "edge-test.service")
	verify := func(more string) string {
		if err := os.WriteFile(unit, []byte(text+"ExecStart=/bin/true\n"+more), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
		return string(out)
	}
	if out := verify(""); strings.Contains(out, "Unknown") {
		t.Error(out)
	}
	if out := verify("MemoryMx=1\n"); !strings.Contains(out, "Unknown key name 'MemoryMx'") && !strings.Contains(out, "Unknown key 'MemoryMx'") {
		t.Errorf("a key that is unknown is not told: %s", out)
	}
}

// TestUnitsInForce: they are there with their generation, beside what others have
// there, and gone with it.
func TestUnitsInForce(t *testing.T) {
	b := newBox(t)
	placed := func() (out []string) {
		t.Helper()
		err := filepath.Walk(filepath.Join(b.place.Run, "systemd"), func(path string, info os.FileInfo, err error) error {
			if err == nil && strings.Contains(path, ".d/50-config-") {
				name, _ := filepath.Rel(b.place.Run, path)
				out = append(out, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	reloads := func() (out []string) {
		for _, what := range *b.place.System.(notes).told {
			if strings.HasPrefix(what, "reload") {
				out = append(out, what)
			}
		}
		*b.place.System.(notes).told = nil
		return out
	}
	good := unitTree(t)
	b.want(b.boot(good), OK, 1, "")
	if d := cmp.Diff(placed(), []string{
		"systemd/journald.conf.d/50-config-size.conf",
		"systemd/system/edgebgp.service.d/50-config-10-appliance.conf",
		"systemd/system/edged.service.d/50-config-leave.conf",
		"systemd/system/edged.service.d/50-config-memory.conf",
		"systemd/system/serial-getty@ttyS1.service.d/50-config-off.conf",
		"systemd/system/systemd-journald.service.d/50-config-x.conf",
		"systemd/timesyncd.conf.d/50-config-servers.conf",
	}); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(reloads(), []string{"reload units systemd-journald.service serial-getty@ttyS1.service systemd-timesyncd.service start edge-leave.service"}); d != "" {
		t.Error(d)
	}
	other := filepath.Join(b.place.Run, "systemd/system/edged.service.d/other.conf")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.again(good)
	if got := reloads(); len(got) > 0 {
		t.Errorf("nothing has changed, and: %q", got)
	}
	// Another generation, and rescue: nothing of the first is left.
	less := good.with(nil, "units/edged.service.d/memory.conf", "units/journald.conf.d/size.conf")
	b.want(b.again(less), OK, 2, "")
	if d := cmp.Diff(reloads(), []string{"reload units systemd-journald.service start edge-leave.service"}); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(ChangedUnits(good, less), []string{"edged.service", "systemd-journald.service"}); d != "" {
		t.Error(d)
	}
	if err := b.place.Rescue(Result{}); err != nil {
		t.Fatal(err)
	}
	if got := reloads(); strings.Contains(strings.Join(got, " "), "start") {
		t.Errorf("started in rescue: %q", got)
	}
	if got := placed(); len(got) > 0 {
		t.Errorf("left in rescue: %q", got)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func FuzzUnitFile(f *testing.F) {
	f.Add("[Service]\nMemoryMax=8G\n")
	f.Add("[Unit]\nWants=edge-leave.service\n\\\n")
	f.Add("; x\n[Service]\r\n=\n[[]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		problems := checkUnitFile("units/edged.service.d/a.conf", []byte(text), tunable())
		// What is taken assigns nothing but keys that are known, each to its section.
		if len(problems) > 0 {
			return
		}
		section := ""
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			key, _, assigns := strings.Cut(line, "=")
			switch {
			case strings.HasPrefix(line, "["):
				section = line
			case assigns && line[0] != '#' && line[0] != ';' && section != "[Unit]" && section != "[Service]":
				t.Errorf("%q stands in %q", key, section)
			}
		}
	})
}
