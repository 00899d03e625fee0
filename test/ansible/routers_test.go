package ansible

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// routerFleet is two sites whose routers, BIRD and FRR, know no box until Ansible tells
// them.
type routerFleet struct {
	*controller
	story.Teller
	t *testing.T
}

// TestRouters has the playbook set up the routers' side of the sessions with real boxes.
func TestRouters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	bin := t.TempDir()
	if err := lab.Build(ctx, bin, false); err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(ctx, lab.Topology{
		Routers: []lab.RouterSpec{{Name: "r-a", Kind: lab.BIRD}, {Name: "r-b", Kind: lab.FRR}},
		Cores:   []lab.CoreSpec{{A: "r-a", B: "r-b", Delay: time.Millisecond}},
		Sites: []lab.SiteSpec{
			{Name: "a", Router: "r-a", Boxes: []lab.BoxSpec{{Name: "a1", MD5: true}, {Name: "a2"}}},
			{Name: "b", Router: "r-b", Boxes: []lab.BoxSpec{{Name: "b1", MD5: true}, {Name: "b2"}}},
		},
		Regions: []lab.RegionSpec{{Name: "east", Router: "r-a", Origins: 1, Capacity: 500}},
		Edit:    func(_, yaml string) string { return strings.Replace(yaml, "drain_time: 1s", "drain_time: 3s", 1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	f := &routerFleet{controller: newController(t, t.TempDir()), Teller: story.Teller{Lab: l, Say: t.Logf}, t: t}
	f.env = append(f.env, "ANSIBLE_INVENTORY_ENABLED=catchment.edge.fleet")
	f.inventory = filepath.Join(f.dir, "fleet.yaml")
	if err := errors.Join(f.describe("a1", "a2", "b1", "b2"), f.forget(ctx), l.Start(bin)); err != nil {
		t.Fatal(err)
	}
	goes(ctx, t, l, func(t *testing.T) { f.t, f.Say = t, t.Logf }, []part{
		{"check mode changes nothing", f.checks},
		{"the sessions come up, and the boxes announce", f.setsUp},
		{"a second run changes nothing", f.again},
		{"a drained box is the last that is taken", f.marked},
		{"a box that is taken out of fleet.yaml is forgotten, the other stays", f.takesOut},
		{"a router without boxes is refused", f.refuses},
	})
}

var boxProtocol = regexp.MustCompile(`(?s)\nprotocol bgp 'box-[^']*' from peer \{.*?\n\}\n`)

// forget takes the sessions with boxes from the routers, as New has made them.
func (f *routerFleet) forget(ctx context.Context) error {
	bird := filepath.Join(f.Lab.Dir(), "r-a", "bird.conf")
	text, err := os.ReadFile(bird)
	if err != nil {
		return fmt.Errorf("read bird.conf: %w", err)
	}
	if err := os.WriteFile(bird, boxProtocol.ReplaceAll(text, nil), 0o644); err != nil {
		return err
	}
	if out, err := f.Lab.Routers["r-a"].Ask(ctx, "configure"); err != nil {
		return fmt.Errorf("configure BIRD: %w: %s", err, out)
	}
	frr := f.Lab.Routers["r-b"]
	args := []string{"-c", "configure", "-c", "router bgp"}
	for _, name := range []string{"b1", "b2"} {
		args = append(args, "-c", "no neighbor "+f.Lab.Boxes[name].Addr4)
	}
	out, err := frr.Run(ctx, "vtysh", args...)
	if err != nil {
		return fmt.Errorf("configure FRR: %w: %s", err, out)
	}
	return nil
}

// describe writes fleet.yaml with these boxes, and the passwords that some have.
func (f *routerFleet) describe(names ...string) error {
	peers := map[string][]any{}
	var fleet map[string]any
	for _, name := range names {
		b := f.Lab.Boxes[name]
		text, err := b.Config()
		if err != nil {
			return err
		}
		var c struct {
			Node struct {
				BGP map[string]any `yaml:"bgp"`
			} `yaml:"node"`
			Fleet map[string]any `yaml:"fleet"`
		}
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			return fmt.Errorf("read configuration of %s: %w", name, err)
		}
		fleet = map[string]any{"prefixes": c.Fleet["prefixes"]}
		peer := c.Node.BGP["peers"].([]any)[0].(map[string]any)
		if file, ok := peer["password_file"].(string); ok {
			peer["password_file"] = "/etc/edge/secrets/bgp.key"
			key, err := os.ReadFile(file)
			at := filepath.Join(f.dir, "secrets", "nodes", name, "bgp.key")
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o700), os.WriteFile(at, key, 0o600)); err != nil {
				return err
			}
		}
		peers[b.Site] = append(peers[b.Site], map[string]any{
			"name": name, "host": "127.0.0.1", "address4": b.Addr4, "gossip": b.Addr4 + ":7946", "node": map[string]any{"bgp": c.Node.BGP},
		})
	}
	var sites, routers []any
	for i, site := range []string{"a", "b"} {
		sites = append(sites, map[string]any{"name": site, "nodes": peers[site]})
		routers = append(routers, map[string]any{"name": "r-" + site, "host": "127.0.0.1", "daemon": []string{"bird", "frr"}[i], "asn": 65001 + i, "site": site})
	}
	routers = append(routers, map[string]any{"name": "r-x", "host": "127.0.0.1", "daemon": "bird", "asn": 65009, "site": "a"})
	text, err := yaml.Marshal(map[string]any{"plugin": "catchment.edge.fleet", "fleet": fleet, "sites": sites, "routers": routers})
	if err != nil {
		return err
	}
	return os.WriteFile(f.inventory, text, 0o644)
}

// run runs the playbook in the network of one router.
func (f *routerFleet) run(ctx context.Context, router string, more ...string) (string, error) {
	r := f.Lab.Routers[router]
	out, err := f.playbook(ctx, r.Host, "routers", append([]string{
		"--limit", router, "--diff", "-e", "ansible_connection=local", "-e", "edge_router_frr_save=false",
		"-e", "edge_router_bird_group=root edge_router_frr_group=root",
		"-e", "edge_router_bird_conf=" + filepath.Join(f.Lab.Dir(), router, "bird.conf"), "-e", "edge_router_bird_socket=" + filepath.Join(f.Lab.Dir(), router, "bird.ctl"),
		"-e", "edge_router_bird_file=" + filepath.Join(f.Lab.Dir(), router, "edge.conf"), "-e", "edge_router_frr_file=" + filepath.Join(f.Lab.Dir(), router, "edge.conf"),
	}, more...)...)
	for _, name := range []string{"a1", "b1"} {
		key, readErr := os.ReadFile(filepath.Join(f.dir, "secrets", "nodes", name, "bgp.key"))
		if readErr != nil {
			return out, readErr
		}
		if strings.Contains(out, strings.TrimSpace(string(key))) {
			return out, fmt.Errorf("the password of %s is printed", name)
		}
	}
	return out, err
}

// both runs it for both routers; each is to change so many tasks.
func (f *routerFleet) both(ctx context.Context, changes bool, more ...string) error {
	for _, router := range []string{"r-a", "r-b"} {
		out, err := f.run(ctx, router, more...)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if strings.Contains(out, "changed=0") == changes {
			return fmt.Errorf("%s: changed is not %t\n%s", router, changes, out)
		}
	}
	return nil
}

func (f *routerFleet) checks(ctx context.Context) error {
	if err := f.both(ctx, true, "--check"); err != nil {
		return err
	}
	for _, router := range []string{"r-a", "r-b"} {
		if _, err := os.Stat(filepath.Join(f.Lab.Dir(), router, "edge.conf")); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("check mode has written a file of %s: %w", router, err)
		}
	}
	return nil
}

func (f *routerFleet) setsUp(ctx context.Context) error {
	if err := f.both(ctx, true); err != nil {
		return err
	}
	return f.Settle(ctx)
}

func (f *routerFleet) again(ctx context.Context) error { return f.both(ctx, false) }

// marked: the communities that a box marks itself with come through, and only prefixes
// of the fleet are taken.
func (f *routerFleet) marked(ctx context.Context) error {
	for _, name := range []string{"a2", "b2"} {
		b := f.Lab.Boxes[name]
		if _, err := b.Ctl(ctx, "drain", "--reason", "test"); err != nil {
			return err
		}
		if err := story.Until(ctx, name+" is preferred by nobody", func() error { return f.last(ctx, "r-"+b.Site) }); err != nil {
			return err
		}
		err := story.Until(ctx, name+" is out of its router", func() error { return f.holds(ctx, "r-"+b.Site, name, false) })
		if err != nil {
			return err
		}
		if _, err := b.Ctl(ctx, "undrain"); err != nil {
			return err
		}
	}
	return f.Settle(ctx)
}

// last: a router has a path with the local preference 0.
func (f *routerFleet) last(ctx context.Context, router string) error {
	r := f.Lab.Routers[router]
	out, err := r.Ask(ctx, map[lab.RouterKind]string{lab.BIRD: "show route all", lab.FRR: "show bgp ipv4 unicast " + lab.Prefix4.String()}[r.Kind()])
	if err == nil && !strings.Contains(out, "BGP.local_pref: 0\n") && !strings.Contains(out, "localpref 0,") {
		err = fmt.Errorf("%s has no such path\n%s", router, out)
	}
	return err
}

func (f *routerFleet) holds(ctx context.Context, router, box string, want bool) error {
	out, err := f.Lab.Routers[router].Ask(ctx, map[lab.RouterKind]string{
		lab.BIRD: "show route for " + lab.Prefix4.Addr().String() + " all", lab.FRR: "show bgp ipv4 unicast " + lab.Prefix4.String(),
	}[f.Lab.Routers[router].Kind()])
	if err != nil && !strings.Contains(out, "Network not found") {
		return err
	}
	if has := strings.Contains(out, f.Lab.Boxes[box].Addr4); has != want {
		return fmt.Errorf("%s has a path by %s: %t, want %t\n%s", router, box, has, want, out)
	}
	return nil
}

func (f *routerFleet) takesOut(ctx context.Context) error {
	if err := f.describe("a1", "b1"); err != nil {
		return err
	}
	if err := f.both(ctx, true); err != nil {
		return err
	}
	for _, site := range []string{"a", "b"} {
		err := story.Until(ctx, site+"2 is forgotten", func() error {
			return errors.Join(f.holds(ctx, "r-"+site, site+"2", false), f.holds(ctx, "r-"+site, site+"1", true))
		})
		if err != nil {
			return err
		}
	}
	return f.both(ctx, false)
}

func (f *routerFleet) refuses(ctx context.Context) error {
	r := f.Lab.Routers["r-a"]
	out, err := f.playbook(ctx, r.Host, "routers", "--limit", "r-x", "-e", "ansible_connection=local")
	if err == nil || !strings.Contains(out, "box is to have a peer of the name r-x") {
		return fmt.Errorf("a router without boxes: %w\n%s", err, out)
	}
	return nil
}
