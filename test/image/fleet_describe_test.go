package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"
)

// tree is a part of a configuration.
type tree = map[string]any

// describe writes what the operator has of the fleet: fleet.yaml, the secrets, and the
// other parts of the configurations of appliances.
func (f *fleet) describe() error {
	all := tree{
		"kind": "image", "connection": tree{"user": "root"},
		"vars": tree{"edge_config_files": filepath.Join(f.operator.Fleet, "files")},
	}
	var sites []any
	for _, n := range f.nodes {
		own, shared, member, err := n.described()
		if err != nil {
			return err
		}
		member["host"], member["node"] = n.Addr4, own
		delete(member, "site") // where it stands says so
		// The key is made on the box, and its public half is fetched from there.
		delete(member, "public_key")
		delete(shared, "sites")
		delete(shared, "nodes")
		all["fleet"] = shared
		sites = append(sites, tree{"name": n.Site, "region": "eu", "capacity": 1000, "nodes": []any{member}})
	}
	all["sites"] = sites
	text, err := yaml.Marshal(all)
	if err != nil {
		return fmt.Errorf("write fleet.yaml: %w", err)
	}
	files := map[string]string{"fleet.yaml": "plugin: catchment.edge.fleet\n" + string(text)}
	secrets, err := f.secrets()
	if err != nil {
		return err
	}
	maps.Copy(files, secrets)
	maps.Copy(files, f.files())
	return f.lay(files)
}

// described are the sections node and fleet that the lab would give the machine, with
// the paths of the image, and its entry among the nodes.
func (n *node) described() (own, shared, member tree, err error) {
	text, err := n.Config()
	if err != nil {
		return nil, nil, nil, err
	}
	var c struct {
		Node  tree
		Fleet tree
	}
	if err := yaml.Unmarshal([]byte(imageConfig(text, n.fleet.Dir(), n.Name())), &c); err != nil {
		return nil, nil, nil, fmt.Errorf("read configuration of %s: %w", n.Name(), err)
	}
	delete(c.Node, "name")
	for _, m := range c.Fleet["nodes"].([]any) {
		if m.(tree)["name"] == n.Name() {
			member = m.(tree)
		}
	}
	if member == nil {
		return nil, nil, nil, fmt.Errorf("%s is not among the nodes of its configuration", n.Name())
	}
	return c.Node, c.Fleet, member, nil
}

// secrets are those of the lab but for the keys of the nodes, by their paths.
func (f *fleet) secrets() (map[string]string, error) {
	out, from := map[string]string{}, filepath.Join(f.Dir(), "secrets")
	return out, fs.WalkDir(os.DirFS(from), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "ca.crt" || strings.HasPrefix(name, "node-") {
			return err
		}
		to := "fleet"
		if of, ok := strings.CutPrefix(name, "bgp-"); ok {
			to = "nodes/" + strings.TrimSuffix(of, ".key")
		}
		b, err := os.ReadFile(filepath.Join(from, name))
		out[filepath.Join("secrets", to, name)] = string(b)
		return err
	})
}

func (f *fleet) files() map[string]string {
	out := map[string]string{"files/fleet/authorized_keys": f.operator.Public}
	for _, n := range f.nodes {
		out["files/nodes/"+n.Name()+"/hostname"] = n.Name() + "\n"
		out["files/nodes/"+n.Name()+"/network/10-uplink.network"] = networkOf(n.Box, n.mac(), n.gateway4(), n.gateway6())
	}
	return out
}

// lay writes files below the folder of the fleet.
func (f *fleet) lay(files map[string]string) error {
	var errs []error
	for name, text := range files {
		path := filepath.Join(f.operator.Fleet, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
	}
	return errors.Join(errs...)
}
