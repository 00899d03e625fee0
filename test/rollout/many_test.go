package rollout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/test/lab"
)

// perSite is how many boxes a site of a large fleet has.
const perSite = 5

// crowd is a fleet of boxes that have sshd, the package and a configuration, and no
// daemons: what Ansible has to do is the same.
type crowd struct {
	*fleet
	boxes []*lab.Client
	addrs map[string]string
}

// TestManyBoxes prints how long it takes to find that nothing is to be done: on fifty
// boxes in the long form, each with a network, a root and an sshd of its own.
func TestManyBoxes(t *testing.T) {
	count := 3
	if *long {
		count = 50
	}
	ctx := limit(t, 15*time.Minute)
	c := newCrowd(ctx, t, count)
	c.goesUp(ctx, t, []part{
		{"the collection is built and installed", func(ctx context.Context, _ *testing.T, _ *fleet) error { return c.operator.Install(ctx, *collection) }, false},
		{"new boxes are set up", func(ctx context.Context, t *testing.T, _ *fleet) error { return c.converges(ctx, t, count) }, false},
		{"nothing is to be done", func(ctx context.Context, t *testing.T, _ *fleet) error { return c.converges(ctx, t, 0) }, false},
		{"nothing is to be done, as --check says too", func(ctx context.Context, t *testing.T, _ *fleet) error { return c.converges(ctx, t, 0, "--check") }, false},
	})
}

func newCrowd(ctx context.Context, t *testing.T, count int) *crowd {
	t.Helper()
	topology := lab.Topology{Routers: []lab.RouterSpec{{Name: "r-a", Kind: lab.BIRD}}, Clients: []lab.ClientSpec{{Name: operatorName, Router: "r-a"}}}
	for i := range count {
		topology.Clients = append(topology.Clients, lab.ClientSpec{Name: fmt.Sprintf("box%02d", i+1), Router: "r-a"})
	}
	l, err := lab.New(ctx, topology)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{fleet: &fleet{Lab: l, t: t, secretsSeen: map[string][]string{}}, addrs: map[string]string{}}
	t.Cleanup(c.close)
	base := filepath.Join(l.Dir(), "base")
	var g errgroup.Group
	g.Go(func() error { return baseRoot(ctx, base) })
	g.Go(func() (err error) {
		c.debs, err = packages(ctx, filepath.Join(l.Dir(), "packages"))
		return err
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if c.operator, err = newOperator(ctx, l); err != nil {
		t.Fatal(err)
	}
	for _, spec := range topology.Clients[1:] {
		if err := c.add(ctx, l.Clients[spec.Name], base); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.describe(); err != nil {
		t.Fatal(err)
	}
	return c
}

// add has a host be a box that the operator reaches.
func (c *crowd) add(ctx context.Context, h *lab.Client, base string) error {
	dir := filepath.Join(c.Dir(), "box-"+h.Name())
	key := filepath.Join(dir, "upper/etc/ssh/ssh_host_ed25519_key")
	authorized := filepath.Join(dir, "upper/root/.ssh/authorized_keys")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(key), 0o755), os.MkdirAll(filepath.Dir(authorized), 0o700), os.WriteFile(authorized, []byte(c.operator.Public), 0o600),
	); err != nil {
		return err
	}
	if _, err := command(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", h.Name(), "-f", key); err != nil {
		return err
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return err
	}
	if c.addrs[h.Name()], err = address4(h.Host); err != nil {
		return err
	}
	script, err := filepath.Abs("testdata/node.sh")
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "console.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(script, base, dir, h.Name(), "/bin/sh", "-c", "mkdir /run/sshd && exec /usr/sbin/sshd -D -e")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP}
	if _, err := h.Start(cmd); err != nil {
		return err
	}
	c.boxes = append(c.boxes, h)
	return c.operator.Knows(c.addrs[h.Name()], string(public))
}

// address4 is the address of a host that the others know it by.
func address4(h *lab.Host) (addr string, err error) {
	err = h.Do(func() error {
		all, err := net.InterfaceAddrs()
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
				addr = n.IP.String()
			}
		}
		return err
	})
	if err == nil && addr == "" {
		err = fmt.Errorf("%s has no address", h.Name())
	}
	return addr, err
}

// describe writes fleet.yaml, five boxes a site, and the secrets that it names.
func (c *crowd) describe() error {
	var sites []any
	for i, b := range c.boxes {
		addr := c.addrs[b.Name()]
		node := tree{
			"name": b.Name(), "host": addr, "address4": addr, "gossip": addr + ":7946",
			"node": tree{"bgp": tree{"peers": []any{tree{"name": "r-a", "address": "192.0.2.1", "asn": 65001}}}},
		}
		if i%perSite == 0 {
			sites = append(sites, tree{"name": fmt.Sprint("s", i/perSite+1), "region": "eu", "capacity": 20000, "nodes": []any{}})
		}
		site := sites[i/perSite].(tree)
		site["nodes"] = append(site["nodes"].([]any), node)
	}
	prefix := tree{"prefix": lab.Prefix4.String()}
	if len(sites) < 2 {
		prefix["min_sites"] = 0
	}
	secrets := filepath.Join(c.operator.Fleet, "secrets/fleet")
	return errors.Join(c.write(tree{
		"plugin": "catchment.edge.fleet", "kind": "deb", "connection": tree{"user": "root"},
		"vars": tree{"edge_host_package": c.debs[oldVersion], "edge_host_services": false, "edge_config_start": false, "edge_config_waves": []any{len(c.boxes)}},
		"node": tree{"key_file": secretsDir + "/node.key", "forwarder": tree{"interfaces": []any{"eth0"}}, "bgp": tree{"asn": 64512}},
		"fleet": tree{
			"ring_seed_file": secretsDir + "/ring.seed", "guard": tree{"key_file": secretsDir + "/gossip.key"}, "prefixes": []any{prefix},
			"services": []any{tree{"name": "dns", "vip": lab.VIP4.String(), "port": 53, "protocol": "udp", "backends": []any{tree{"name": "d1", "address": "192.0.2.20"}}}},
		},
		"sites": sites,
	}), os.MkdirAll(secrets, 0o700),
		os.WriteFile(filepath.Join(secrets, "gossip.key"), []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o600),
		os.WriteFile(filepath.Join(secrets, "ring.seed"), []byte("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n"), 0o600))
}

// converges runs the playbook, which is to change so many boxes.
func (c *crowd) converges(ctx context.Context, t *testing.T, changed int, args ...string) error {
	got, err := c.play(ctx, "site", nil, args...)
	if err != nil {
		return err
	}
	if got.Failed || len(got.Changed()) != changed {
		return fmt.Errorf("it has changed %d of %d boxes\n%s", len(got.Changed()), len(c.boxes), got.Text)
	}
	t.Logf("%5.1f s for %d boxes, %.2f s each", got.Took.Seconds(), len(c.boxes), got.Took.Seconds()/float64(len(c.boxes)))
	return nil
}
