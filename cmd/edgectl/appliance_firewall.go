package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/firewall"
)

// firewallWish is what applianceFirewallCommand was called with.
type firewallWish struct {
	config            string
	appliance, remove bool
	box               *box
}

func (o *options) applianceFirewallCommand(b *box) *cobra.Command {
	w := firewallWish{box: b}
	c := &cobra.Command{
		Use: "firewall", Short: "Replace the rules of the packet filter by those of the configuration", Args: cobra.NoArgs,
		Long: "firewall replaces the table inet " + firewall.Table + " by the rules of node.host_firewall, in one step. A configuration that\n" +
			"is refused changes nothing; an appliance without one, or in rescue, gets the rules of the rescue.",
		RunE: func(*cobra.Command, []string) error {
			said, err := w.run()
			if said != "" {
				if err := o.write("firewall: " + said + "\n"); err != nil {
					return err
				}
			}
			if err != nil {
				return problem{err}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&w.config, "config", edgeConfig, "configuration `file`")
	f.BoolVar(&w.appliance, "appliance", false, "this is the image: node.host_firewall.mode auto is on")
	f.BoolVar(&w.remove, "remove", false, "take the table away, whatever the configuration says")
	return c
}

// run brings the rules about and says what has become of them; both what it says and
// an error, where there are rules but not those of the file.
func (w firewallWish) run() (said string, err error) {
	if w.remove {
		return "removed", firewall.Remove()
	}
	if w.appliance && w.box.inRescue() {
		return w.rescue()
	}
	c, err := edge.Load(w.config)
	if err != nil {
		return w.without(err)
	}
	if !c.Local.HostFirewall.On(w.appliance) {
		return fmt.Sprintf("off, as node.host_firewall.mode is %s", c.Local.HostFirewall.Mode), firewall.Remove()
	}
	all := []*edge.Config{c}
	said = fmt.Sprintf("rules of %s", w.config)
	// What the file has dropped is served until the guard lets it go: edged keeps
	// the one before as long.
	if applied := inForce(c.Local.StateDir, c.Hash); applied != nil {
		all, said = append(all, applied), said+", and of what edged has in force"
	}
	return said, firewall.Build(all...).Apply()
}

// Where edge-setup gives leave to serve, and what edged has while it runs.
const (
	setupLeave   = "/run/edge-setup/ok"
	edgedSocket  = "/run/edge/edged.sock"
	edgedFolder  = "/var/lib/edge"
	rescueIsSaid = "rules of the rescue: ssh from everywhere"
)

// inRescue says whether edge-setup has put no configuration in force, whatever there
// is of one: a file that can be read may be part of a whole that was refused.
func (b *box) inRescue() bool {
	_, err := os.Stat(b.path(setupLeave))
	return errors.Is(err, fs.ErrNotExist)
}

// rescue is what a box in rescue gets. While edged is there, which is until the guard
// has let the box go, what it serves is let in too.
func (w firewallWish) rescue() (said string, err error) {
	if _, err := os.Lstat(w.box.path(edgedSocket)); err == nil {
		if c := inForce(w.box.path(edgedFolder), ""); c != nil {
			return rescueIsSaid + ", and what edged still serves", firewall.Rescue(c).Apply()
		}
	}
	return rescueIsSaid, firewall.Rescue().Apply()
}

// without is what becomes of the rules without a configuration that is good. Those
// that are there stay: they are of one that was.
func (w firewallWish) without(cause error) (string, error) {
	there, err := firewall.Applied()
	if err != nil {
		return "", errors.Join(cause, err)
	}
	if there {
		return "the rules stay as they are", cause
	}
	if !w.appliance {
		return "there are no rules", cause
	}
	if err := firewall.Rescue().Apply(); err != nil {
		return "", errors.Join(cause, err)
	}
	return rescueIsSaid, cause
}

// inForce is the configuration that edged has applied last; nil if that is the one
// with this hash, or if it cannot be told.
func inForce(stateDir, hash string) *edge.Config {
	path := filepath.Join(stateDir, "applied.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	c, err := edge.Parse(path, b)
	if err != nil || c.Hash == hash {
		return nil
	}
	return c
}
