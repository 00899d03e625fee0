// Command edgectl is how an operator asks and orders edged. It checks files by
// itself; everything else is one call over edged's unix socket. Commands that
// are nouns (status, flows, version) or that ask (check, explain) never change
// anything; drain, undrain and reload do. capture has the forwarder hand out
// packets for a while. It keeps nothing and lives for one call.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The exit codes.
const (
	exitOK      = 0
	exitRefused = 1 // a problem was found, or edged refused or does not answer
	exitUsage   = 2
)

// env is the world as the commands see it, so that tests can be another.
type env struct {
	stdout, stderr io.Writer
	now            func() time.Time
	// terminal says that stdout is one, and colour that it is to be coloured.
	terminal, colour bool
	user             string // who calls, for others to read
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	terminal := isTerminal(os.Stdout)
	code := run(ctx, env{stdout: os.Stdout, stderr: os.Stderr, now: time.Now, terminal: terminal, colour: terminal, user: caller()}, os.Args[1:])
	stop()
	os.Exit(code)
}

// caller names the user and this process: a name alone would not tell one root
// from another.
func caller() string {
	name := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return fmt.Sprintf("%s (edgectl, pid %d)", name, os.Getpid())
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// problem is an error of a command that was understood; all others are usage.
type problem struct{ error }

func (p problem) Unwrap() error { return p.error }

// run executes one command line and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	root := rootCommand(e)
	root.SetArgs(args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	var p problem
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &p):
		if text := p.Error(); text != "" {
			fmt.Fprintln(e.stderr, "edgectl:", clean(text))
		}
		return exitRefused
	}
	fmt.Fprintf(e.stderr, "edgectl: %s\nusage: %s\n", strings.TrimSpace(err.Error()), cmd.UseLine())
	return exitUsage
}

// options are the flags that all commands share.
type options struct {
	env
	output  string
	socket  string
	timeout time.Duration
}

func rootCommand(e env) *cobra.Command {
	o := &options{env: e}
	root := &cobra.Command{
		Use:   "edgectl COMMAND",
		Short: "Ask and order edged, the daemon that decides what this node announces",
		Long: "edgectl asks and orders edged, the daemon that decides what this node announces.\n" +
			"Exit code: 0 done, 1 a problem was found or edged refused, 2 wrong usage.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a command is needed; edgectl --help lists them")
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if o.output != "text" && o.output != "json" {
				return fmt.Errorf("-o %s is not text or json", o.output)
			}
			if o.timeout <= 0 {
				return fmt.Errorf("--timeout %s is not above 0", o.timeout)
			}
			return nil
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVarP(&o.output, "output", "o", "text", "`form` of the output: text or json")
	f.StringVar(&o.socket, "socket", "/run/edge/edged.sock", "unix `socket` of edged")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "how `long` to wait for edged")
	root.AddCommand(o.statusCommand(), o.checkCommand(), o.diffCommand(), o.explainCommand(), o.bgpCommand(), o.healthCommand(), o.guardCommand(), o.flowsCommand(), o.captureCommand(), o.drainCommand(), o.undrainCommand(), o.reloadCommand(),
		o.configCommand(o.openConfigs), o.upgradeCommand(), o.rollbackCommand(), o.slotsCommand(), o.applianceCommand(), o.versionCommand())
	return root
}
