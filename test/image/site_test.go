package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/vm"
)

const (
	// boxName is the machine: a box of the lab whose daemons the lab does not start,
	// at the router routerName.
	boxName, otherBox     = "a1", "b1"
	routerName, otherName = "r-a", "r-b"
	clientName            = "client-a"
	uplinkMAC             = "52:54:00:12:34:05"
	uplinkMTU             = 1600
	// uplinkName is what systemd calls a card in slot 5 of the first bus.
	uplinkName = "enp0s5"
	webURL     = "https://www.example.net/"
)

// site is a small internet with a machine in it.
type site struct {
	*lab.Lab
	t   *testing.T
	tap *os.File
	// qemu runs the machines.
	qemu string
	// guest is the machine by ssh.
	guest *guest
	// disks counts the folders of machines.
	disks int
}

// newSite builds the lab. Its second site runs the daemons of bin.
func newSite(ctx context.Context, t *testing.T, bin, qemu string) *site {
	t.Helper()
	l, err := lab.New(ctx, lab.Topology{
		Routers: []lab.RouterSpec{{Name: routerName, Kind: lab.BIRD}, {Name: otherName, Kind: lab.BIRD}},
		Cores:   []lab.CoreSpec{{A: routerName, B: otherName, Delay: 5 * time.Millisecond}},
		Sites: []lab.SiteSpec{
			{Name: "a", Router: routerName, Boxes: []lab.BoxSpec{{Name: boxName, MD5: true}}},
			{Name: "b", Router: otherName, Boxes: []lab.BoxSpec{{Name: otherBox}}},
		},
		Regions: []lab.RegionSpec{{Name: "east", Router: routerName, Origins: 1, Capacity: 200}},
		Clients: []lab.ClientSpec{{Name: clientName, Router: routerName}},
		// An emulated machine that boots beside others is slow, not ill.
		ProbeEvery: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{Lab: l, t: t, qemu: qemu}
	t.Cleanup(s.close)
	if s.tap, err = vm.ReplaceLink(l.Routers[routerName].Host, boxName); err != nil {
		t.Fatal(err)
	}
	if s.guest, err = newGuest(ctx, l.Routers[routerName].Host, l.Boxes[boxName].Addr4, l.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := l.Boxes[otherBox].Start(bin); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) close() {
	if *keep != "" {
		s.keepConsoles()
	}
	if s.tap != nil {
		s.tap.Close()
	}
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
}

// keepConsoles copies the logs of all machines of the lab out of its folder.
func (s *site) keepConsoles() {
	dir := filepath.Join(*keep, strings.ReplaceAll(s.t.Name(), "/", "_"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Error(err)
	}
	logs, _ := filepath.Glob(filepath.Join(s.Dir(), "vm-*", "console.log"))
	for _, log := range logs {
		b, err := os.ReadFile(log)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(filepath.Dir(log))+".log"), b, 0o644)
		}
		if err != nil {
			s.t.Error(err)
		}
	}
}

// configuration is the tree of an EDGECFG volume for the machine: the configuration
// that the lab would give its box, with the paths of the image.
func (s *site) configuration() (map[string]string, error) {
	yaml, err := s.Boxes[boxName].Config()
	if err != nil {
		return nil, err
	}
	tree := map[string]string{
		"edge.yaml":                 imageConfig(yaml, s.Dir(), boxName),
		"network/10-uplink.network": networkOf(s.Boxes[boxName], uplinkMAC, "10.1.0.1", "fd00:1:0::1"),
		"authorized_keys":           s.guest.public,
		"hostname":                  boxName + "\n",
	}
	secrets := filepath.Join(s.Dir(), "secrets")
	return tree, fs.WalkDir(os.DirFS(secrets), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(secrets, name))
		tree["secrets/"+name] = string(b)
		return err
	})
}

// networkOf is the file of systemd-networkd for the card of a box of the lab.
func networkOf(b *lab.Box, mac, gateway4, gateway6 string) string {
	return fmt.Sprintf(`[Match]
MACAddress=%s
[Link]
MTUBytes=%d
[Network]
Address=%s/26
Address=%s/64
Gateway=%s
Gateway=%s
IPv6AcceptRA=no
`, mac, uplinkMTU, b.Addr4, b.Addr6, gateway4, gateway6)
}

// pace is that of the lab's probes, slowPace one that an emulated machine which writes
// an update keeps up with.
var pace = regexp.MustCompile(`interval: \S+, timeout: \S+, rise: \d+, fall: \d+`)

const slowPace = "interval: 5s, timeout: 4s, rise: 1, fall: 3"

// imageConfig turns a configuration of the lab into one of the image: the folders are
// the defaults, the secrets are in /etc/edge, the uplink has another name.
func imageConfig(yaml, dir, box string) string {
	var out strings.Builder
	for line := range strings.Lines(yaml) {
		switch key, _, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "run_dir", "state_dir", "bpf_dir", "drain_file", "access_log":
			continue
		case "interfaces":
			line = strings.Replace(line, "eth0", uplinkName, 1)
		}
		if line == "  health:\n" {
			// An emulated machine that boots beside others is slow, not ill.
			line += "    node_check: {interval: 4s, timeout: 3s, fall: 3}\n"
		}
		line = pace.ReplaceAllString(line, slowPace)
		line = strings.ReplaceAll(line, dir+"/secrets/", "/etc/edge/secrets/")
		line = strings.ReplaceAll(line, dir+"/"+box+"/run/", "/run/edge/")
		out.WriteString(line)
	}
	return out.String()
}

// emulated is the default without what only newer versions of qemu know of: FSRS and
// FZRM, the kin of ERMS.
const emulated = vm.DefaultCPU + ",fsrs=off,fzrm=off"

// machine is what a machine of this site is made of: a folder with copies of a disk and
// of the firmware's variables.
func (s *site) machine(ctx context.Context, disk, vars string) (vm.Spec, error) {
	s.disks++
	dir := filepath.Join(s.Dir(), fmt.Sprintf("vm-%d", s.disks))
	spec := vm.Spec{
		Dir: dir, Disk: filepath.Join(dir, "disk.raw"), Vars: filepath.Join(dir, "vars.fd"),
		Program: s.qemu, CPU: emulated, TAP: s.tap, MAC: uplinkMAC, MTU: uplinkMTU,
	}
	return spec, errors.Join(os.Mkdir(dir, 0o755), vm.Copy(ctx, spec.Disk, disk), vm.Copy(ctx, spec.Vars, vars))
}

// host is where the machines run.
func (s *site) host() *lab.Host { return s.Routers[routerName].Host }

// discard removes the disks of a machine that has ended: they are large.
func (s *site) discard(spec vm.Spec) {
	for _, f := range []string{spec.Disk, spec.Vars} {
		if err := os.Remove(f); err != nil {
			s.t.Error(err)
		}
	}
}

// guest is a machine by ssh, as root, with a key of this test's own.
type guest struct {
	host            *lab.Host
	addr, dir       string
	private, public string
}

func newGuest(ctx context.Context, h *lab.Host, addr, dir string) (*guest, error) {
	g := &guest{host: h, addr: addr, dir: dir, private: filepath.Join(dir, "ssh.key")}
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "image-test", "-f", g.private).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make key for ssh: %w: %s", err, out)
	}
	b, err := os.ReadFile(g.private + ".pub")
	g.public = string(b)
	return g, err
}

// at is the same guest by another address.
func (g *guest) at(addr string) *guest {
	other := *g
	other.addr = addr
	return &other
}

// options keep one connection for all commands: each handshake takes an emulated
// machine seconds. A box keeps its host key, so a changed one is an error.
func (g *guest) options() []string {
	return []string{
		"-F", "none", "-i", g.private, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "UserKnownHostsFile=" + filepath.Join(g.dir, "known_hosts"), "-o", "StrictHostKeyChecking=accept-new",
		"-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=6", "-o", "LogLevel=ERROR",
		"-o", "KexAlgorithms=curve25519-sha256", "-o", "ControlMaster=auto", "-o", "ControlPath=" + filepath.Join(g.dir, "ssh-%C"), "-o", "ControlPersist=300",
	}
}

// run runs a command of the machine's shell.
func (g *guest) run(ctx context.Context, command string) (string, error) {
	out, err := g.host.Run(ctx, "ssh", append(g.options(), "root@"+g.addr, "--", command)...)
	return strings.TrimSpace(string(out)), err
}

// forget ends the connection that is kept: the machine at its end is another one.
func (g *guest) forget(ctx context.Context) {
	// An error says that there is none.
	_, _ = g.host.Run(ctx, "ssh", append(g.options(), "-O", "exit", "root@"+g.addr)...)
}

// await waits until the machine takes commands.
func (g *guest) await(ctx context.Context) error {
	g.forget(ctx)
	return lab.UntilEvery(ctx, time.Second, "ssh to "+g.addr, func() error {
		try, cancel := within(ctx, 30*time.Second)
		defer cancel()
		_, err := g.run(try, "true")
		return err
	})
}
