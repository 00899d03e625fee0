package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClosedToVolumes: a configured box whose configuration says so takes nothing of a
// stick, whoever plugs it in; its credentials still count, and so does a stick where no
// configuration can be used, which is also how a new box gets its first.
func TestClosedToVolumes(t *testing.T) {
	good := goodTree(t)
	shut := good.changed("  proxy_user:", "  config_volumes: rescue\n  proxy_user:")
	stranger := good.with(map[string]string{"hostname": "stranger\n"})
	b := newBox(t)
	b.want(b.boot(shut), OK, 1, "volume EDGECFG on vdb")
	b.want(b.boot(stranger), OK, 1, "volume EDGECFG on vdb was not looked at: node.config_volumes is rescue")
	if text := b.run("edge-setup/authorized_keys"); text != string(shut["authorized_keys"]) {
		t.Error("the keys of root are others")
	}
	b.want(b.boot(Tree{"edge.yaml": []byte("nonsense")}), OK, 1, "was not looked at")
	// Credentials open it again.
	b.creds = []string{t.TempDir()}
	bundle := filepath.Join(b.creds[0], "edge.bundle")
	if err := os.WriteFile(bundle, pack(t, good), 0o400); err != nil {
		t.Fatal(err)
	}
	b.want(b.boot(stranger), OK, 2, "generation 2 was made from credentials")
	b.creds = nil
	b.want(b.boot(stranger), OK, 3, "generation 3 was made from volume EDGECFG on vdb")
	// A generation that cannot be used forbids nothing.
	b.want(b.boot(shut), OK, 4, "")
	if err := os.WriteFile(filepath.Join(b.store().dirOf(4), configFile), []byte("future: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.want(b.boot(nil), Rescue, 0, "generation 4: edge.yaml:1:1")
	b.want(b.boot(stranger), OK, 5, "generation 5 was made from volume EDGECFG on vdb")
}

// TestClosedFallsBack: what a version takes in place of a generation that it cannot use
// forbids as much.
func TestClosedFallsBack(t *testing.T) {
	b := newBox(t)
	shut := goodTree(t).changed("  proxy_user:", "  config_volumes: rescue\n  proxy_user:")
	b.boot(shut)
	if err := b.store().ConfirmBoot(); err != nil {
		t.Fatal(err)
	}
	n := add(t, b.store(), shut.changed("hold: 3s", "hold: 5s"))
	if err := os.WriteFile(filepath.Join(b.store().dirOf(n), configFile), []byte("future: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := b.boot(shut.with(map[string]string{"hostname": "stranger\n"}))
	b.want(r, OK, 1, "generation 1 is in force in its place")
	if text := strings.Join(r.Notes, "\n"); strings.Contains(text, "was made from volume") {
		t.Error(text)
	}
}

// TestWrittenToTheESP: on a box that runs, what lies on the EFI partition now is newer
// than what systemd was given of it; what came in another way still counts.
func TestWrittenToTheESP(t *testing.T) {
	good := goodTree(t)
	loader := func(files Tree) string {
		out := Tree{}
		for name, content := range files {
			out["loader/credentials/"+name+".cred"] = content
		}
		return writeTree(t, t.TempDir(), out)
	}
	first := Tree{"edge.bundle": pack(t, good), "edge.hostname": []byte("old\n")}
	b := newBox(t)
	b.creds = []string{writeTree(t, t.TempDir(), first.with(map[string]string{"edge.password": string(good["password"])}))}
	b.want(b.with(volumes{espLabel: {"vda1": loader(first)}}), OK, 1, "generation 1 was made from credentials")

	gather := func(v volumes) Found { return b.place.Gather(b.creds, v) }
	next := good.with(map[string]string{"hostname": "new\n"}, "password")
	f := gather(volumes{espLabel: {"vda1": loader(Tree{"edge.bundle": pack(t, next)})}})
	if want := next.with(map[string]string{"password": string(good["password"])}); !f.OK || len(f.Problems) > 0 || f.Tree.Digest() != want.Digest() {
		t.Errorf("%v %v, host name %q", f.OK, f.Problems, f.Tree["hostname"])
	}
	if f := gather(volumes{espLabel: {"vda1": ""}}); !f.OK || string(f.Tree["hostname"]) != "old\n" || len(f.Notes) != 1 {
		t.Errorf("the partition cannot be read: %v %v, host name %q", f.OK, f.Notes, f.Tree["hostname"])
	}
	b.creds = nil
	if f := gather(volumes{espLabel: {"vda1": ""}}); f.OK || len(f.Notes) != 1 {
		t.Errorf("nothing can be read: %+v", f)
	}
	// And so in a setup that is run again.
	b.want(b.with(volumes{espLabel: {"vda1": loader(Tree{"edge.bundle": pack(t, next)})}}), OK, 2, "generation 2 was made from credentials")
}
