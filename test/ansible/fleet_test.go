package ansible

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFleet is the collection on an operator's desk; no box is asked.
func TestFleet(t *testing.T) {
	d := newDesk(t)
	for name, test := range map[string]func(*testing.T, *desk){
		"Units": testFleetUnits, "Collection": testFleetCollection, "Inventory": testFleetInventory, "Mistakes": testFleetMistakes, "Checked": testFleetChecked,
		"Lint": testFleetLint,
	} {
		t.Run(name, func(t *testing.T) {
			own := *d
			own.t = t
			test(t, &own)
		})
	}
}

// testFleetUnits runs the unit tests of the collection.
func testFleetUnits(t *testing.T, d *desk) {
	out, errs, code := d.run("/usr/bin/python3", "-m", "unittest", "discover", "-s", filepath.Join(d.source, "tests/unit"))
	if code != 0 || !regexp.MustCompile(`Ran [1-9][0-9]+ tests`).MatchString(errs) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// testFleetCollection builds the collection, installs it as an operator does, and reads
// the documentation of all that is in it.
func testFleetCollection(t *testing.T, d *desk) {
	version, err := os.ReadFile("../../image/VERSION")
	must(t, err)
	if galaxy, err := os.ReadFile(filepath.Join(d.source, "galaxy.yml")); err != nil || !strings.Contains(string(galaxy), "\nversion: "+strings.TrimSpace(string(version))+"\n") {
		t.Errorf("galaxy.yml has another version than image/VERSION, %s (%v)", version, err)
	}
	tarball := "catchment-edge-" + strings.TrimSpace(string(version)) + ".tar.gz"
	installed := filepath.Join(d.dir, "installed")
	for _, args := range [][]string{
		{"collection", "build", d.source, "--output-path", d.dir},
		{"collection", "install", tarball, "--collections-path", installed, "--offline"},
	} {
		if out, errs, code := d.run("ansible-galaxy", args...); code != 0 {
			t.Fatalf("ansible-galaxy %v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	d.env = append(d.env, "ANSIBLE_COLLECTIONS_PATH="+installed)
	if _, err := os.Stat(filepath.Join(installed, "ansible_collections/catchment/edge/tests")); err == nil {
		t.Error("the tests are in the package")
	}
	for kind, folder := range map[string]string{"module": "modules", "inventory": "inventory"} {
		files, err := filepath.Glob(filepath.Join(d.source, "plugins", folder, "*.py"))
		must(t, err)
		if len(files) == 0 {
			t.Errorf("there is no plugin in %s", folder)
		}
		for _, f := range files {
			name := "catchment.edge." + strings.TrimSuffix(filepath.Base(f), ".py")
			out, errs, code := d.run("ansible-doc", "--type", kind, "--json", name)
			var doc map[string]struct {
				Doc      map[string]any `json:"doc"`
				Examples string         `json:"examples"`
				Return   map[string]any `json:"return"`
			}
			if code != 0 || json.Unmarshal([]byte(out), &doc) != nil {
				t.Errorf("ansible-doc %s: exit code %d\n%s%s", name, code, out, errs)
				continue
			}
			if got := doc[name]; len(got.Doc) == 0 || got.Examples == "" || kind == "module" && len(got.Return) == 0 {
				t.Errorf("%s is not wholly documented", name)
			}
		}
	}
}

// testFleetLint has ansible-lint judge the collection by its profile for production.
func testFleetLint(t *testing.T, d *desk) {
	at := filepath.Join(d.dir, "lint")
	tree := filepath.Join(at, "ansible_collections/catchment/edge")
	must(t, os.CopyFS(tree, os.DirFS(d.source)))
	d.env = append(d.env, "ANSIBLE_COLLECTIONS_PATH="+at, "NO_COLOR=1")
	d.dir = tree
	out, errs, code := d.run("ansible-lint", "--offline", "--nocolor", "-p")
	if code != 0 || !strings.Contains(out+errs, "Passed with production profile: 0 failure(s), 0 warning(s)") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// testFleetInventory: what ansible makes of the example.
func testFleetInventory(t *testing.T, d *desk) {
	out, errs, code := d.run("ansible-inventory", "--list")
	var got struct {
		Meta struct {
			Hostvars map[string]map[string]any `json:"hostvars"`
		} `json:"_meta"`
		Edge   struct{ Hosts []string } `json:"edge"`
		SiteA  struct{ Hosts []string } `json:"edge_site_a"`
		Europe struct{ Hosts []string } `json:"edge_region_eu"`
		Image  struct{ Hosts []string } `json:"edge_kind_image"`
		Deb    struct{ Hosts []string } `json:"edge_kind_deb"`
		Router struct{ Hosts []string } `json:"edge_routers"`
	}
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, errs)
	}
	for _, g := range []struct {
		name      string
		got, want []string
	}{
		{"edge", got.Edge.Hosts, []string{"a1", "a2", "b1", "c1"}}, {"edge_site_a", got.SiteA.Hosts, []string{"a1", "a2"}},
		{"edge_region_eu", got.Europe.Hosts, []string{"a1", "a2", "b1"}}, {"edge_kind_image", got.Image.Hosts, []string{"a1", "a2", "c1"}},
		{"edge_kind_deb", got.Deb.Hosts, []string{"b1"}}, {"edge_routers", got.Router.Hosts, []string{"r-a", "r-b"}},
	} {
		if !slices.Equal(g.got, g.want) {
			t.Errorf("group %s has %v, want %v", g.name, g.got, g.want)
		}
	}
	vars := got.Meta.Hostvars["b1"]
	text, err := json.Marshal(vars)
	must(t, err)
	for _, want := range []string{`"edge_node":`, `"edge_fleet_dir":`, `"edge_secrets_dir":`, `"ansible_port":2222`, `"missing_keys":[]`, `"max_planned":1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the variables of b1 lack %s", want)
		}
	}
	if graph, _, code := d.run("ansible-inventory", "--graph"); code != 0 || !strings.Contains(graph, "|--@edge_site_b:\n") {
		t.Errorf("exit code %d\n%s", code, graph)
	}
}

// testFleetMistakes: all at once, each with its place, and no playbook runs.
func testFleetMistakes(t *testing.T, d *desk) {
	defer d.edit("capacity: 10000", "capcity: 10000")()
	defer d.edit("daemon: frr", "daemon: quagga")()
	out, errs, code := d.run("ansible-playbook", "catchment.edge.site")
	if code == 0 {
		t.Errorf("a fleet.yaml with mistakes was taken:\n%s", out)
	}
	for _, want := range []string{"fleet.yaml:116:5: sites[2].capcity: a site has no such key; did you mean capacity?\n", `routers[1].daemon: daemon "quagga" is neither bird nor frr`, "it has 2 mistakes"} {
		// ansible breaks the lines of warnings where they are 80 characters long.
		if !strings.Contains(errs, want) && !strings.Contains(strings.Join(strings.Fields(errs), " "), want) {
			t.Errorf("nobody says %q:\n%s", want, errs)
		}
	}
}

// testFleetChecked: edgectl takes the edge.yaml of every node of the example.
func testFleetChecked(t *testing.T, d *desk) {
	script, err := filepath.Abs("testdata/fleet-render.py")
	must(t, err)
	if out, errs, code := d.run("/usr/bin/python3", script, filepath.Join(d.dir, "fleet.yaml"), d.dir); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	for _, node := range []string{"a1", "a2", "b1", "c1"} {
		out, errs, code := d.run(d.edgectl, "check", node+".yaml")
		if code != 0 || !strings.Contains(out, "ok: node "+node+" of 4 nodes, 3 sites, 2 prefixes, 3 services") {
			t.Errorf("%s: exit code %d\n%s%s", node, code, out, errs)
		}
	}
}
