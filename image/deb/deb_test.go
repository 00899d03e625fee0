// Package deb_test builds the package and installs it into a Debian of its own.
package deb_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	roots = flag.String("roots", "", "comma-separated suites of Debian: also install into a fresh root of each, with systemd running")
	cache = flag.String("cache", "", "folder in which these roots are kept; empty keeps none")
)

// build builds the package, hardly compressed for speed, and returns its path.
func build(t *testing.T, version string, env ...string) string {
	t.Helper()
	cmd := exec.Command("./build.sh")
	cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+t.TempDir(), "COMPRESSION=0")
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build.sh: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// tool runs a command of this machine that has to work.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestBuildRefuses(t *testing.T) {
	for _, version := range []string{"v1.2.0", "1.2 0", "1.2.0+x", "-rc1", "1..2", "1.2.0-rc1-2"} {
		cmd := exec.Command("./build.sh")
		cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "digits and dots") {
			t.Errorf("version %q: %v\n%s", version, err, out)
		}
	}
}

// TestPackage looks at the package, and installs it into a copy of this machine's
// root in which no systemd runs, as in a chroot.
func TestPackage(t *testing.T) {
	deb := build(t, oldVersion)
	debs := map[string]string{"old": deb, "new": build(t, newVersion)}
	if want := "catchment-edge_1.2.0~rc1_amd64.deb"; filepath.Base(deb) != want {
		t.Errorf("the package is %s, want %s", filepath.Base(deb), want)
	}
	dir := t.TempDir()
	tool(t, "dpkg-deb", "-x", deb, dir)

	t.Run("the same bytes", func(t *testing.T) {
		other := build(t, oldVersion, "TZ=Pacific/Auckland", "LC_ALL=C", "TMPDIR="+t.TempDir(), "GOMAXPROCS=1")
		one, err := os.ReadFile(deb)
		must(t, err)
		two, err := os.ReadFile(other)
		must(t, err)
		if !bytes.Equal(one, two) {
			t.Error("two builds differ")
		}
	})
	t.Run("nothing of the build", func(t *testing.T) {
		here, err := filepath.Abs("../..")
		must(t, err)
		for _, name := range []string{"edged", "edgebgp", "edgeproxy", "edgectl"} {
			b, err := os.ReadFile(filepath.Join(dir, "usr/bin", name))
			must(t, err)
			if bytes.Contains(b, []byte(here+"/")) {
				t.Errorf("%s names the folder that it was built in", name)
			}
		}
		owners := tool(t, "dpkg-deb", "-c", deb)
		for line := range strings.Lines(owners) {
			if f := strings.Fields(line); f[1] != "root/root" || strings.ContainsAny(f[0][4:], "w") {
				t.Errorf("owner or mode: %s", line)
			}
		}
	})
	t.Run("lintian", func(t *testing.T) {
		out, err := exec.Command("lintian", "--display-info", "--allow-root", deb).CombinedOutput()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("pages", func(t *testing.T) { checkPages(t, dir) })
	t.Run("units", func(t *testing.T) { checkUnits(t, dir) })
	t.Run("needrestart", func(t *testing.T) {
		out := tool(t, "perl", "-e", `our %nrconf; do $ARGV[0] or die $@ || $!; for my $u (@ARGV[1..$#ARGV]) { print $u, "\n" if grep { $u =~ $_ } keys %{$nrconf{override_rc}} }`,
			filepath.Join(dir, "etc/needrestart/conf.d/catchment-edge.conf"), "edgebgp.service", "edgeproxy.service", "edged.service", "nginx.service")
		if out != "edgebgp.service\nedgeproxy.service\n" {
			t.Errorf("needrestart keeps its hands off\n%s", out)
		}
	})
	t.Run("install", func(t *testing.T) { life(t, newBox(t, "/", false), debs) })
	t.Run("users by hand", func(t *testing.T) { usersByHand(t, newBox(t, "/", false), debs) })
}

// TestBuildAfresh builds a copy of the tree in another folder without anything
// that an earlier build has left. It takes minutes, so only with -roots.
func TestBuildAfresh(t *testing.T) {
	if *roots == "" {
		return
	}
	here := build(t, newVersion)
	dir := t.TempDir()
	tool(t, "bash", "-euo", "pipefail", "-c", `cd ../..; { git ls-files -z --cached --others --exclude-standard; find .git -type f -print0; } |
		tar --null --ignore-failed-read -cf - -T - | tar -xf - -C "$0"`, dir)
	cmd := exec.Command(filepath.Join(dir, "image/deb/build.sh"))
	cmd.Env = append(os.Environ(), "VERSION="+newVersion, "OUT="+filepath.Join(dir, "elsewhere"), "COMPRESSION=0", "GOCACHE="+t.TempDir())
	out, err := cmd.Output()
	must(t, err)
	if d, err := exec.Command("cmp", here, strings.TrimSpace(string(out))).CombinedOutput(); err != nil {
		t.Errorf("a build elsewhere is another: %s", d)
	}
}

func checkPages(t *testing.T, dir string) {
	pages, err := filepath.Glob(filepath.Join(dir, "usr/share/man/man*/*.gz"))
	must(t, err)
	if len(pages) != 5 {
		t.Errorf("the pages are %v, want 5", pages)
	}
	for _, page := range pages {
		plain := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(page), ".gz"))
		must(t, os.WriteFile(plain, []byte(tool(t, "zcat", page)), 0o600))
		if out, err := exec.Command("mandoc", "-T", "lint", "-W", "warning", plain).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
		cmd := exec.Command("man", "--warnings=all", "-E", "UTF-8", "-l", "-Tutf8", "-Z", plain)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80")
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		if err := cmd.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("man --warnings %s: %v\n%s", page, err, warnings.String())
		}
	}
	// Every command that edgectl lists is on its page.
	text := tool(t, "zcat", filepath.Join(dir, "usr/share/man/man8/edgectl.8.gz"))
	_, list, _ := strings.Cut(tool(t, filepath.Join(dir, "usr/bin/edgectl"), "--help"), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	if n := strings.Count(list, "\n"); n < 10 {
		t.Fatalf("edgectl lists %d commands:\n%s", n, list)
	}
	for line := range strings.Lines(list) {
		name := strings.Fields(line)[0]
		if name != "help" && !strings.Contains(text, "\n.SS \""+name+"\"\n") {
			t.Errorf("edgectl %s is not on the page", name)
		}
	}
}

// checkUnits: each daemon waits for a configuration, and what a page of a unit's
// Documentation= names is in the package.
func checkUnits(t *testing.T, dir string) {
	units, err := filepath.Glob(filepath.Join(dir, "usr/lib/systemd/system/*.service"))
	must(t, err)
	if len(units) < 6 {
		t.Errorf("the units are %v", units)
	}
	manual := regexp.MustCompile(`man:([a-z.-]+)\((\d)\)`)
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		must(t, err)
		for _, m := range manual.FindAllStringSubmatch(string(text), -1) {
			page := filepath.Join(dir, "usr/share/man/man"+m[2], m[1]+"."+m[2]+".gz")
			if _, err := os.Stat(page); err != nil {
				t.Errorf("%s names a page that is not there: %s", filepath.Base(unit), m[0])
			}
		}
	}
	for _, name := range []string{"edged", "edgebgp", "edgeproxy"} {
		text, err := os.ReadFile(filepath.Join(dir, "usr/lib/systemd/system", name+".service.d/10-package.conf"))
		if err != nil || !slices.Contains(strings.Split(string(text), "\n"), "ConditionPathExists=/etc/edge/edge.yaml") {
			t.Errorf("%s does not wait for a configuration: %v", name, err)
		}
	}
}
