package rollout

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// bootLimit is how long a system may take until all of it is up, on a busy machine and
// beside eight others.
const bootLimit = 3 * time.Minute

// node is a Debian in the network of a box. It starts again when it has rebooted, as a
// machine does.
type node struct {
	*lab.Box
	lab *lab.Lab
	// base is the root that is below, dir has what was changed.
	base, dir string
	log       *os.File

	mu      sync.Mutex
	process *lab.Process
	stopped bool // do not start again
	boots   int
	watched sync.WaitGroup
}

// newNode makes what is a node's own of the root: its names, its keys, and who may log
// in. The public host key is for known_hosts.
func newNode(ctx context.Context, l *lab.Lab, box *lab.Box, base, authorized string) (n *node, hostKey string, err error) {
	n = &node{Box: box, lab: l, base: base, dir: filepath.Join(l.Dir(), "node-"+box.Name())}
	id := make([]byte, 16)
	rand.Read(id) // never fails
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"etc/ssh", 0o755}, {"root/.ssh", 0o700}} {
		if err := os.MkdirAll(filepath.Join(n.dir, "upper", d.name), d.mode); err != nil {
			return nil, "", fmt.Errorf("make folder of %s: %w", box.Name(), err)
		}
	}
	for name, text := range map[string]string{
		"etc/hostname":              box.Name() + "\n",
		"etc/hosts":                 "127.0.0.1 localhost\n::1 localhost\n" + box.Addr4 + " " + box.Name() + "\n",
		"etc/machine-id":            hex.EncodeToString(id) + "\n",
		"root/.ssh/authorized_keys": authorized,
	} {
		if err := os.WriteFile(filepath.Join(n.dir, "upper", name), []byte(text), 0o644); err != nil {
			return nil, "", fmt.Errorf("write file of %s: %w", box.Name(), err)
		}
	}
	key := filepath.Join(n.dir, "upper/etc/ssh/ssh_host_ed25519_key")
	if _, err := command(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", box.Name(), "-f", key); err != nil {
		return nil, "", err
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return nil, "", fmt.Errorf("read host key of %s: %w", box.Name(), err)
	}
	n.log, err = os.Create(filepath.Join(n.dir, "console.log"))
	return n, string(public), err
}

// start starts the system, without waiting until it is up.
func (n *node) start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = false
	return n.launch()
}

// launch is called with the lock held.
func (n *node) launch() error {
	script, err := filepath.Abs("testdata/node.sh")
	if err != nil {
		return fmt.Errorf("find node.sh: %w", err)
	}
	cmd := exec.Command(script, n.base, n.dir, n.Name())
	cmd.Stdout, cmd.Stderr = n.log, n.log
	p, err := n.lab.StartSystem(n.Box, cmd)
	if err != nil {
		return err
	}
	n.process = p
	n.boots++
	n.watched.Go(func() { n.watch(p) })
	// The lab's box asks the daemons of the node: its folder of sockets is theirs.
	if err := errors.Join(os.RemoveAll(n.RunDir()), os.Symlink(fmt.Sprintf("/proc/%d/root/run/edge", p.PID()), n.RunDir())); err != nil {
		return fmt.Errorf("show sockets of %s: %w", n.Name(), err)
	}
	return nil
}

// watch starts the system again after a reboot. The first process of a namespace that
// reboots ends by SIGHUP, one that powers off by SIGINT.
func (n *node) watch(p *lab.Process) {
	<-p.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped || endedBy(p) != syscall.SIGHUP {
		return
	}
	if err := n.launch(); err != nil {
		fmt.Fprintf(n.log, "start again: %v\n", err)
	}
}

// endedBy is the signal that a process ended by; 0: it did not end by one.
func endedBy(p *lab.Process) syscall.Signal {
	var exit *exec.ExitError
	if errors.As(p.Err(), &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return status.Signal()
		}
	}
	return 0
}

func (n *node) current() (*lab.Process, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process, n.boots
}

// inside is a path of the node as the machine sees it. It must have no symbolic link in
// it that begins with a slash: that would lead to the machine's own files.
func (n *node) inside(path string) string {
	p, _ := n.current()
	return fmt.Sprintf("/proc/%d/root%s", p.PID(), path)
}

// awaitUp waits until systemd has started all that it is to start, and all of it well.
func (n *node) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	err := lab.Until(ctx, "systemd of "+n.Name()+" answers", func() error {
		p, _ := n.current()
		select {
		case <-p.Done():
			return fmt.Errorf("it has ended: %w", p.Err())
		default:
		}
		_, err := os.Stat(n.inside("/run/systemd/private"))
		return err
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.console())
	}
	out, err := n.run(ctx, "systemctl", "is-system-running", "--wait")
	if err != nil {
		failed, _ := n.run(ctx, "systemctl", "--failed", "--no-legend", "--plain")
		err = fmt.Errorf("%s is %s: %w\n%s", n.Name(), strings.TrimSpace(out), err, failed)
	}
	return err
}

func (n *node) console() string {
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

// run runs a command in the node, as root, and returns what it wrote to standard output.
// The error has the rest.
func (n *node) run(ctx context.Context, args ...string) (string, error) {
	p, _ := n.current()
	enter := []string{"--target", strconv.Itoa(p.PID()), "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root",
		"env", "--chdir=/", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "HOME=/root"}
	out, err := n.Run(ctx, "nsenter", append(enter, args...)...)
	if err != nil {
		err = fmt.Errorf("%s on %s: %w\n%s", strings.Join(args, " "), n.Name(), err, out)
	}
	return string(out), err
}

// sh runs a line of shell in the node.
func (n *node) sh(ctx context.Context, line string) (string, error) {
	return n.run(ctx, "bash", "-euo", "pipefail", "-c", line)
}

// put writes a file of the node, which belongs to root.
func (n *node) put(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(n.inside(path)), 0o755); err != nil {
		return fmt.Errorf("make folder of %s: %w", n.Name(), err)
	}
	if err := os.WriteFile(n.inside(path), text, mode); err != nil {
		return fmt.Errorf("write %s of %s: %w", path, n.Name(), err)
	}
	return nil
}

// powerOff has the node go down in order, and waits until it is down.
func (n *node) powerOff(ctx context.Context) error {
	p, _ := n.current()
	// The command may be ended by what it has ordered.
	_, _ = n.run(ctx, "systemctl", "poweroff")
	select {
	case <-p.Done():
	case <-ctx.Done():
		return fmt.Errorf("%s is not off: %w\n%s", n.Name(), context.Cause(ctx), n.console())
	}
	if by := endedBy(p); by != syscall.SIGINT {
		return fmt.Errorf("%s is not off, but ended by %q: %w", n.Name(), by, p.Err())
	}
	return nil
}

// switchOn starts a node that is off, and waits until it is up.
func (n *node) switchOn(ctx context.Context) error {
	if err := n.start(); err != nil {
		return err
	}
	return n.awaitUp(ctx)
}

// kill ends the node as if its power had failed.
func (n *node) kill() {
	n.mu.Lock()
	n.stopped = true
	p := n.process
	n.mu.Unlock()
	if p != nil {
		p.Kill()
	}
}

// close ends the node for good.
func (n *node) close() {
	n.kill()
	n.watched.Wait()
	if n.log != nil {
		n.log.Close()
	}
}

// broken is the drop-in that keeps a unit from starting.
func broken(unit string) string { return "/etc/systemd/system/" + unit + ".service.d/broken.conf" }

// Break keeps one of the daemons from starting: it goes on as it is, and does not come
// back from its next restart, as after an upgrade that does not suit this node.
func (n *node) Break(ctx context.Context, unit string) error {
	if err := n.put(broken(unit), []byte("[Service]\nExecStartPre=/bin/false\n"), 0o644); err != nil {
		return err
	}
	_, err := n.run(ctx, "systemctl", "daemon-reload")
	return err
}

// Repair undoes Break, and starts the daemon.
func (n *node) Repair(ctx context.Context, unit string) error {
	if err := os.Remove(n.inside(broken(unit))); err != nil {
		return fmt.Errorf("repair %s: %w", n.Name(), err)
	}
	_, err := n.sh(ctx, "systemctl daemon-reload && systemctl start "+unit)
	return err
}

// processes are those of the node, as the machine numbers them.
func (n *node) processes() ([]int, error) {
	p, _ := n.current()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.PID()))
	if err != nil {
		return nil, fmt.Errorf("find processes of %s: %w", n.Name(), err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	var pids []int
	for _, d := range dirs {
		if ns, err := os.Readlink(d); err == nil && ns == own {
			pid, _ := strconv.Atoi(strings.Split(d, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// memory is what the processes of the node take, in KiB; what they share with others is
// divided among them.
func (n *node) memory() (kib int, err error) {
	pids, err := n.processes()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				k, _ := strconv.Atoi(f[1])
				kib += k
			}
		}
	}
	return kib, err
}
