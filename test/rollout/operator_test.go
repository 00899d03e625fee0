package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// operator is a host in the lab from which the fleet is run, with a home of its own:
// keys, known hosts, the collection, and the folder with the description of the fleet.
type operator struct {
	*lab.Host
	home string
	// fleet is the folder of fleet.yaml.
	fleet  string
	public string
}

func newOperator(ctx context.Context, l *lab.Lab) (*operator, error) {
	o := &operator{Host: l.Clients[operatorName].Host, home: filepath.Join(l.Dir(), "operator")}
	o.fleet = filepath.Join(o.home, "fleet")
	if err := os.MkdirAll(o.fleet, 0o700); err != nil {
		return nil, fmt.Errorf("make home of the operator: %w", err)
	}
	if _, err := command(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f", o.key()); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(o.key() + ".pub")
	o.public = string(b)
	return o, err
}

func (o *operator) key() string        { return filepath.Join(o.home, "ssh.key") }
func (o *operator) knownHosts() string { return filepath.Join(o.home, "known_hosts") }

// knows has the operator know a node by its host key, so that none has to be believed.
func (o *operator) knows(addr, hostKey string) error {
	f, err := os.OpenFile(o.knownHosts(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write known hosts: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s %s", addr, hostKey)
	return errors.Join(err, f.Close())
}

// sshArgs are how the operator reaches nodes, with nothing of the machine's own settings.
func (o *operator) sshArgs() []string {
	return []string{"-F", "none", "-i", o.key(), "-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile=" + o.knownHosts(), "-o", "StrictHostKeyChecking=yes"}
}

// ssh runs a line of a node's shell, as root.
func (o *operator) ssh(ctx context.Context, n *node, line string) (string, error) {
	args := append(o.sshArgs(), "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR", "root@"+n.Addr4, "--", line)
	out, err := o.Run(ctx, "ssh", args...)
	return string(out), err
}

// install installs the collection in the home, as an operator does: from what
// ansible-galaxy builds. It gives the fleet's folder the settings that come with it.
func (o *operator) install(ctx context.Context) error {
	source, err := filepath.Abs(*collection)
	if err != nil {
		return fmt.Errorf("find the collection: %w", err)
	}
	if _, err := o.run(ctx, "ansible-galaxy", "collection", "build", source, "--output-path", o.home); err != nil {
		return err
	}
	built, err := filepath.Glob(filepath.Join(o.home, "catchment-edge-*.tar.gz"))
	if err != nil || len(built) != 1 {
		return fmt.Errorf("what ansible-galaxy has built is %v, %v", built, err)
	}
	if _, err := o.run(ctx, "ansible-galaxy", "collection", "install", "--offline", built[0], "-p", o.collections()); err != nil {
		return err
	}
	settings, err := os.ReadFile(filepath.Join(source, "ansible.cfg"))
	if err != nil {
		return fmt.Errorf("read the settings of the collection: %w", err)
	}
	return os.WriteFile(filepath.Join(o.fleet, "ansible.cfg"), settings, 0o644)
}

func (o *operator) collections() string { return filepath.Join(o.home, "collections") }

// command is a command of the operator, in the folder of the fleet.
func (o *operator) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = o.fleet
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "USER=operator", "HOME=" + o.home,
		"ANSIBLE_HOME=" + filepath.Join(o.home, ".ansible"), "ANSIBLE_COLLECTIONS_PATH=" + o.collections(), "ANSIBLE_NOCOLOR=1",
		"ANSIBLE_PRIVATE_KEY_FILE=" + o.key(),
		// In place of -i: that is what the variable before is for.
		"ANSIBLE_SSH_COMMON_ARGS=-F none -o IdentitiesOnly=yes -o UserKnownHostsFile=" + o.knownHosts() + " -o StrictHostKeyChecking=yes",
	}
	return cmd
}

// run runs a command to its end and returns all that it wrote.
func (o *operator) run(ctx context.Context, args ...string) (string, error) {
	r, err := o.begin(args...)
	if err != nil {
		return "", err
	}
	err = r.wait(ctx)
	return r.text(), err
}

// running is a command of the operator under way. What it writes is in a file: it can
// be read meanwhile, and no process that outlives the command holds up anybody.
type running struct {
	*lab.Process
	args  []string
	log   string
	begun time.Time
}

func (o *operator) begin(args ...string) (*running, error) {
	log, err := os.CreateTemp(o.home, "log-")
	if err != nil {
		return nil, fmt.Errorf("make log of %s: %w", args[0], err)
	}
	defer log.Close()
	cmd := o.command(args...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := o.Start(cmd)
	if err != nil {
		return nil, err
	}
	return &running{Process: p, args: args, log: log.Name(), begun: time.Now()}, nil
}

// wait waits for the end; when ctx ends the command is killed.
func (r *running) wait(ctx context.Context) error {
	select {
	case <-r.Done():
	case <-ctx.Done():
		r.killAll()
		return fmt.Errorf("%v: %w\n%s", r.args, context.Cause(ctx), r.text())
	}
	if r.Err() != nil {
		return fmt.Errorf("%v: %w\n%s", r.args, r.Err(), r.text())
	}
	return nil
}

// meanwhile ends with the command: what is waited for does not come any more.
func (r *running) meanwhile(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-r.Done():
			end(fmt.Errorf("the command has ended\n%s", r.text()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// killAll is kill -9 of the command and of the processes that it has forked, as when a
// terminal or a machine is gone. The connections of ssh that it leaves behind stay.
func (r *running) killAll() {
	_ = syscall.Kill(-r.PID(), syscall.SIGKILL) // it leads a group of its own
	<-r.Done()
}

// text is what it has written so far.
func (r *running) text() string {
	b, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// vars are extra variables of a playbook.
type vars map[string]any

// begin starts a playbook of the collection, such as site or rollout.
func (f *fleet) begin(playbook string, extra vars, args ...string) (*running, error) {
	if err := f.rememberSecrets(); err != nil {
		return nil, err
	}
	all := []string{"ansible-playbook", "catchment.edge." + playbook}
	if len(extra) > 0 {
		b, err := json.Marshal(extra)
		if err != nil {
			return nil, fmt.Errorf("write variables of %s: %w", playbook, err)
		}
		all = append(all, "-e", string(b))
	}
	return f.operator.begin(append(all, args...)...)
}

// play runs a playbook to its end.
func (f *fleet) play(ctx context.Context, playbook string, extra vars, args ...string) (result, error) {
	r, err := f.begin(playbook, extra, args...)
	if err != nil {
		return result{}, err
	}
	got, err := r.result(ctx)
	if *verbose {
		f.t.Logf("%s\n%s", playbook, r.text())
	}
	return got, errors.Join(err, f.rememberSecrets())
}

// result waits for the end of a playbook. An error says that it could not be run; that it
// has failed is the result's to say, and one that fails before it begins has no hosts.
func (r *running) result(ctx context.Context) (result, error) {
	waitErr := r.wait(ctx)
	if ctx.Err() != nil {
		return result{}, waitErr
	}
	got, err := parseResult(r.text())
	if err != nil && waitErr == nil {
		return result{}, fmt.Errorf("%w\n%s", err, r.text())
	}
	got.took, got.failed = time.Since(r.begun), waitErr != nil
	return got, nil
}

// playsWell is play where every node is to succeed.
func (f *fleet) playsWell(ctx context.Context, t *testing.T, playbook string, extra vars, args ...string) (result, error) {
	t.Helper()
	return f.playsOn(ctx, t, f.nodes, playbook, extra, args...)
}

// playsOn is play where these nodes are to succeed, and the whole of it.
func (f *fleet) playsOn(ctx context.Context, t *testing.T, nodes []*node, playbook string, extra vars, args ...string) (result, error) {
	t.Helper()
	got, err := f.play(ctx, playbook, extra, args...)
	if err != nil {
		return got, err
	}
	t.Logf("%5.1f s  %s: %s", got.took.Seconds(), playbook, got)
	for _, n := range nodes {
		h, ok := got.hosts[n.Name()]
		if !ok || h.failed > 0 || h.unreachable > 0 {
			return got, fmt.Errorf("%s of %s: %+v\n%s", playbook, n.Name(), h, got.text)
		}
	}
	if got.failed {
		return got, fmt.Errorf("%s ends with an error\n%s", playbook, got.text)
	}
	return got, nil
}

// copyTree copies a folder of the machine's.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}
