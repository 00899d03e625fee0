package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/confirm"
)

// configs is the configuration of this box as the commands see it, so that tests
// can be another box.
type configs struct {
	store *setup.Store
	live  liveConfig
	// sources reads what the box was given at its boot.
	sources func() setup.Found
	// logins are those by ssh at this moment.
	logins func() logins
	bootID string
	now    func() time.Time
}

// liveConfig is the running box.
type liveConfig interface {
	// Apply has the box go by a generation. What it returns is for people: what
	// was done, and what only a restart will do.
	Apply(ctx context.Context, m move) ([]string, error)
	// Look returns what there is to be lost of what r names.
	Look(ctx context.Context, r confirm.Rules) confirm.Facts
	// Guard starts the process that takes a pending change back, and returns once
	// it runs.
	Guard(ctx context.Context) error
}

// move is from one generation to another; number 0, without a config, is none.
type move struct{ from, to state }

// state is one end of a move.
type state struct {
	number int
	source string
	tree   setup.Tree
	config *edge.Config
}

func (m move) back() move { return move{m.to, m.from} }

// The bounds of --confirm-within: less than it takes to log in is no time, and
// what waits for longer is forgotten.
const (
	leastWithin = 20 * time.Second
	mostWithin  = time.Hour
)

// configCommand is the parent of the commands that change and show the
// configuration of the box. open is called when one of them runs.
func (o *options) configCommand(open func() (*configs, error)) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Apply a configuration, with a way back, and show what is in force", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a command is needed: apply, confirm, revert or show")
		},
	}
	c.AddCommand(o.configApplyCommand(open), o.configConfirmCommand(open), o.configRevertCommand(open), o.configShowCommand(open))
	return c
}

func (o *options) configApplyCommand(open func() (*configs, error)) *cobra.Command {
	var in applyOrder
	c := &cobra.Command{
		Use: "apply [FOLDER|FILE]", Short: "Check a configuration whole, keep it, and have the box go by it",
		Long: "Check a configuration, keep it as a new generation, and have the running box go by it. A FOLDER\n" +
			"may have edge.yaml, network/, authorized_keys, hostname, password, secrets/, health.d/ and units/; what it\n" +
			"does not have stays as it is, unless --whole is given. A FILE is an edge.yaml. Without either,\n" +
			"the sources of the first boot are read again: credentials, volume EDGECFG, NoCloud.\n\n" +
			"With --confirm-within the change is taken back unless edgectl config confirm is called in time,\n" +
			"and earlier if a BGP session is lost for 30s, edged is silent for 30s, sshd does not answer for 10s\n" +
			"on the address by which you are logged in, there is no route to you for 10s, or nothing that is sent\n" +
			"to you arrives for 30s. A reboot takes it back too.\n\n" +
			"On a box that was not made from the image only edge.yaml is changed.",
		Example: "  edgectl config apply /root/new --confirm-within 120s\n  edgectl config confirm\n  edgectl config apply edge.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("confirm-within") && (in.within < leastWithin || in.within > mostWithin) {
				return fmt.Errorf("--confirm-within %s is not between %s and %s", in.within, leastWithin, mostWithin)
			}
			cs, err := open()
			if err != nil {
				return problem{err}
			}
			if err := in.read(cs, args); err != nil {
				return o.configProblem(err)
			}
			// A change is brought to its end, or taken back: a login that breaks in
			// the middle must not stop it.
			out, err := cs.apply(context.WithoutCancel(c.Context()), in)
			if err != nil {
				return o.configProblem(err)
			}
			if o.output == "json" {
				return o.json(out)
			}
			return o.write(clean(out.text()))
		},
	}
	c.Flags().DurationVar(&in.within, "confirm-within", 0, "take it back unless it is confirmed within this `time`")
	c.Flags().BoolVar(&in.whole, "whole", false, "FOLDER is all there is: keep nothing of what it does not have")
	return c
}

// configProblem prints each problem of a configuration on its own line, as check
// does.
func (o *options) configProblem(err error) error {
	var ps setup.Problems
	if !errors.As(err, &ps) {
		return problem{err}
	}
	if o.output == "json" {
		if err := o.json(ps.Lines()); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(o.stderr, clean(ps.Error()))
	}
	return problem{errors.New("")}
}

func (o *options) configConfirmCommand(open func() (*configs, error)) *cobra.Command {
	return &cobra.Command{
		Use: "confirm", Short: "Keep a change for good", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cs, err := open()
			if err != nil {
				return problem{err}
			}
			n, err := cs.confirm()
			if err != nil {
				return problem{err}
			}
			if o.output == "json" {
				return o.json(map[string]int{"generation": n})
			}
			return o.write(fmt.Sprintf("generation %d is confirmed\n", n))
		},
	}
}

func (o *options) configRevertCommand(open func() (*configs, error)) *cobra.Command {
	return &cobra.Command{
		Use: "revert [GENERATION]", Short: "Take back a change that is not confirmed, or go to an earlier generation",
		Long: "Take back the change that waits to be confirmed. With GENERATION, go to that one, which is checked\n" +
			"again first; edgectl config show lists them.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			to := 0
			if len(args) == 1 {
				var err error
				if to, err = strconv.Atoi(args[0]); err != nil || to <= 0 {
					return fmt.Errorf("%q is not the number of a generation", args[0])
				}
			}
			cs, err := open()
			if err != nil {
				return problem{err}
			}
			out, err := cs.revert(context.WithoutCancel(c.Context()), to, o.user)
			if err != nil {
				return o.configProblem(err)
			}
			if o.output == "json" {
				return o.json(out)
			}
			return o.write(clean(out.text()))
		},
	}
}

// applyOrder is what is to be applied.
type applyOrder struct {
	tree setup.Tree
	// source is its name for people; boot says that it came from the sources of
	// the boot, which must not be taken again at the next one.
	source      string
	notes       []string
	boot, whole bool
	within      time.Duration
}

// read reads what the arguments name.
func (in *applyOrder) read(c *configs, args []string) error {
	if len(args) == 0 {
		f := c.sources()
		switch {
		case !f.OK:
			return fmt.Errorf("no source of this box holds a configuration: name a folder or a file%s", bullets(f.Notes))
		case len(f.Problems) > 0:
			return f.Problems
		}
		in.tree, in.source, in.notes, in.boot, in.whole = f.Tree, f.Name, f.Notes, true, true
		return nil
	}
	in.source = args[0]
	info, err := os.Stat(args[0])
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if info.IsDir() {
		t, problems, err := setup.ReadTree(args[0])
		if err == nil && len(problems) > 0 {
			err = problems
		}
		in.tree = t
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("read configuration: %s is neither a folder nor a file", args[0])
	}
	f, err := os.Open(args[0])
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	// One byte over the limit shows that it is too much.
	b, err := io.ReadAll(io.LimitReader(f, edge.MaxConfigSize+1))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	in.tree = setup.Tree{"edge.yaml": b}
	return nil
}

// changed is what a command has done.
type changed struct {
	Generation int      `json:"generation"`
	Notes      []string `json:"notes,omitempty"`
	// Confirm is by when edgectl config confirm is to be called; zero: it is not.
	Confirm time.Time `json:"confirm_by,omitzero"`
}

func (c changed) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "generation %d is in force\n", c.Generation)
	for _, n := range c.Notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	if !c.Confirm.IsZero() {
		fmt.Fprintf(&b, "Keep it by %s with: edgectl config confirm. Else it is taken back.\n", c.Confirm.Format(time.TimeOnly))
	}
	return b.String()
}
