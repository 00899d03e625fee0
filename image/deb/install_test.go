package deb_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	oldVersion = "1.2.0~rc1"
	newVersion = "1.2.0"
)

// TestInstallFresh installs the package in fresh roots with systemd running and
// the daemons at work, for the suites of -roots.
func TestInstallFresh(t *testing.T) {
	if *roots == "" {
		return
	}
	debs := map[string]string{"old": build(t, oldVersion), "new": build(t, newVersion)}
	for suite := range strings.SplitSeq(*roots, ",") {
		t.Run(suite, func(t *testing.T) {
			dir := *cache
			if dir == "" {
				dir = t.TempDir()
			}
			root, err := filepath.Abs(filepath.Join(dir, "root-"+suite))
			must(t, err)
			tool(t, "./root.sh", suite, root)
			life(t, newBox(t, root, true), debs)
		})
	}
}

// life is the life of the package on a box, from the first installation to the
// second one after a purge.
func life(t *testing.T, b *box, debs map[string]string) {
	b.bring(t, debs)
	before := accounts(t, b)

	out := b.apt(t, "install", "/pkgs/old.deb")
	installed(t, b, oldVersion)
	if b.runs && !strings.Contains(out, "the daemons start once there is /etc/edge/edge.yaml") {
		t.Errorf("the installation does not say what is missing:\n%s", out)
	}
	b.idle(t)
	configure(t, b)
	b.start(t)

	upgraded(t, b)
	kept := b.sh(t, "find /etc/edge /var/lib/edge -type f | sort | xargs sha256sum")

	b.apt(t, "remove", "catchment-edge")
	removed(t, b, kept)

	out = b.apt(t, "install", "/pkgs/new.deb")
	installed(t, b, newVersion)
	b.comesBack(t, out)

	b.apt(t, "purge", "catchment-edge")
	purged(t, b, before)
	b.apt(t, "install", "/pkgs/new.deb")
	installed(t, b, newVersion)
	b.idle(t)
	b.apt(t, "purge", "catchment-edge")
	purged(t, b, before)
}

// bring lays the packages into the box, as /pkgs/NAME.deb.
func (b *box) bring(t *testing.T, debs map[string]string) {
	t.Helper()
	for name, deb := range debs {
		tool(t, "cp", deb, filepath.Join(b.pkgs, name+".deb"))
	}
}

// usersByHand installs where there is no systemd-sysusers and no systemd-tmpfiles.
func usersByHand(t *testing.T, b *box, debs map[string]string) {
	b.bring(t, debs)
	before := accounts(t, b)
	b.sh(t, `rm "$(command -v systemd-sysusers)" "$(command -v systemd-tmpfiles)"`)
	b.apt(t, "install", "/pkgs/new.deb")
	for user, groups := range map[string]string{"edged": "edge edgebgp edged edgeproxy", "edgebgp": "edgebgp", "edgeproxy": "edgeproxy"} {
		if out := b.sh(t, "id -nG "+user+" | tr ' ' '\\n' | sort | paste -sd' '"); strings.TrimSpace(out) != groups {
			t.Errorf("%s is in the groups %q, want %q", user, strings.TrimSpace(out), groups)
		}
	}
	if out := b.sh(t, "stat -c '%U %a' /var/lib/edge"); out != "edged 755\n" {
		t.Errorf("/var/lib/edge is %s", out)
	}
	b.apt(t, "purge", "catchment-edge")
	if now := accounts(t, b); now != before {
		t.Errorf("users and groups are\n%swere\n%s", now, before)
	}
}

// accounts are the users and groups of the box.
func accounts(t *testing.T, b *box) string {
	return b.sh(t, "sort /etc/passwd /etc/group | cut -d: -f1,3,4")
}

func installed(t *testing.T, b *box, version string) {
	t.Helper()
	if out := b.run(t, "edgectl", "version"); !strings.HasPrefix(out, version+" ") && strings.TrimSpace(out) != version {
		t.Errorf("edgectl version says %q, want %s", out, version)
	}
	if out := b.run(t, "edgectl", "check", "/usr/share/doc/catchment-edge/reference.yaml"); !strings.Contains(out, "ok: node a1") {
		t.Errorf("edgectl check says %q", out)
	}
	for page, want := range map[string]string{
		"8 edged": "-log-level level", "8 edgebgp": "-bpf-dir directory", "8 edgeproxy": "-fallback file",
		"8 edgectl": "--reason words", "5 edge.yaml": "fleet.services[].port",
	} {
		if out := b.sh(t, "man "+page+" 2>&1"); !strings.Contains(out, want) {
			t.Errorf("man %s does not show %q:\n%.500s", page, want, out)
		}
	}
	if out := b.sh(t, `getent passwd edged edgebgp edgeproxy; getent group edge; stat -c '%U %a' /var/lib/edge; stat -c '%U %a' /etc/edge`); strings.Count(out, "\n") != 6 ||
		!strings.HasSuffix(out, "edged 755\nroot 755\n") || !regexp.MustCompile(`(?m)^edge:.*\bedged$`).MatchString(out) {
		t.Errorf("users and folders:\n%s", out)
	}
	b.sh(t, `systemd-analyze verify --man=no /usr/lib/systemd/system/edge*.service /usr/lib/systemd/system/edge*.path 2>&1 | tee /tmp/verify; ! grep edge /tmp/verify`)
	if out := b.sh(t, completion); out != "drain\n" {
		t.Errorf("bash completes \"edgectl dra\" to %q", out)
	}
	if b.runs { // the root of this machine need not have them
		b.sh(t, "zsh -n /usr/share/zsh/vendor-completions/_edgectl; fish -n /usr/share/fish/vendor_completions.d/edgectl.fish")
	}
	if out := b.sh(t, "ls -d /etc/systemd/system/multi-user.target.wants/edge*"); out != wants {
		t.Errorf("enabled are\n%swant\n%s", out, wants)
	}
}

const (
	wants = "/etc/systemd/system/multi-user.target.wants/edge-tune.service\n/etc/systemd/system/multi-user.target.wants/edgebgp.service\n" +
		"/etc/systemd/system/multi-user.target.wants/edged.service\n/etc/systemd/system/multi-user.target.wants/edgeproxy.service\n"
	// completion asks bash as the Tab key does.
	completion = `set +eu; . /usr/share/bash-completion/bash_completion; . /usr/share/bash-completion/completions/edgectl
COMP_WORDS=(edgectl dra) COMP_CWORD=1 COMP_LINE="edgectl dra" COMP_POINT=11 COMP_TYPE=9; __start_edgectl 2>/dev/null; echo "${COMPREPLY[@]}" | sed 's/ *$//'`
)

func removed(t *testing.T, b *box, kept string) {
	t.Helper()
	if now := b.sh(t, "find /etc/edge /var/lib/edge -type f | sort | xargs sha256sum"); now != kept {
		t.Errorf("after remove there is\n%swant\n%s", now, kept)
	}
	if out := b.sh(t, "ls /usr/bin/edge* /usr/lib/systemd/system/edge* 2>/dev/null || true"); out != "" {
		t.Errorf("after remove there is still %s", out)
	}
	b.gone(t)
}

func purged(t *testing.T, b *box, before string) {
	t.Helper()
	b.gone(t)
	if now := accounts(t, b); now != before {
		t.Errorf("users and groups are\n%swere\n%s", now, before)
	}
	if left := left(t, b); len(left) > 0 {
		t.Errorf("after purge there is still\n%s", strings.Join(left, "\n"))
	}
	if out := b.sh(t, "ls -A /run /sys/fs/bpf | grep -i edge || true; ip addr show dev lo | grep 198.51 || true; ip route show proto 77; nft list tables | grep -E 'catchment|edge' || true"); out != "" {
		t.Errorf("after purge there is still\n%s", out)
	}
}

// noise is what dpkg, apt and a running systemd write for themselves.
var noise = regexp.MustCompile(`^(pkgs|tmp|var/tmp|var/log|var/cache|var/lib/(dpkg|apt|systemd|private)|etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock|etc/\.updated|etc/machine-id|root|run|var/\.updated)(/|$)`)

// left returns what is in the box and was not in its root: the upper side of the
// overlay holds it. What was there and is not any more is reported too.
func left(t *testing.T, b *box) []string {
	var out []string
	must(t, filepath.WalkDir(b.upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.upper, path)
		if err != nil || name == "." {
			return err
		}
		if noise.MatchString(name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		_, err = os.Lstat(filepath.Join(b.lower, name))
		deleted := d.Type()&fs.ModeCharDevice != 0
		switch {
		case deleted && err == nil:
			out = append(out, "gone: "+name)
		case !deleted && err != nil:
			out = append(out, name)
		}
		return nil
	}))
	slices.Sort(out)
	return out
}
