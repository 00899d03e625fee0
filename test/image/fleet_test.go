package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/operator"
	"github.com/catchment-dev/edge/test/vm"
)

// fleet is a small internet whose two sites are machines that were made from the image,
// and an operator who runs them by Ansible.
type fleet struct {
	*lab.Lab
	t        *testing.T
	built    built
	qemu     string
	operator *operator.Operator
	nodes    []*node
	// server has the next version.
	server *server
}

// node is a machine of the fleet, in the place of a box of the lab.
type node struct {
	*lab.Box
	fleet *fleet
	// site counts from 1, and is in the addresses.
	site    int
	spec    vm.Spec
	machine *vm.Machine
}

const operatorName = "operator"

func newFleet(ctx context.Context, t *testing.T, b built) *fleet {
	t.Helper()
	l, err := lab.New(ctx, lab.Topology{
		Routers: []lab.RouterSpec{{Name: routerName, Kind: lab.BIRD}, {Name: otherName, Kind: lab.BIRD}},
		Cores:   []lab.CoreSpec{{A: routerName, B: otherName, Delay: 5 * time.Millisecond}},
		Sites: []lab.SiteSpec{
			{Name: "a", Router: routerName, Boxes: []lab.BoxSpec{{Name: boxName, MD5: true}}},
			{Name: "b", Router: otherName, Boxes: []lab.BoxSpec{{Name: otherBox}}},
		},
		Regions: []lab.RegionSpec{{Name: "east", Router: routerName, Origins: 1, Capacity: 200}},
		// The operator is no client, but attached like one.
		Clients:    []lab.ClientSpec{{Name: clientName, Router: routerName}, {Name: operatorName, Router: otherName}},
		ProbeEvery: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{Lab: l, t: t, built: b, qemu: filepath.Join(l.Dir(), "machine", "qemu")}
	t.Cleanup(f.close)
	if err := os.Mkdir(filepath.Dir(f.qemu), 0o755); err != nil {
		t.Fatal(err)
	}
	f.operator, err = operator.New(ctx, l.Clients[operatorName].Host, filepath.Join(l.Dir(), "operator"), false,
		"KexAlgorithms=curve25519-sha256") // the quickest: each handshake takes an emulated machine seconds
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{boxName, otherBox} {
		n := &node{Box: l.Boxes[name], fleet: f, site: i + 1}
		if err := n.furnish(ctx); err != nil {
			t.Fatal(err)
		}
		f.nodes = append(f.nodes, n)
	}
	if err := f.describe(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) close() {
	if *keep != "" {
		f.keepLogs()
	}
	if f.server != nil {
		f.server.close()
	}
	if err := f.Close(); err != nil {
		f.t.Error(err)
	}
	for _, n := range f.nodes {
		n.spec.TAP.Close()
	}
}

// keepLogs copies the consoles and what Ansible has said out of the lab's folder.
func (f *fleet) keepLogs() {
	if err := os.MkdirAll(*keep, 0o755); err != nil {
		f.t.Error(err)
	}
	logs, _ := filepath.Glob(filepath.Join(f.operator.Home, "log-*"))
	consoles, _ := filepath.Glob(filepath.Join(f.Dir(), "vm-*", "console.log"))
	for _, log := range append(logs, consoles...) {
		name, _ := filepath.Rel(f.Dir(), log)
		if err := copyFile(filepath.Join(*keep, "fleet-"+strings.ReplaceAll(name, "/", "-")), log); err != nil {
			f.t.Error(err)
		}
	}
}

// each does something on all nodes at once.
func (f *fleet) each(do func(*node) error) error {
	errs := make([]error, len(f.nodes))
	var g errgroup.Group
	for i, n := range f.nodes {
		g.Go(func() error {
			errs[i] = do(n)
			return nil
		})
	}
	return errors.Join(g.Wait(), errors.Join(errs...))
}

func (n *node) mac() string      { return fmt.Sprintf("52:54:00:12:34:%02x", n.site) }
func (n *node) gateway4() string { return fmt.Sprintf("10.%d.0.1", n.site) }
func (n *node) gateway6() string { return fmt.Sprintf("fd00:%d::1", n.site) }

// router is where the machine runs.
func (n *node) router() *lab.Router { return n.fleet.Routers[n.Router] }

// furnish makes a new machine: the image on a disk of its own, and of its owner nothing
// but a key of ssh, as a cloud gives it. Its address it gets by DHCP.
func (n *node) furnish(ctx context.Context) error {
	dir := filepath.Join(n.fleet.Dir(), "vm-"+n.Name())
	n.spec = vm.Spec{
		Dir: dir, Disk: filepath.Join(dir, "disk.raw"), Vars: filepath.Join(dir, "vars.fd"),
		Program: n.fleet.qemu, CPU: emulated, CPUs: 1, MAC: n.mac(), MTU: uplinkMTU,
		Credentials: map[string]string{"edge.authorized_keys": n.fleet.operator.Public},
	}
	var err error
	if n.spec.TAP, err = vm.ReplaceLink(n.router().Host, n.Name()); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of machine: %w", err)
	}
	return errors.Join(vm.Copy(ctx, n.spec.Disk, n.fleet.built.raw), vm.Grow(n.spec.Disk, diskSize), vm.Copy(ctx, n.spec.Vars, vm.FirmwareVars), n.serveDHCP())
}

// serveDHCP gives the machine the address that it keeps.
func (n *node) serveDHCP() error {
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--no-ping", "--pid-file=",
		"--interface="+n.Name(), "--except-interface=lo", "--bind-interfaces", "--dhcp-leasefile="+filepath.Join(n.spec.Dir, "leases"),
		"--dhcp-range="+n.Addr4+",static,255.255.255.192", "--dhcp-host="+n.mac()+","+n.Addr4, "--log-facility="+filepath.Join(n.spec.Dir, "dhcp.log"))
	_, err := n.router().Host.Start(cmd)
	return err
}

// boot starts the machine and waits until the operator reaches it.
func (n *node) boot(ctx context.Context) (err error) {
	if n.machine, err = vm.Start(ctx, n.router().Host, n.spec); err != nil {
		return err
	}
	return lab.UntilEvery(ctx, time.Second, "ssh to "+n.Name(), func() error {
		_, err := n.run(ctx, "true")
		return err
	})
}

// run runs a line of the machine's shell.
func (n *node) run(ctx context.Context, line string) (string, error) {
	ctx, cancel := within(ctx, reachLimit)
	defer cancel()
	out, err := n.fleet.operator.SSH(ctx, n.Addr4, line)
	return strings.TrimSpace(out), err
}

// nextVersion makes the version that the fleet is rolled to, and serves it.
func (f *fleet) nextVersion(ctx context.Context) (err error) {
	p := &payloads{dir: filepath.Join(f.Dir(), "payloads")}
	if err := remake(ctx, f.built, p.dir, []string{"WHOLE=yes"}, goodVersion); err != nil {
		return err
	}
	if f.server, err = p.serve(f.Routers[routerName].Host, gateway, f.Dir()); err != nil {
		return err
	}
	return copyFile(filepath.Join(f.operator.Fleet, "secrets", "fleet", "updates.crt"), f.server.cert)
}

// announced waits until the routers lead both prefixes to the machines at them.
func (f *fleet) announced(ctx context.Context) error {
	return f.each(func(n *node) error {
		return errors.Join(n.router().Await(ctx, lab.Prefix4, n.Name()), n.router().Await(ctx, lab.Prefix6, n.Name()))
	})
}

// autopsy is what the machines say of themselves, for the message of a failure.
func (f *fleet) autopsy() string {
	var b strings.Builder
	ctx, cancel := within(context.Background(), 2*reachLimit)
	defer cancel()
	for _, n := range f.nodes {
		out, err := n.run(ctx, "edgectl status; edgectl config show; edgectl slots; systemctl --failed --no-legend --plain; journalctl -b -p warning --no-pager | tail -30; journalctl -b --no-pager -u 'edge*' -o cat | tail -30")
		fmt.Fprintf(&b, "\n--- %s says (%v):\n%s\n", n.Name(), err, out)
		if n.machine != nil {
			fmt.Fprintf(&b, "its console ends with:\n%s\n", n.machine.Console.Tail(20))
		}
	}
	return b.String() + f.Logs(10)
}
