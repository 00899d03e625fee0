package main

import (
	"fmt"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/firewall"
)

// hostFirewall says what the host firewall does to a packet that the forwarder
// leaves to the kernel. ruled says whether its table is there: the rules are then
// those of the configuration.
func hostFirewall(c *edge.Config, ruled func() (bool, error), f edge.Flow) string {
	const who = "host firewall: "
	on, err := ruled()
	switch {
	case err != nil:
		return who + "cannot be read: " + err.Error()
	case !on:
		return who + "off"
	}
	fate := firewall.Build(c).Judge(firewall.Packet{Protocol: f.Protocol, From: f.Src, To: f.Dst})
	if fate.LetIn && fate.Refused == "" {
		return who + "lets it in"
	}
	dropped := "drops it, counter " + fate.Refused
	if fate.LetIn {
		condition := ""
		if fate.TTL > 0 {
			condition = fmt.Sprintf(" with a TTL of %d or more", fate.TTL)
		}
		if fate.Link != "" {
			condition += " by " + fate.Link
		}
		dropped = "lets it in" + condition + ", else " + dropped
	}
	if fate.Answers {
		dropped += ", unless it answers what this box has begun"
	}
	return who + dropped
}
