package units

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// trees are what is laid over a root.
func trees() []string { return []string{"host", "appliance"} }

// files are those of both trees whose path ends so, by their path in the root.
func files(t *testing.T, ending string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, tree := range trees() {
		err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
				return err
			}
			b, err := os.ReadFile(path)
			out[strings.TrimPrefix(path, tree)] = string(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no file ends in %s", ending)
	}
	return out
}

// run executes a command and returns what it says.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// command is run for one that may fail.
func command(t *testing.T, args ...string) (string, error) {
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	return string(out), err
}

// TestExposure prints how exposed systemd finds each unit, from 0 to 10, and holds
// them to what is aimed at.
func TestExposure(t *testing.T) {
	figure := regexp.MustCompile(`Overall exposure level for \S+: (\d+)\.(\d)`)
	for path := range files(t, ".service") {
		out := run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", find(t, path))
		m := figure.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("%s: no figure in %s", path, out)
		}
		most := 40
		if filepath.Base(path) == "edgeproxy.service" {
			most = 25
		}
		var whole, tenth int
		fmt.Sscan(m[1], &whole)
		fmt.Sscan(m[2], &tenth)
		got := 10*whole + tenth
		t.Logf("exposure of %s: %d.%d", filepath.Base(path), whole, tenth)
		if got > most {
			t.Errorf("%s: exposure %d.%d, at most %d.%d", path, whole, tenth, most/10, most%10)
		}
	}
}

// find is where a file of the root is in the trees.
func find(t *testing.T, path string) string {
	t.Helper()
	for _, tree := range trees() {
		if _, err := os.Stat(tree + path); err == nil {
			return tree + path
		}
	}
	t.Fatalf("%s is in no tree", path)
	return ""
}

// TestVerify has systemd read the units. It knows nothing of what is newer than
// itself.
func TestVerify(t *testing.T) {
	root := t.TempDir()
	for _, tree := range trees() {
		run(t, "cp", "-R", tree+"/.", root)
	}
	run(t, "cp", "-Rn", "/usr/lib/systemd/system", root+"/usr/lib/systemd/")
	// Those of Debian that get a drop-in of ours.
	units := []string{"getty@tty1.service", "serial-getty@ttyS1.service"}
	run(t, "mkdir", "-p", root+"/sbin", root+"/usr/sbin")
	run(t, "install", "-m", "0755", "/dev/null", root+"/sbin/agetty")
	for path, text := range files(t, ".service") {
		units = append(units, filepath.Base(path))
		for _, m := range regexp.MustCompile(`(?m)^Exec\w+=[-+!]*(/\S+)`).FindAllStringSubmatch(text, -1) {
			if err := os.MkdirAll(filepath.Dir(root+m[1]), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+m[1], []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, ending := range []string{".path", ".timer"} {
		for path := range files(t, ending) {
			units = append(units, filepath.Base(path))
		}
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{"verify", "--man=no", "--root=" + root, "boot-complete.target"}, units...)...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if regexp.MustCompile("Unknown key '(ImportCredential|RestartSteps|RestartMaxDelaySec)'").MatchString(line) {
			continue // of systemd 254; older ones ignore it
		}
		t.Errorf("%s", line)
	}
	if err != nil && !t.Failed() {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCommands: what a unit runs of ours is taken by the command as it stands there.
func TestCommands(t *testing.T) {
	bin := t.TempDir()
	run(t, "go", "build", "-o", bin+"/", "../../cmd/edgectl")
	all := files(t, ".service")
	maps.Copy(all, files(t, ".conf"))
	seen := 0
	for path, text := range all {
		for _, m := range regexp.MustCompile(`(?m)^Exec\w+=[-+!]*/usr/bin/edgectl (.+)$`).FindAllStringSubmatch(text, -1) {
			seen++
			// Flags are read from left to right: one that is wrong is refused before the help comes.
			if out, err := command(t, "sh", "-c", bin+"/edgectl "+m[1]+" --help"); err != nil {
				t.Errorf("%s: edgectl %s: %v\n%s", path, m[1], err, out)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d commands were found", seen)
	}
}

// TestPresets: what is to be started at boot is enabled by the preset of the image,
// and nothing that does not exist.
func TestPresets(t *testing.T) {
	preset := files(t, ".preset")["/usr/lib/systemd/system-preset/10-edge.preset"]
	var listed []string
	for _, m := range regexp.MustCompile(`(?m)^(?:enable|disable) (\S+)$`).FindAllStringSubmatch(preset, -1) {
		listed = append(listed, m[1])
		find(t, "/usr/lib/systemd/system/"+m[1])
	}
	all := files(t, ".service")
	maps.Copy(all, files(t, ".path"))
	maps.Copy(all, files(t, ".timer"))
	for path, text := range all {
		if installs := strings.Contains(text, "\n[Install]\n"); installs != slices.Contains(listed, filepath.Base(path)) {
			t.Errorf("%s: has [Install]: %v; in the preset: %v", path, installs, !installs)
		}
	}
}

// TestUsers: who a unit runs as is made, with a number that stays the same over
// releases.
func TestUsers(t *testing.T) {
	var text bytes.Buffer
	for _, s := range files(t, "sysusers.d/edge.conf") {
		text.WriteString(s)
	}
	for path, unit := range files(t, ".service") {
		for _, m := range regexp.MustCompile(`(?m)^(?:User|Group|SupplementaryGroups)=(.+)$`).FindAllStringSubmatch(unit, -1) {
			for _, name := range strings.Fields(m[1]) {
				if name == "tty" {
					continue // of base-passwd, the same number everywhere
				}
				if !regexp.MustCompile(`(?m)^[ug] ` + name + ` +9\d\d( |$)`).MatchString(text.String()) {
					t.Errorf("%s: %s is not made by sysusers.d, or has no number of its own", path, name)
				}
			}
		}
	}
}

// TestSysctls: each setting is known, stands once, and has a reason above it.
func TestSysctls(t *testing.T) {
	// Not built into every kernel, or a module's.
	absent := []string{"kernel.kexec_load_disabled", "kernel.sysrq", "kernel.yama.ptrace_scope", "kernel.hung_task_panic"}
	seen := map[string]string{}
	for path, text := range files(t, ".conf") {
		if !strings.Contains(path, "/sysctl.d/") {
			continue
		}
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			if !strings.HasPrefix(paragraph, "# ") {
				t.Errorf("%s: no reason above %.60q", path, paragraph)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^(-?)([a-z][\w.]+) = (.+)$`).FindAllStringSubmatch(text, -1) {
			if in, twice := seen[m[2]]; twice {
				t.Errorf("%s is in %s and in %s", m[2], in, path)
			}
			seen[m[2]] = path
			_, err := os.Stat("/proc/sys/" + strings.ReplaceAll(m[2], ".", "/"))
			if err != nil && m[1] == "" && !slices.Contains(absent, m[2]) {
				t.Errorf("%s: %s: %v", path, m[2], err)
			}
		}
	}
	if len(seen) < 60 {
		t.Errorf("only %d settings were found", len(seen))
	}
}

// TestHostKeys: made once; one that is broken is made anew, one that lost its public
// half gets it back.
func TestHostKeys(t *testing.T) {
	dir := t.TempDir() + "/ssh"
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	script := "appliance/usr/lib/edge/ssh-keys"
	run(t, script, dir)
	config := files(t, "hostkeys.conf")["/etc/ssh/sshd_config.d/20-edge-hostkeys.conf"]
	names := regexp.MustCompile(`(?m)^HostKey /var/lib/ssh/(\S+)$`).FindAllStringSubmatch(config, -1)
	if len(names) != 2 {
		t.Fatalf("sshd is told of %q", names)
	}
	before := map[string]string{}
	for _, m := range names {
		before[m[1]] = read(m[1])
		st, err := os.Stat(filepath.Join(dir, m[1]))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", m[1], st.Mode(), err)
		}
	}
	for name, harm := range map[string]func(key string) error{
		"nothing":             func(string) error { return nil },
		"cut":                 func(key string) error { return os.Truncate(key, 100) },
		"empty":               func(key string) error { return os.Truncate(key, 0) },
		"without public half": func(key string) error { return os.Remove(key + ".pub") },
		"half made":           func(key string) error { return os.Rename(key, key+".new") },
	} {
		for _, m := range names {
			key := filepath.Join(dir, m[1])
			if err := harm(key); err != nil {
				t.Fatal(err)
			}
			run(t, script, dir)
			stays := name == "nothing" || name == "without public half"
			if got := read(m[1]); (got == before[m[1]]) != stays {
				t.Errorf("%s, %s: is the same: %v", name, m[1], !stays)
			}
			before[m[1]] = read(m[1])
			run(t, "ssh-keygen", "-l", "-f", key+".pub")
		}
	}
	left, err := filepath.Glob(dir + "/*.new*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
