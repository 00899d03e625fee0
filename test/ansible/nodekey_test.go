package ansible

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/catchment-dev/edge/test/lab"
)

// keyDesk runs the part of role edge_keys that makes the key of a box, with the real
// edgectl, on a box that is a folder of this machine.
type keyDesk struct {
	*controller
	t     *testing.T
	bin   string
	known string // the public key that the fleet knows
}

func (d *keyDesk) run(args ...string) (string, error) {
	d.t.Helper()
	missing := []string{}
	node := map[string]any{"name": "a1"}
	if d.known == "" {
		missing = append(missing, "a1")
	} else {
		node["public_key"] = d.known
	}
	text, err := json.Marshal(map[string]any{"all": map[string]any{"children": map[string]any{"edge": map[string]any{"hosts": map[string]any{"a1": map[string]any{
		"ansible_connection": "local", "edge_node": "a1", "edge_kind": "image", "edge_fleet": map[string]any{"missing_keys": missing},
		"edge_config":          map[string]any{"node": map[string]any{"key_file": filepath.Join(d.dir, "etc", "node.key")}, "fleet": map[string]any{"nodes": []any{node}}},
		"edge_public_keys_dir": filepath.Join(d.dir, "public_keys"), "edge_keys_local": filepath.Join(d.dir, "local-keys"), "edge_keys_edgectl": filepath.Join(d.bin, "edgectl"),
	}}}}}})
	if err != nil {
		d.t.Fatal(err)
	}
	play := "- hosts: edge\n  gather_facts: false\n  roles: [catchment.edge.edge_keys]\n"
	for name, text := range map[string]string{d.inventory: string(text), filepath.Join(d.dir, "node.yml"): play} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			d.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(d.t.Context(), "ansible-playbook", append([]string{"-i", d.inventory, "-vvv", "--diff", filepath.Join(d.dir, "node.yml")}, args...)...)
	cmd.Env = d.env
	out, err := cmd.CombinedOutput()
	if key, _ := os.ReadFile(d.made()); len(key) > 0 && bytes.Contains(out, bytes.Split(key, []byte("\n"))[1]) {
		d.t.Error("the private key is printed")
	}
	return string(out), err
}

// made is where the key of an appliance is made.
func (d *keyDesk) made() string { return filepath.Join(d.dir, "local-keys", "node.key") }

func TestNodeKey(t *testing.T) {
	d := &keyDesk{controller: newController(t, t.TempDir()), t: t, bin: t.TempDir()}
	if err := lab.Build(t.Context(), d.bin, false); err != nil {
		t.Fatal(err)
	}
	must(t, os.Mkdir(filepath.Join(d.dir, "public_keys"), 0o755))
	public := func() string {
		text, _ := os.ReadFile(filepath.Join(d.dir, "public_keys", "a1.pub"))
		return strings.TrimSpace(string(text))
	}
	if out, err := d.run("--check"); err != nil || !strings.Contains(out, "changed=1 ") || public() != "" {
		t.Fatalf("check mode: %v, public key %q\n%s", err, public(), out)
	}
	if _, err := os.Stat(d.made()); err == nil {
		t.Fatal("check mode has made a key")
	}
	if out, err := d.run(); err != nil || !strings.Contains(out, "changed=2 ") {
		t.Fatalf("the first run: %v\n%s", err, out)
	}
	// openssl says whose public half that is.
	der, err := exec.Command("openssl", "pkey", "-in", d.made(), "-pubout", "-outform", "DER").Output()
	must(t, err)
	first := public()
	if want := base64.StdEncoding.EncodeToString(der[12:]); first != want {
		t.Errorf("the public half is %q, want %q", first, want)
	}
	if st, err := os.Stat(d.made()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key: %v, %v", st.Mode(), err)
	}
	if out, err := d.run(); err != nil || !strings.Contains(out, "changed=0 ") || public() != first {
		t.Errorf("the second run: %v\n%s", err, out)
	}
	d.known = first
	if out, err := d.run(); err != nil || !strings.Contains(out, "changed=0 ") {
		t.Errorf("with a key that is known: %v\n%s", err, out)
	}
	d.known = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	if out, err := d.run(); err == nil || !strings.Contains(out, "has the public half "+first+", and the fleet knows "+d.known) {
		t.Errorf("with the key of another box: %v\n%s", err, out)
	}
	must(t, os.Remove(d.made()))
	if out, err := d.run(); err == nil || !strings.Contains(out, "is not there: put it back") {
		t.Errorf("a key that is lost: %v\n%s", err, out)
	}
	if _, err := os.Stat(d.made()); err == nil {
		t.Error("a lost key was replaced")
	}
}
