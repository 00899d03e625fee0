package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/operator"
)

// TestUpgradeRole has the role edge_upgrade take one drained node to another version and
// back, without the rollout around it.
func TestUpgradeRole(t *testing.T) {
	ctx := limit(t, 15*time.Minute)
	f := newFleet(ctx, t, three())
	f.goes(ctx, t, []part{
		{"the collection is built and installed", func(ctx context.Context, _ *testing.T, f *fleet) error { return f.operator.Install(ctx, *collection) }, false},
		{"new boxes are set up, keep their package, and announce", convergeNew, false},
		{"the role tells what there is", tellsFirst, false},
		{"a wrong package is refused", refusesPackages, false},
		{"the version is put in store everywhere", stages, false},
		{"the package comes by URL", stagesByURL, true},
		{"a node on the air is refused", refusesAnnounced, false},
		{"a drained node is upgraded", upgradesDrained, false},
		{"a daemon that does not start is told, and repaired", tellsBroken, true},
		{"a drained node goes back", goesBack, false},
	})
}

// rolePlay runs an entry point of the role on each node by itself, and keeps what it has
// found beside the playbook.
const rolePlay = `---
- name: Run a part of the role
  hosts: edge
  gather_facts: false
  tasks:
    - name: Run it
      ansible.builtin.include_role:
        name: catchment.edge.edge_upgrade
        tasks_from: "{{ part }}"

    - name: Keep what it has found
      ansible.builtin.copy:
        content: "{{ edge_upgrade_facts | to_json }}"
        dest: "{{ playbook_dir }}/facts-{{ inventory_hostname }}.json"
        mode: "0600"
      delegate_to: localhost
      changed_when: false
      check_mode: false
      vars:
        ansible_connection: local
        ansible_python_interpreter: "{{ ansible_playbook_python }}"
`

// versions are the facts of the role, as far as they are looked at here.
type versions struct {
	Kind, Running, Staged, Previous, Installed string
	Good                                       bool
	WhyNotGood                                 []string `json:"why_not_good"`
	Kept                                       []string
	Daemons                                    map[string]string
}

// all are the daemons of a node, of one version.
func all(version string) map[string]string {
	return map[string]string{"edged": version, "edgebgp": version, "edgeproxy": version}
}

// role runs a part of the role, such as stage, on nodes: a pattern of Ansible.
func (f *fleet) role(ctx context.Context, part, nodes string, extra vars, args ...string) (operator.Result, error) {
	path := filepath.Join(f.operator.Fleet, "role.yml")
	if err := os.WriteFile(path, []byte(rolePlay), 0o600); err != nil {
		return operator.Result{}, fmt.Errorf("write playbook: %w", err)
	}
	v := vars{"part": part, "edge_upgrade_wait": "2m"}
	for key, value := range extra {
		v[key] = value
	}
	b, err := json.Marshal(v)
	if err != nil {
		return operator.Result{}, fmt.Errorf("write variables: %w", err)
	}
	r, err := f.operator.Begin(append([]string{"ansible-playbook", path, "--limit", nodes, "-e", string(b)}, args...)...)
	if err != nil {
		return operator.Result{}, err
	}
	got, err := r.Result(ctx)
	if *verbose {
		f.t.Logf("%s of %s\n%s", part, nodes, r.Text())
	}
	if err == nil && len(got.Hosts) == 0 {
		err = fmt.Errorf("it has not come to its recap\n%s", r.Text())
	}
	if err != nil {
		return got, err
	}
	f.t.Logf("%5.1f s  %s of %s: %s", got.Took.Seconds(), part, nodes, got)
	return got, nil
}

// roleWell is role where it is to succeed.
func (f *fleet) roleWell(ctx context.Context, part, nodes string, extra vars, args ...string) (operator.Result, error) {
	got, err := f.role(ctx, part, nodes, extra, args...)
	if err == nil && got.Failed {
		err = fmt.Errorf("%s of %s fails\n%s", part, nodes, got.Text)
	}
	return got, err
}

// roleRefuses is an error unless a part fails, says what is wanted, and changes nothing.
func (f *fleet) roleRefuses(ctx context.Context, part string, n *node, want string, extra vars) error {
	got, err := f.role(ctx, part, n.Name(), extra)
	if err != nil {
		return err
	}
	if said := strings.Join(strings.Fields(got.Text), " "); !got.Failed || !strings.Contains(said, want) {
		return fmt.Errorf("%s with %v does not say %q\n%s", part, extra, want, got.Text)
	}
	return nil
}

// found is what the last part of the role has found at a node.
func (f *fleet) found(n *node) (v versions, err error) {
	b, err := os.ReadFile(filepath.Join(f.operator.Fleet, "facts-"+n.Name()+".json"))
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	return v, err
}

// has is an error unless the role finds this at a node.
func (f *fleet) has(ctx context.Context, n *node, want versions) error {
	if _, err := f.roleWell(ctx, "facts", n.Name(), nil); err != nil {
		return err
	}
	got, err := f.found(n)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || d != "" {
		return fmt.Errorf("what %s has: %v\n%s", n.Name(), err, d)
	}
	return nil
}

// last is the node that is upgraded.
func (f *fleet) last() *node { return f.nodes[len(f.nodes)-1] }

func tellsFirst(ctx context.Context, _ *testing.T, f *fleet) error {
	return f.has(ctx, f.last(), versions{Kind: "deb", Running: oldVersion, Installed: oldVersion, Good: true, Kept: []string{oldVersion}, Daemons: all(oldVersion)})
}

// refusesPackages: what is wrong with a package is found before anything is changed.
func refusesPackages(ctx context.Context, _ *testing.T, f *fleet) error {
	n, broken := f.last(), filepath.Join(f.operator.Home, "broken.deb")
	whole, err := os.ReadFile(f.debs[newVersion])
	if err != nil {
		return fmt.Errorf("read package: %w", err)
	}
	if err := os.WriteFile(broken, whole[:len(whole)/2], 0o600); err != nil {
		return fmt.Errorf("write package: %w", err)
	}
	starts, err := n.starts(ctx)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		want  string
		extra vars
	}{
		{"it is version " + oldVersion + ", and " + newVersion + " is wanted", vars{"edge_upgrade_package": f.debs[oldVersion]}},
		{"is damaged", vars{"edge_upgrade_package": broken}},
		{"not on this machine", vars{"edge_upgrade_package": broken + ".none"}},
		{"not sha256:00", vars{"edge_upgrade_package": f.debs[newVersion], "edge_upgrade_package_checksum": "sha256:00"}},
		{"the package of " + newVersion + " is not on this box", nil},
	} {
		extra := vars{"edge_upgrade_version": newVersion}
		for key, value := range c.extra {
			extra[key] = value
		}
		if err := f.roleRefuses(ctx, "stage", n, c.want, extra); err != nil {
			return err
		}
	}
	if err := f.roleRefuses(ctx, "apply", n, "stage it first", vars{"edge_upgrade_version": newVersion}); err != nil {
		return err
	}
	if err := f.roleRefuses(ctx, "back", n, "no version to go back to", nil); err != nil {
		return err
	}
	if out, err := n.sh(ctx, "ls /var/cache/catchment-edge"); err != nil || out != "catchment-edge_"+oldVersion+"_amd64.deb\n" {
		return fmt.Errorf("a wrong package has left %q, %v", out, err)
	}
	return n.untouched(ctx, starts)
}

// starts are the processes of the daemons.
func (n *node) starts(ctx context.Context) (string, error) {
	return n.run(ctx, "systemctl", "show", "-p", "Id,MainPID,NRestarts", "edged", "edgebgp", "edgeproxy")
}

// untouched is an error if a daemon is another process than before.
func (n *node) untouched(ctx context.Context, before string) error {
	if now, err := n.starts(ctx); err != nil || now != before {
		return fmt.Errorf("daemons of %s were restarted, %v:\n%s", n.Name(), err, cmp.Diff(before, now))
	}
	return nil
}

// stages: on all nodes at once, and nobody notices; a second time nothing is changed.
func stages(ctx context.Context, t *testing.T, f *fleet) error {
	extra := vars{"edge_upgrade_version": newVersion, "edge_upgrade_package": f.debs[newVersion]}
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		starts, err := f.last().starts(ctx)
		if err != nil {
			return err
		}
		if got, err := f.roleWell(ctx, "stage", "edge", extra, "--check", "--diff"); err != nil || len(got.Changed()) != len(f.nodes) {
			return fmt.Errorf("a check of the first run changes %v, %w", got.Changed(), err)
		}
		if got, err := f.roleWell(ctx, "stage", "edge", extra); err != nil || len(got.Changed()) != len(f.nodes) {
			return fmt.Errorf("the first run changes %v, %w", got.Changed(), err)
		}
		if got, err := f.roleWell(ctx, "stage", "edge", extra); err != nil || len(got.Changes) > 0 {
			return fmt.Errorf("a second run changes %v, %w", got.Changes, err)
		}
		return errors.Join(f.last().untouched(ctx, starts), f.has(ctx, f.last(), versions{
			Kind: "deb", Running: oldVersion, Installed: oldVersion, Staged: newVersion, Good: true, Kept: []string{oldVersion, newVersion}, Daemons: all(oldVersion),
		}))
	})
}

// stagesByURL: the node fetches it itself; what is not of the sum is not kept.
func stagesByURL(ctx context.Context, _ *testing.T, f *fleet) error {
	n := f.last()
	deb, err := os.ReadFile(f.debs[newVersion])
	if err != nil {
		return fmt.Errorf("read package: %w", err)
	}
	out, err := f.operator.Run(ctx, "ip", "-4", "-o", "addr", "show", "scope", "global")
	addr := addrOf.FindStringSubmatch(string(out))
	if err != nil || addr == nil {
		return fmt.Errorf("the operator has no address: %q, %v", out, err)
	}
	ln, err := f.operator.Listen("tcp", addr[1]+":0")
	if err != nil {
		return fmt.Errorf("serve packages: %w", err)
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(filepath.Dir(f.debs[newVersion])))}
	defer server.Close()
	go server.Serve(ln)
	kept := "/var/cache/catchment-edge/" + filepath.Base(f.debs[newVersion])
	extra := vars{
		"edge_upgrade_version": newVersion, "edge_upgrade_package": fmt.Sprintf("http://%s/%s", ln.Addr(), filepath.Base(kept)),
		"edge_upgrade_package_checksum": fmt.Sprintf("sha256:%064x", 0),
	}
	if err := f.roleRefuses(ctx, "stage", n, "did not match", extra); err != nil {
		return err
	}
	if _, err := n.run(ctx, "rm", kept); err != nil {
		return err
	}
	extra["edge_upgrade_package_checksum"] = fmt.Sprintf("sha256:%x", sha256.Sum256(deb))
	if got, err := f.roleWell(ctx, "stage", n.Name(), extra); err != nil || len(got.Changes) == 0 {
		return fmt.Errorf("it changes %v, %w", got.Changes, err)
	}
	if got, err := f.roleWell(ctx, "stage", n.Name(), extra); err != nil || len(got.Changes) > 0 {
		return fmt.Errorf("a second run changes %v, %w", got.Changes, err)
	}
	_, err = n.run(ctx, "ls", kept)
	return err
}

// addrOf finds an address in what ip says.
var addrOf = regexp.MustCompile(`inet ([0-9.]+)/`)

func refusesAnnounced(ctx context.Context, _ *testing.T, f *fleet) error {
	starts, err := f.last().starts(ctx)
	if err != nil {
		return err
	}
	if err := f.roleRefuses(ctx, "apply", f.last(), "this node is not drained", vars{"edge_upgrade_version": newVersion}); err != nil {
		return err
	}
	return errors.Join(f.last().untouched(ctx, starts), f.last().runs(ctx, oldVersion))
}

// drain has a node leave, or come back, by the playbook.
func (f *fleet) drain(ctx context.Context, n *node, state string) error {
	got, err := f.play(ctx, "drain", vars{"drain_reason": "test of the role", "drain_state": state, "drain_wait": "2m"}, "--limit", n.Name())
	if err == nil && got.Failed {
		err = fmt.Errorf("%s is not %s\n%s", n.Name(), state, got.Text)
	}
	return err
}

// stillDrained is an error unless a node is off the air by the order of the test.
func (n *node) stillDrained(ctx context.Context) error {
	st, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(st.Drains, func(d edge.Drain) bool { return d.Reason == "test of the role" }) || len(st.Drains) != 1 {
		return fmt.Errorf("%s is drained by %+v", n.Name(), st.Drains)
	}
	for _, d := range st.Decisions {
		if d.Rung.OnAir() {
			return fmt.Errorf("%s of %s is %s: %s", d.Prefix, n.Name(), d.Rung, d.Reason)
		}
	}
	return nil
}

// upgradesDrained: all daemons run the new version, the node stays drained, and comes
// back by an undrain.
func upgradesDrained(ctx context.Context, t *testing.T, f *fleet) error {
	n, extra := f.last(), vars{"edge_upgrade_version": newVersion}
	return f.underTraffic(ctx, t, func(ctx context.Context) error {
		if err := f.drain(ctx, n, "drained"); err != nil {
			return err
		}
		if got, err := f.roleWell(ctx, "apply", n.Name(), extra, "--check", "--diff"); err != nil || len(got.Changes) != 1 {
			return fmt.Errorf("a check changes %v, %w", got.Changes, err)
		}
		if err := n.runs(ctx, oldVersion); err != nil {
			return err
		}
		if got, err := f.roleWell(ctx, "apply", n.Name(), extra); err != nil || len(got.Changes) != 1 {
			return fmt.Errorf("it changes %v, %w", got.Changes, err)
		}
		if err := errors.Join(n.runs(ctx, newVersion), n.stillDrained(ctx)); err != nil {
			return err
		}
		if got, err := f.roleWell(ctx, "apply", n.Name(), extra); err != nil || len(got.Changes) > 0 {
			return fmt.Errorf("a second run changes %v, %w", got.Changes, err)
		}
		if err := f.has(ctx, n, versions{
			Kind: "deb", Running: newVersion, Installed: newVersion, Previous: oldVersion, Good: true, Kept: []string{oldVersion, newVersion}, Daemons: all(newVersion),
		}); err != nil {
			return err
		}
		if err := f.drain(ctx, n, "undrained"); err != nil {
			return err
		}
		return f.settled(ctx)
	})
}

// tellsBroken: an upgrade that ends in the middle says so, stays where it is, and goes on
// when the cause is mended.
func tellsBroken(ctx context.Context, _ *testing.T, f *fleet) error {
	n, extra := f.nodes[0], vars{"edge_upgrade_version": newVersion}
	if err := f.drain(ctx, n, "drained"); err != nil {
		return err
	}
	if err := n.Break(ctx, "edgeproxy"); err != nil {
		return err
	}
	if err := f.roleRefuses(ctx, "apply", n, "edgeproxy of "+newVersion+" does not start", extra); err != nil {
		return err
	}
	if err := n.stillDrained(ctx); err != nil {
		return err
	}
	if err := n.Repair(ctx, "edgeproxy"); err != nil {
		return err
	}
	if _, err := f.roleWell(ctx, "apply", n.Name(), extra); err != nil {
		return err
	}
	if err := errors.Join(n.runs(ctx, newVersion), n.stillDrained(ctx)); err != nil {
		return err
	}
	if err := f.drain(ctx, n, "undrained"); err != nil {
		return err
	}
	return f.settled(ctx)
}

// goesBack: without anything from the operator's machine.
func goesBack(ctx context.Context, _ *testing.T, f *fleet) error {
	n := f.last()
	if err := f.roleRefuses(ctx, "back", n, "this node is not drained", nil); err != nil {
		return err
	}
	if err := f.drain(ctx, n, "drained"); err != nil {
		return err
	}
	if _, err := f.roleWell(ctx, "back", n.Name(), nil); err != nil {
		return err
	}
	if err := errors.Join(n.runs(ctx, oldVersion), n.stillDrained(ctx)); err != nil {
		return err
	}
	if err := f.has(ctx, n, versions{
		Kind: "deb", Running: oldVersion, Installed: oldVersion, Good: true, Kept: []string{oldVersion, newVersion}, Daemons: all(oldVersion),
	}); err != nil {
		return err
	}
	if err := f.drain(ctx, n, "undrained"); err != nil {
		return err
	}
	return f.settled(ctx)
}
