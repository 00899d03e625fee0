package main

import (
	"errors"
	"testing"

	"github.com/catchment-dev/edge"
)

func TestHostFirewall(t *testing.T) {
	c, err := edge.Load("../../reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for flow, want := range map[string]string{
		"tcp 203.0.113.9:40000 198.51.100.10:443": "host firewall: lets it in",
		"tcp 203.0.113.9:40000 10.1.0.2:22":       "host firewall: drops it, counter refused_management, unless it answers what this box has begun",
		"udp 10.1.0.1:49152 10.1.0.2:3784":        "host firewall: lets it in with a TTL of 255 or more by eth0, else drops it, counter refused_bfd_not_a_peer",
		"udp 203.0.113.9:49152 10.1.0.2:3784":     "host firewall: drops it, counter refused_bfd_not_a_peer",
		"gre 203.0.113.9 10.1.0.2":                "host firewall: drops it, counter refused_rest, unless it answers what this box has begun",
	} {
		f, _, err := parseFlow(flow)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostFirewall(c, func() (bool, error) { return true, nil }, f); got != want {
			t.Errorf("%s: %q, want %q", flow, got, want)
		}
	}
	if got := hostFirewall(c, func() (bool, error) { return false, errors.New("not permitted") }, edge.Flow{}); got != "host firewall: cannot be read: not permitted" {
		t.Errorf("%q", got)
	}
}
