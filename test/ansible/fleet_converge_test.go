package ansible

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// plainBox is this machine in a mount namespace, as a plain Debian that is node b1 of
// the example. edgectl is real; edged does not run.
type plainBox struct {
	*desk
	script, folder string
}

func newPlainBox(t *testing.T) *plainBox {
	t.Helper()
	script, err := filepath.Abs("testdata/fleet-box.sh")
	must(t, err)
	return &plainBox{desk: newDesk(t), script: script, folder: t.TempDir()}
}

// converge runs the playbook site, and what it prints must hold no secret.
func (b *plainBox) converge(args ...string) (out string, code int) {
	b.t.Helper()
	args = append([]string{"--mount", "bash", b.script, b.folder, "ansible-playbook", "catchment.edge.site", "--limit", "b1",
		"-e", "ansible_connection=local", "-e", "edge_host_services=false", "-e", "edge_config_start=false"}, args...)
	stdout, stderr, code := b.run("unshare", args...)
	out = stdout + stderr
	for _, s := range b.secrets {
		if strings.Contains(out, s) {
			b.t.Errorf("a secret was printed by %v", args)
		}
	}
	return out, code
}

// changed is how many tasks have changed b1.
func changed(out string) string {
	found := regexp.MustCompile(`(?m)^b1 .*changed=(\d+)`).FindStringSubmatch(out)
	if found == nil {
		return "none"
	}
	return found[1]
}

func (b *plainBox) file(name string) string {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(b.folder, "etc", name))
	if os.IsNotExist(err) {
		return ""
	}
	must(b.t, err)
	return string(content)
}

func (b *plainBox) owner(name string) string {
	b.t.Helper()
	info, err := os.Stat(filepath.Join(b.folder, "etc", name))
	must(b.t, err)
	return fmt.Sprintf("%d %o", info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm())
}

// TestFleetConverge: a new box, the same once more, mistakes, and a secret that changes.
func TestFleetConverge(t *testing.T) {
	b := newPlainBox(t)
	vault := filepath.Join(b.dir, "vault")
	b.write("vault", []byte("test\n"))

	b.keyless()
	out, code := b.converge("--check", "--diff", "-vvv")
	if code != 0 || changed(out) != "1" || !strings.Contains(out, "+  name: b1") || !strings.Contains(out, "/etc/edge/secrets/gossip.key is new") || b.file("edge.yaml") != "" {
		t.Fatalf("check mode: exit code %d, edge.yaml %q\n%s", code, b.file("edge.yaml"), out)
	}
	if out, code := b.converge("--diff", "-vvv"); code != 0 || changed(out) != "1" {
		t.Fatalf("the first run: exit code %d\n%s", code, out)
	}
	first := b.file("edge.yaml")
	if !strings.Contains(first, "interfaces: [ens3, ens4]") {
		t.Errorf("edge.yaml:\n%s", first)
	}
	for name, want := range map[string]string{
		"edge.yaml": "0 644", "secrets/node.key": "961 600", "secrets/gossip.key": "961 600", "secrets/ring.seed": "961 600", "secrets/tls/web.key": "963 600",
	} {
		if got := b.owner(name); got != want {
			t.Errorf("%s belongs to %s, want %s", name, got, want)
		}
	}
	if out, code := b.converge("--diff"); code != 0 || changed(out) != "0" {
		t.Errorf("the second run: exit code %d\n%s", code, out)
	}
	b.refused(first)
	b.vaulted(vault, first)
}

// keyless: a check of a box that has no key yet judges all else, and makes none.
func (b *plainBox) keyless() {
	b.t.Helper()
	for _, name := range []string{"public_keys/b1.pub", "secrets/nodes/b1/node.key"} {
		at, aside := filepath.Join(b.dir, name), filepath.Join(b.dir, "aside-"+filepath.Base(name))
		must(b.t, os.Rename(at, aside))
		defer func() { must(b.t, os.Rename(aside, at)) }()
	}
	out, code := b.converge("--check", "--diff")
	if code != 0 || changed(out) != "2" || !strings.Contains(out, "secrets/node.key is made") || !strings.Contains(out, "public_key: (of the key that the box makes") || b.file("edge.yaml") != "" {
		b.t.Errorf("a check without a key: exit code %d\n%s", code, out)
	}
	if b.file("secrets/node.key") != "" {
		b.t.Error("a check has made a key")
	}
	undo := b.edit("address: 10.2.0.1, asn: 65002", "address: 10.2.0.1, asn: 65535")
	defer undo()
	if out, code := b.converge("--check"); code == 0 || !strings.Contains(out, "node.bgp.peers[0].asn: 65535 is not an AS number") {
		b.t.Errorf("a check of a mistake without a key: exit code %d\n%s", code, out)
	}
}

// refused: what edgectl does not take changes nothing, and is told with its place in
// fleet.yaml.
func (b *plainBox) refused(first string) {
	b.t.Helper()
	undo := b.edit("address: 10.2.0.1, asn: 65002", "address: 10.2.0.1, asn: 65535")
	out, code := b.converge("--diff")
	if code == 0 || b.file("edge.yaml") != first || !strings.Contains(out, "node.bgp.peers[0].asn: 65535 is not an AS number") || !strings.Contains(out, "(from fleet.yaml:111:") {
		b.t.Errorf("a bad AS: exit code %d\n%s", code, out)
	}
	undo()
	undo = b.edit("proxy_user: edgeproxy", "proxy_user: www-data")
	if out, code := b.converge(); code == 0 || !strings.Contains(out, "which needs a restart") || b.file("edge.yaml") != first {
		b.t.Errorf("another user of edgeproxy: exit code %d\n%s", code, out)
	}
	undo()
}

// vaulted: a secret that changed, in a file that is encrypted.
func (b *plainBox) vaulted(vault, first string) {
	b.t.Helper()
	b.secret("fleet/gossip.key", "b3BlbnNzbCByYW5kIC1iYXNlNjQgMzIgc2F5cyB0aGF0")
	plain := b.secrets[len(b.secrets)-2] + "\n"
	if out, errs, code := b.run("ansible-vault", "encrypt", "--vault-password-file", vault, "secrets/fleet/gossip.key"); code != 0 {
		b.t.Fatalf("ansible-vault: %s%s", out, errs)
	}
	if out, code := b.converge(); code == 0 || !strings.Contains(out, "gossip.key") {
		b.t.Errorf("without the password: exit code %d\n%s", code, out)
	}
	out, code := b.converge("--diff", "-vvv", "--vault-password-file", vault)
	if code != 0 || changed(out) != "1" || b.file("secrets/gossip.key") != plain || b.file("edge.yaml") != first {
		b.t.Errorf("another secret: exit code %d\n%s", code, out)
	}
}
