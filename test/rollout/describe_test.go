package rollout

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
)

// fleetFile is the description of the fleet, in the operator's folder fleet.
const fleetFile = "fleet.yaml"

// tree is a part of a configuration.
type tree = map[string]any

// describe writes what an operator has of the fleet: fleet.yaml and the secrets. All of
// it comes from what the lab would configure its boxes with.
func (f *fleet) describe() error {
	all := tree{
		"plugin": "catchment.edge.fleet", "kind": "deb", "secrets": "secrets", "connection": tree{"user": "root"},
		"vars": tree{"edge_host_package": f.debs[oldVersion]},
	}
	configs := map[string]tree{}
	for _, n := range f.nodes {
		text, err := n.config()
		if err != nil {
			return err
		}
		var c tree
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			return fmt.Errorf("read configuration of %s: %w", n.Name(), err)
		}
		configs[n.Name()] = c
	}
	first := configs[f.nodes[0].Name()]
	shared, _ := first["node"].(tree)
	for _, c := range configs {
		shared = inCommon(shared, c["node"].(tree))
	}
	all["node"] = shared
	members := map[string]tree{}
	part := tree{}
	for key, value := range first["fleet"].(tree) {
		switch key {
		case "sites":
		case "nodes":
			for _, m := range value.([]any) {
				members[m.(tree)["name"].(string)] = m.(tree)
			}
		default:
			part[key] = value
		}
	}
	part["proxy"].(tree)["ticket_key_file"] = secretsDir + "/" + keyFiles["ticket"]
	part["guard"].(tree)["max_planned"] = f.scale.planned
	all["fleet"] = part
	var sites []any
	for i, s := range f.Topology.Sites {
		site := tree{"name": s.Name, "region": []string{"eu", "us"}[i%2], "capacity": 20000}
		var nodes []any
		for _, b := range s.Boxes {
			m := members[b.Name]
			own := without(configs[b.Name]["node"].(tree), shared)
			delete(own, "name")
			delete(m, "site") // where it stands says so
			m["host"], m["node"] = f.Boxes[b.Name].Addr4, own
			nodes = append(nodes, m)
		}
		site["nodes"] = nodes
		sites = append(sites, site)
	}
	all["sites"] = sites
	return errors.Join(f.write(all), f.secrets())
}

// write writes fleet.yaml with the key that says what it is as its first.
func (f *fleet) write(all tree) error {
	plugin := all["plugin"]
	delete(all, "plugin")
	text, err := yaml.Marshal(all)
	if err != nil {
		return fmt.Errorf("write %s: %w", fleetFile, err)
	}
	all["plugin"] = plugin
	path := filepath.Join(f.operator.Fleet, fleetFile)
	return os.WriteFile(path, append(fmt.Appendf(nil, "plugin: %v\n", plugin), text...), 0o644)
}

// edit changes fleet.yaml as an editor does; undo puts back what was.
func (f *fleet) edit(change func(all tree)) (undo func() error, err error) {
	path := filepath.Join(f.operator.Fleet, fleetFile)
	was, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", fleetFile, err)
	}
	var all tree
	if err := yaml.Unmarshal(was, &all); err != nil {
		return nil, fmt.Errorf("read %s: %w", fleetFile, err)
	}
	change(all)
	return func() error { return os.WriteFile(path, was, 0o644) }, f.write(all)
}

// lastNode is the entry of the last node of a fleet.yaml.
func lastNode(all tree) tree {
	sites := all["sites"].([]any)
	nodes := sites[len(sites)-1].(tree)["nodes"].([]any)
	return nodes[len(nodes)-1].(tree)
}

// secrets lays the secrets of the lab where the operator has them: those of all nodes in
// secrets/fleet, those of one in secrets/nodes/NAME. The lab has no ticket keys.
func (f *fleet) secrets() error {
	from := filepath.Join(f.Dir(), "secrets")
	files, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("read secrets: %w", err)
	}
	var errs []error
	for _, file := range files {
		to := secretPath(file.Name())
		if to == "" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, file.Name()))
		path := filepath.Join(f.operator.Fleet, "secrets", to)
		errs = append(errs, err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600))
	}
	ticket := make([]byte, 32)
	rand.Read(ticket) // never fails
	errs = append(errs, os.WriteFile(f.keyFile("ticket"), []byte(base64.StdEncoding.EncodeToString(ticket)+"\n"), 0o600))
	return errors.Join(errs...)
}

// secretPath is where a secret of the lab is in the operator's folder; empty: it is for
// no node.
func secretPath(name string) string {
	for _, own := range []string{"node", "bgp"} {
		if node, ok := strings.CutPrefix(name, own+"-"); ok {
			return filepath.Join("nodes", strings.TrimSuffix(node, ".key"), own+".key")
		}
	}
	if name == "ca.crt" {
		return ""
	}
	return filepath.Join("fleet", name)
}

// inCommon is what two parts have alike.
func inCommon(a, b tree) tree {
	both := tree{}
	for key, one := range a {
		other, ok := b[key]
		oneTree, isTree := one.(tree)
		otherTree, areTrees := other.(tree)
		switch {
		case isTree && areTrees:
			both[key] = inCommon(oneTree, otherTree)
		case ok && reflect.DeepEqual(one, other):
			both[key] = one
		}
	}
	return both
}

// without is what a part has beside what it has in common with others.
func without(all, common tree) tree {
	rest := tree{}
	for key, value := range all {
		commonTree, isTree := common[key].(tree)
		if isTree {
			if below := without(value.(tree), commonTree); len(below) > 0 {
				rest[key] = below
			}
		} else if _, ok := common[key]; !ok {
			rest[key] = value
		}
	}
	return rest
}

func TestInCommon(t *testing.T) {
	a := tree{"x": 1, "own": "a", "deep": tree{"y": 2, "z": []any{1}}}
	b := tree{"x": 1, "deep": tree{"y": 2, "z": []any{2}}, "bgp": tree{}}
	common := inCommon(a, b)
	if d := cmp.Diff(tree{"x": 1, "deep": tree{"y": 2}}, common); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(tree{"own": "a", "deep": tree{"z": []any{1}}}, without(a, common)); d != "" {
		t.Error(d)
	}
}

func TestSecretPath(t *testing.T) {
	for name, want := range map[string]string{
		"node-a1.key": "nodes/a1/node.key", "bgp-a1.key": "nodes/a1/bgp.key", "gossip.key": "fleet/gossip.key",
		"www.example.net.crt": "fleet/www.example.net.crt", "ca.crt": "",
	} {
		if got := secretPath(name); got != want {
			t.Errorf("%s is at %q, want %q", name, got, want)
		}
	}
}

func TestNodeConfig(t *testing.T) {
	in := `node:
  name: a1
  key_file: /tmp/lab/secrets/node-a1.key
  run_dir: /tmp/lab/a1/run
  bgp:
    lease: 5s
    peers: [{password_file: /tmp/lab/secrets/bgp-a1.key}]
fleet:
  ring_seed_file: /tmp/lab/secrets/ring.seed
  health:
      - {name: proxy, kind: process, pid_file: /tmp/lab/a1/run/edgeproxy.pid, interval: 300ms, timeout: 300ms, rise: 2, fall: 2}
`
	want := `node:
  name: a1
  key_file: /etc/edge/secrets/node.key
  bgp:
    lease: 15s
    peers: [{password_file: /etc/edge/secrets/bgp.key}]
fleet:
  ring_seed_file: /etc/edge/secrets/ring.seed
  health:
    node_check: {interval: 2s, timeout: 2s, fall: 3}
      - {name: proxy, kind: process, pid_file: /run/edge/edgeproxy.pid, interval: 3s, timeout: 3s, rise: 1, fall: 3}
`
	if d := cmp.Diff(want, nodeConfig(in, "/tmp/lab", "a1")); d != "" {
		t.Error(d)
	}
}

// secretLines are the lines of the operator's secrets that must be told nobody, by the
// file that they are of. What frames a key in PEM, and a certificate, anybody may know.
func (f *fleet) secretLines() (map[string][]string, error) {
	lines := map[string][]string{}
	root := filepath.Join(f.operator.Fleet, "secrets")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == ".crt" {
			return err
		}
		b, err := os.ReadFile(path)
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); len(line) >= 16 && !strings.HasPrefix(line, "-----") {
				lines[path] = append(lines[path], line)
			}
		}
		return err
	})
	if err == nil && len(lines) == 0 {
		err = errors.New("there are no secrets")
	}
	return lines, err
}

// rememberSecrets keeps what is secret now: it is to be told by nothing, also when it is
// no secret of the fleet any more.
func (f *fleet) rememberSecrets() error {
	now, err := f.secretLines()
	for path, lines := range now {
		for _, line := range lines {
			if !slices.Contains(f.secretsSeen[path], line) {
				f.secretsSeen[path] = append(f.secretsSeen[path], line)
			}
		}
	}
	return err
}

// tells is the file of a secret that a text has in it; empty: it has none.
func tells(text string, secrets map[string][]string) string {
	for path, lines := range secrets {
		for _, line := range lines {
			if strings.Contains(text, line) {
				return path
			}
		}
	}
	return ""
}

func TestTells(t *testing.T) {
	secrets := map[string][]string{"gossip.key": {"MDEyMzQ1Njc4OWFiY2RlZg=="}}
	if got := tells("+MDEyMzQ1Njc4OWFiY2RlZg==\n", secrets); got != "gossip.key" {
		t.Errorf("a secret in a diff is of %q", got)
	}
	if got := tells("nothing of it", secrets); got != "" {
		t.Errorf("%q is told by a text that has none", got)
	}
}
