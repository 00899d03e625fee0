// Package operator is the machine of somebody who runs a fleet, as a host of a lab: a
// home with a key, the collection as ansible-galaxy installs it, and the folder of
// fleet.yaml. Its playbooks reach the nodes by ssh, and what they say is read.
package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/catchment-dev/edge/test/lab"
)

// Operator is that machine.
type Operator struct {
	*lab.Host
	// Home is the operator's, Fleet the folder of fleet.yaml in it.
	Home, Fleet string
	// Public is the public half of the key, as authorized_keys has it.
	Public string
	// options are further ones of ssh, each as -o takes it.
	options []string
}

// New makes the home and a key. Options are for ssh, such as KexAlgorithms=...; known
// says whether nodes are known by their host keys (see Knows), or are believed the first time.
func New(ctx context.Context, h *lab.Host, home string, known bool, options ...string) (*Operator, error) {
	o := &Operator{Host: h, Home: home, Fleet: filepath.Join(home, "fleet"), options: options}
	believe := "accept-new"
	if known {
		believe = "yes"
	}
	o.options = append(o.options, "IdentitiesOnly=yes", "UserKnownHostsFile="+o.knownHosts(), "StrictHostKeyChecking="+believe)
	if err := os.MkdirAll(o.Fleet, 0o700); err != nil {
		return nil, fmt.Errorf("make home of the operator: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f", o.key()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make key of the operator: %w: %s", err, out)
	}
	b, err := os.ReadFile(o.key() + ".pub")
	o.Public = string(b)
	return o, err
}

func (o *Operator) key() string        { return filepath.Join(o.Home, "ssh.key") }
func (o *Operator) knownHosts() string { return filepath.Join(o.Home, "known_hosts") }

// Knows has the operator know a node by its host key, so that none has to be believed.
func (o *Operator) Knows(addr, hostKey string) error {
	f, err := os.OpenFile(o.knownHosts(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write known hosts: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s %s", addr, hostKey)
	return errors.Join(err, f.Close())
}

// SSH runs a line of the shell at an address, as root, with nothing of the machine's own
// settings.
func (o *Operator) SSH(ctx context.Context, addr, line string) (string, error) {
	args := []string{"-F", "none", "-i", o.key(), "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR"}
	for _, option := range o.options {
		args = append(args, "-o", option)
	}
	out, err := o.Host.Run(ctx, "ssh", append(args, "root@"+addr, "--", line)...)
	return string(out), err
}

// Install installs the collection of a folder in the home, as an operator does: from
// what ansible-galaxy builds. It gives the fleet's folder the settings that come with it.
func (o *Operator) Install(ctx context.Context, collection string) error {
	source, err := filepath.Abs(collection)
	if err != nil {
		return fmt.Errorf("find the collection: %w", err)
	}
	if _, err := o.Command(ctx, "ansible-galaxy", "collection", "build", source, "--output-path", o.Home); err != nil {
		return err
	}
	built, err := filepath.Glob(filepath.Join(o.Home, "catchment-edge-*.tar.gz"))
	if err != nil || len(built) != 1 {
		return fmt.Errorf("what ansible-galaxy has built is %v, %v", built, err)
	}
	if _, err := o.Command(ctx, "ansible-galaxy", "collection", "install", "--offline", built[0], "-p", o.collections()); err != nil {
		return err
	}
	settings, err := os.ReadFile(filepath.Join(source, "ansible.cfg"))
	if err != nil {
		return fmt.Errorf("read the settings of the collection: %w", err)
	}
	return os.WriteFile(filepath.Join(o.Fleet, "ansible.cfg"), settings, 0o644)
}

func (o *Operator) collections() string { return filepath.Join(o.Home, "collections") }

// command is a command of the operator, in the folder of the fleet.
func (o *Operator) command(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = o.Fleet
	common := "-F none"
	for _, option := range o.options {
		common += " -o " + option
	}
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "USER=operator", "HOME=" + o.Home,
		"ANSIBLE_HOME=" + filepath.Join(o.Home, ".ansible"), "ANSIBLE_COLLECTIONS_PATH=" + o.collections(), "ANSIBLE_NOCOLOR=1",
		"ANSIBLE_PRIVATE_KEY_FILE=" + o.key(),
		// In place of -i: that is what the variable before is for.
		"ANSIBLE_SSH_COMMON_ARGS=" + common,
	}
	return cmd
}
