package nic

import (
	"fmt"
	"strings"
)

// Setting is a change of an interface that mends a finding and may be made by a
// program: nothing but the interface depends on it. The zero value is none.
type Setting struct {
	Interface string
	// Feature is an offload, by the kernel's name, that is to be off; empty: none.
	Feature string
	// Queues, if not nil, is how many there are to be.
	Queues *Queues
	// MTU is what it is to be, in bytes; 0: it stays.
	MTU int
}

// Queues are those of a device by what they do; Leave lets a number stay.
type Queues struct{ RX, TX, Combined int }

// Leave is a number of queues that is not to be changed.
const Leave = -1

// command is what a person would type for it; flag is ethtool's name of the feature.
func (s Setting) command(flag string) string {
	switch {
	case s.Feature != "":
		return fmt.Sprintf("ethtool -K %s %s off", s.Interface, flag)
	case s.Queues != nil:
		var b strings.Builder
		fmt.Fprintf(&b, "ethtool -L %s", s.Interface)
		for _, n := range []struct {
			name string
			n    int
		}{{"rx", s.Queues.RX}, {"tx", s.Queues.TX}, {"combined", s.Queues.Combined}} {
			if n.n != Leave {
				fmt.Fprintf(&b, " %s %d", n.name, n.n)
			}
		}
		return b.String()
	}
	return fmt.Sprintf("ip link set %s mtu %d", s.Interface, s.MTU)
}

// off is the setting that switches a feature off, and its command.
func (j *judge) off(feature, flag string) (Setting, string) {
	s := Setting{Interface: j.Name, Feature: feature}
	return s, s.command(flag)
}

// combined is the setting that leaves so many queues that both receive and send,
// and its command.
func (j *judge) combined(n int) (Setting, string) {
	return j.queues(Queues{RX: Leave, TX: Leave, Combined: n})
}

func (j *judge) queues(q Queues) (Setting, string) {
	s := Setting{Interface: j.Name, Queues: &q}
	return s, s.command("")
}

// with adds the setting to the finding that was made last.
func (j *judge) with(s Setting) { j.found[len(j.found)-1].Setting = s }
