package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// applianceCommand is the parent of what the units of a box call. People have no
// need of it.
func (o *options) applianceCommand() *cobra.Command {
	c := &cobra.Command{Use: "appliance", Short: "What the units of a box call", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("one of its commands is needed") }}
	c.AddCommand(
		o.applianceSetupCommand(),
		o.applianceConfirmCommand(o.openConfigs),
		o.applianceFirewallCommand(thisBox()),
		o.applianceTuneCommand(),
		o.applianceHealthCommand(thisBox()),
		o.applianceResumeCommand(thisBox()),
		o.applianceWatchCommand(),
	)
	return c
}

// edgeConfig is where the configuration of a box is.
const edgeConfig = "/etc/edge/edge.yaml"
