package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/image/boot"
	"github.com/catchment-dev/edge/image/firewall"
	"github.com/catchment-dev/edge/image/slot"
)

// hookFolder is where an operator has checks of his own.
const hookFolder = "/etc/edge/health.d"

// leastFree is what /var must have, in bytes: state of a few files.
const leastFree = 1 << 20

// checks are what a good boot has, in the order in which they tell the most: what
// fails because of another is behind it.
func (h *healthRun) checks(f boot.Facts) []boot.Check {
	before := f.Upgrade.OnTrial() && f.Upgrade.Version == f.Version && f.Upgrade.Configured
	out := []boot.Check{
		{Name: "version", Run: func(context.Context) error { return h.box.checkVersion(f) }},
		{Name: boot.Disk, Run: func(context.Context) error { return h.box.checkDisk() }},
		{Name: "configuration", Run: func(context.Context) error { return h.box.checkSetup(before) }},
		{Name: "sshd", Run: h.box.checkSSH},
	}
	if s, err := h.box.setup(); err != nil || s.State != boot.SetupUnconfigured {
		out = append(out,
			boot.Check{Name: "firewall", Run: func(context.Context) error { return h.box.checkFirewall() }},
			boot.Check{Name: "edged", Run: h.ask(func(st edge.SystemStatus) error { return boot.Edged(st, h.now()) })},
			boot.Check{Name: "xdp", Run: h.ask(h.checkXDP)},
			boot.Check{Name: "bgp", Run: h.ask(h.checkBGP)},
			boot.Check{Name: "edgeproxy", Run: h.checkProxy},
		)
	}
	hooks, err := boot.Hooks(h.box.path(hookFolder))
	if err != nil {
		out = append(out, boot.Check{Name: "hooks", Run: func(context.Context) error { return err }})
	}
	return append(out, hooks...)
}

// checkVersion: the UKI, whose command line the initrd has read, and the root must
// be of one version, and the slot the one that was written.
func (b *box) checkVersion(f boot.Facts) error {
	if root := b.osRelease("IMAGE_VERSION"); root != f.Version {
		return fmt.Errorf("the UKI is of version %s, and its root says %q", f.Version, root)
	}
	if u := f.Upgrade; u.OnTrial() && u.Version == f.Version && u.Slot != f.Slot {
		return fmt.Errorf("version %s was written to slot %s, and runs from slot %s", f.Version, u.Slot, f.Slot)
	}
	return nil
}

// checkDisk: /var takes a file, and more.
func (b *box) checkDisk() error {
	dir := b.path(slot.StateDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("/var cannot be written: %w", err)
	}
	if err := probe(dir); err != nil {
		return fmt.Errorf("/var cannot be written: %w", err)
	}
	free, err := slot.FreeSpace(dir)
	if err != nil {
		return err
	}
	if free < leastFree {
		return fmt.Errorf("/var has %s free, at least %s are needed", slot.Size(free), slot.Size(leastFree))
	}
	return nil
}

// probe writes a block to a file without a name: it is gone however this ends, and
// two of us do not meet.
func probe(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), dir)
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close())
}

func (b *box) checkSetup(before bool) error {
	s, err := b.setup()
	if err != nil {
		return err
	}
	if s.State == "" {
		return errors.New("edge-setup has not said anything yet")
	}
	return boot.Configuration(s, before)
}

// checkFirewall asks the kernel, not the unit: a box without its rules serves as well
// as any, and is open to everybody.
func (b *box) checkFirewall() error {
	c, err := edge.Load(b.path(edgeConfig))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if !c.Local.HostFirewall.On(true) {
		return nil
	}
	switch there, err := b.firewall(); {
	case err != nil:
		return err
	case !there:
		return fmt.Errorf("the packet filter has no table inet %s: systemctl status edge-firewall says why", firewall.Table)
	}
	return nil
}

// ask hands the status of edged to a check.
func (h *healthRun) ask(check func(edge.SystemStatus) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var st edge.SystemStatus
		if err := h.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
			return err
		}
		return check(st)
	}
}

// checkXDP asks the kernel, not edged.
func (h *healthRun) checkXDP(st edge.SystemStatus) error {
	if len(st.Forwarder.Interfaces) == 0 {
		return errors.New("edged has attached the forwarder to no interface")
	}
	var errs []error
	for _, name := range st.Forwarder.Interfaces {
		errs = append(errs, h.box.xdp(name))
	}
	return errors.Join(errs...)
}

func xdpAttached(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("look at %s: %w", link, err)
	}
	if x := l.Attrs().Xdp; x == nil || !x.Attached {
		return fmt.Errorf("%s has no XDP program", link)
	}
	return nil
}

func (h *healthRun) checkBGP(st edge.SystemStatus) error {
	c, err := edge.Load(h.box.path(edgeConfig))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	return boot.BGPOf(c, st)
}

// checkProxy: edgeproxy answers, where a service needs it: its own socket, and a request
// on its health port, as the other nodes send it. It does so while the node is drained.
func (h *healthRun) checkProxy(ctx context.Context) error {
	c, err := edge.Load(h.box.path(edgeConfig))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if !slices.ContainsFunc(c.Fleet.Services, func(s edge.Service) bool { return s.Proxied }) {
		return nil
	}
	p := socket.NewClient(h.box.path(filepath.Join(c.Local.RunDir, "edgeproxy.sock")))
	defer p.Close()
	var st edge.ProxyState
	if err := p.Call(ctx, "GET", "/v1/state", nil, &st); err != nil {
		return fmt.Errorf("edgeproxy does not answer: %w", err)
	}
	var errs []error
	for _, at := range healthPorts(c) {
		if err := h.box.get(ctx, "http://"+at.String()+"/healthz"); err != nil {
			errs = append(errs, fmt.Errorf("edgeproxy does not answer on its health port: %w", err))
		}
	}
	return errors.Join(errs...)
}

// healthPorts is where the edgeproxy of this node answers the other nodes.
func healthPorts(c *edge.Config) (out []netip.AddrPort) {
	for _, n := range c.Fleet.Nodes {
		for _, a := range []netip.Addr{n.Addr4, n.Addr6} {
			if n.ID == c.Local.ID && a.IsValid() && n.HealthPort != 0 {
				out = append(out, netip.AddrPortFrom(a, n.HealthPort))
			}
		}
	}
	return out
}

// healthAnswer is how long an answer of the health port may take.
const healthAnswer = 5 * time.Second

// get wants 200 for a request over a connection of its own.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, healthAnswer)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Close = true
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r) // no proxy of the environment
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return nil
}

// checkSSH: something that speaks SSH listens on its port, at whatever address.
func (b *box) checkSSH(ctx context.Context) error {
	var at []netip.AddrPort
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(b.path(name))
		if err != nil {
			continue // no IPv6, perhaps
		}
		at = append(at, boot.Listeners(f, b.sshPort)...)
		f.Close()
	}
	if len(at) == 0 {
		return fmt.Errorf("nothing listens on TCP port %d", b.sshPort)
	}
	return greets(ctx, at[0])
}

// greets says why there is no greeting of SSH (RFC 4253 section 4.2).
func greets(ctx context.Context, at netip.AddrPort) error {
	if at.Addr().IsUnspecified() {
		local := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() {
			local = netip.IPv6Loopback()
		}
		at = netip.AddrPortFrom(local, at.Port())
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if end, ok := ctx.Deadline(); ok {
		c.SetReadDeadline(end)
	}
	text, err := bufio.NewReader(io.LimitReader(c, 255)).ReadString('\n')
	switch {
	case strings.HasPrefix(text, "SSH-"):
		return nil
	case err != nil && text == "":
		return fmt.Errorf("what listens on %s does not greet as sshd does: %w", at, err)
	}
	return fmt.Errorf("what listens on %s does not greet as sshd does: %.40q", at, text)
}
