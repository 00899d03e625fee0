package main

import (
	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
)

// guardCommand shows the guard, and is the parent of what concerns it.
func (o *options) guardCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "guard", Short: "Show who may leave, who has promised whom to stay, and what is suspect", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var st edge.SystemStatus
			if err := o.call(c.Context(), "GET", "/v1/status", nil, &st); err != nil {
				return err
			}
			if o.output == "json" {
				return o.json(st.Guard)
			}
			return o.write(guardText(o.env, st))
		},
	}
	c.AddCommand(o.decisionsCommand(), o.guardWhatIfCommand(), o.trustCommand(), o.untrustCommand(), o.guardKeyCommand())
	return c
}
