package edge

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostFirewall(t *testing.T) {
	src := func(section string) string {
		return strings.Replace(read(t, "testdata/smallest.yaml"), "  name: n\n", "  name: n\n  host_firewall: {"+section+"}\n", 1)
	}
	parse := func(section string) *Config {
		t.Helper()
		c, err := Parse("f", []byte(src(section)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for section, want := range map[string][2]bool{ // elsewhere, in the appliance
		"": {false, true}, "mode: auto": {false, true}, "mode: on": {true, true}, "mode: off": {false, false},
	} {
		f := parse(section).Local.HostFirewall
		if got := [2]bool{f.On(false), f.On(true)}; got != want {
			t.Errorf("%q is on: %v, want %v", section, got, want)
		}
	}
	if got := parse("management_ports: []").Local.HostFirewall.ManagementPorts; len(got) != 0 {
		t.Errorf("no ports at all: got %v", got)
	}
	changes := Diff(parse(""), parse(`mode: on, management_nets: [10.0.0.0/8, "::/0"], management_ports: [22, 9100]`))
	want := []string{
		"node.host_firewall.mode: auto -> on",
		"node.host_firewall.management_nets: [] -> [10.0.0.0/8 ::/0]",
		"node.host_firewall.management_ports: [22] -> [22 9100]",
	}
	if d := cmp.Diff(want, changes); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for section, says := range map[string]string{
		"mode: yes":                            `"yes" is not auto or on or off`,
		"management_nets: [10.0.0.1/8]":        "has bits behind its length: expected 10.0.0.0/8",
		"management_nets: [10.0.0.1]":          "is not a prefix",
		"management_ports: [0]":                "0 is not a TCP or UDP port",
		"management_ports: ssh":                "expected a list",
		"enabled: true":                        "no such key",
		"management_nets: [\"::ffff:0:0/96\"]": "is not a prefix",
	} {
		_, err := Parse("f", []byte(src(section)))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", section, err, says)
		}
	}
}
