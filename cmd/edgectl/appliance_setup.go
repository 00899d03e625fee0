package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/cmd/internal/version"
	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/volume"
)

// Where the configuration of a box is, and what the initrd has left.
const (
	configStore   = "/var/lib/edge-config"
	initrdVersion = "/run/edge-initrd/version"
	initrdNotes   = "/run/edge-initrd/notes"
	// confirmUnit is the process that takes an unconfirmed change back.
	confirmUnit = "edge-confirm.service"
)

// applianceSetupCommand is what edge-setup.service runs before the network.
func (o *options) applianceSetupCommand() *cobra.Command {
	var patience time.Duration
	var good bool
	c := &cobra.Command{
		Use: "setup", Short: "Take over what the box was given as its configuration, or come up in rescue", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if patience < 0 {
				return fmt.Errorf("--wait %s is negative", patience)
			}
			if good {
				return confirmBoot()
			}
			return o.setUp(c.Context(), patience)
		},
	}
	c.Flags().DurationVar(&patience, "wait", 10*time.Second, "how `long` a box without a configuration waits for a volume to show up")
	c.Flags().BoolVar(&good, "boot-was-good", false, "only remember that the configuration in force is good under this version")
	return c
}

func (o *options) setUp(ctx context.Context, patience time.Duration) error {
	opt := setup.Options{
		Credentials: credentialFolders(), Volumes: volume.Box{Sys: "/sys", Dev: "/dev"},
		Place: thisPlace(), Version: imageVersion(), BootID: bootID(),
	}
	s, err := openStore("")
	if notes, readErr := os.ReadFile(initrdNotes); readErr == nil && strings.Contains(string(notes), "edge.var=volatile") {
		s, err = nil, errors.New("/var cannot be used, and is empty for this boot")
	}
	if err == nil {
		unlock, lockErr := s.Lock()
		if lockErr != nil {
			return problem{lockErr}
		}
		defer unlock()
		opt.Store = s
	} else {
		opt.NoStore = err.Error()
	}
	deadline := o.now().Add(patience)
	for {
		r, err := setup.Boot(opt)
		if err == nil && r.State == setup.Unconfigured && o.now().Before(deadline) && pause(ctx, time.Second) {
			continue
		}
		if text := opt.Place.Issue(); text != "" {
			err = errors.Join(err, o.write("\n"+text+"\n"))
		}
		for _, n := range r.Notes {
			err = errors.Join(err, o.write("edge-setup: "+clean(n)+"\n"))
		}
		if err = errors.Join(err, o.write("edge-setup: "+line(r.String())+"\n")); err != nil {
			return problem{err}
		}
		return nil
	}
}

func confirmBoot() error {
	s, err := openStore("")
	if err == nil {
		var unlock func()
		if unlock, err = s.Lock(); err == nil {
			defer unlock()
			err = s.ConfirmBoot()
		}
	}
	if err != nil {
		return problem{err}
	}
	return nil
}

// outliveLogin has this process go on when the login breaks that it was called from,
// and takes its terminal and its pipes along: half way it would leave the box drained,
// or half changed.
func outliveLogin() { signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE) }

// openConfigs is the configuration of this very box.
func (o *options) openConfigs() (*configs, error) {
	outliveLogin()
	s, err := openStore(plainFile(setup.Root))
	if err != nil {
		return nil, err
	}
	return &configs{
		store: s,
		live:  &runningBox{o: o, place: thisPlace(), plain: s.Plain(), version: imageVersion(), run: execSystem},
		sources: func() setup.Found {
			return thisPlace().Gather(credentialFolders(), volume.Box{Sys: "/sys", Dev: "/dev"})
		},
		logins: func() logins { return sshLogins(os.Getenv("SSH_CONNECTION")) },
		bootID: bootID(), now: o.now,
	}, nil
}

// plainFile is the edge.yaml of a box whose folder of the configuration is not the
// link to the store that the image has; "" if it is.
func plainFile(root string) string {
	to, err := os.Readlink(root)
	if err == nil && !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(root), to)
	}
	if err == nil && filepath.Clean(to) == configStore+"/current" {
		return ""
	}
	return filepath.Join(root, "edge.yaml")
}

// openStore opens the store of this box; file is that of setup.StoreOptions.
func openStore(file string) (*setup.Store, error) {
	return setup.OpenStore(setup.StoreOptions{Dir: configStore, Version: imageVersion(), File: file, Owner: ownerOf, Now: time.Now})
}

// credentialFolders are where systemd puts credentials: those that the unit asked
// for, decrypted, and all that are not encrypted.
func credentialFolders() []string {
	out := []string{"/run/credentials/@system"}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		out = append([]string{dir}, out...)
	}
	return out
}

// imageVersion is that of the image, which the initrd has verified; elsewhere
// that of this program.
func imageVersion() string {
	if b, err := os.ReadFile(initrdVersion); err == nil && len(strings.TrimSpace(string(b))) > 0 {
		return strings.TrimSpace(string(b))
	}
	return version.String()
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// ownerOf returns the ids of names; root's for one that the box does not have.
func ownerOf(name, group string) (uid, gid int) {
	if u, err := user.Lookup(name); err == nil && name != "" {
		uid, _ = strconv.Atoi(u.Uid)
	}
	if g, err := user.LookupGroup(group); err == nil && group != "" {
		gid, _ = strconv.Atoi(g.Gid)
	}
	return uid, gid
}

func thisPlace() setup.Place {
	p := setup.Place{Run: "/run", Etc: "/etc", Sys: "/sys", System: hostSystem{}, Owner: ownerOf}
	if stat, err := os.ReadFile("/proc/self/stat"); err == nil {
		p.Terminal = setup.TerminalOf(stat, p.Sys)
	}
	return p
}

// execSystem runs a program of the system; its error has what it said.
func execSystem(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*settleWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// hostSystem is the setup.System of a box with systemd. A unit has its own view of
// the mounts, and often less privileges than it takes: systemd does what counts
// for the whole box.
type hostSystem struct{}

// Hostname implements setup.System. Early in the boot there is no hostnamed, and
// later the caller may lack the privilege.
func (hostSystem) Hostname(name string) error {
	err := unix.Sethostname([]byte(name))
	if errors.Is(err, unix.EPERM) {
		_, err = execSystem(context.Background(), "hostnamectl", "--transient", "set-hostname", name)
	}
	if err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// shadowMount has a file stand in place of /etc/shadow.
const shadowMount = `# Made by edge-setup: the password of the configuration.
[Unit]
Description=Password of root on the consoles
[Mount]
What=%s
Where=/etc/shadow
Type=none
Options=bind
`

// Shadow implements setup.System.
func (h hostSystem) Shadow(file string) error {
	unit := "/run/systemd/system/etc-shadow.mount"
	err := os.MkdirAll(filepath.Dir(unit), 0o755)
	if err == nil {
		err = os.WriteFile(unit, fmt.Appendf(nil, shadowMount, file), 0o644)
	}
	if err == nil {
		err = h.ReloadUnits(nil)
	}
	if err == nil {
		_, err = execSystem(context.Background(), "systemctl", "restart", "etc-shadow.mount")
	}
	if err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	return nil
}

// ReloadUnits implements setup.System.
func (hostSystem) ReloadUnits(start []string, again ...string) error {
	_, err := execSystem(context.Background(), "systemctl", "daemon-reload")
	if err == nil && len(start) > 0 {
		_, err = execSystem(context.Background(), "systemctl", append([]string{"start", "--no-block"}, start...)...)
	}
	if err == nil && len(again) > 0 {
		_, err = execSystem(context.Background(), "systemctl", append([]string{"try-restart", "--no-block"}, again...)...)
	}
	return err
}

// Guard implements liveConfig. Where the unit is not installed systemd makes one;
// without systemd the process is on its own.
func (b *runningBox) Guard(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return detached(self, "appliance", "confirm", "--socket", b.o.socket)
	}
	if _, err := b.run(ctx, "systemctl", "cat", confirmUnit); err == nil {
		_, err = b.run(ctx, "systemctl", "start", confirmUnit)
		return err
	}
	_, err = b.run(ctx, "systemd-run", "--quiet", "--collect", "--unit", confirmUnit, "--property", "Restart=on-failure", self, "appliance", "confirm", "--socket", b.o.socket)
	return err
}

// detached starts a process that outlives this one and its terminal.
func detached(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return cmd.Process.Release()
}
