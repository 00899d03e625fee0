package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// guardCommand is the parent of what concerns the guard.
func (o *options) guardCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "guard COMMAND", Short: "The promises by which sites leave", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a command is needed; edgectl guard --help lists them")
		},
	}
	c.AddCommand(o.guardKeyCommand())
	return c
}
