// Package tune sets interfaces as native XDP needs them: offloads that merge packets
// or hide tags off, so many queues as the driver can spare, an MTU that fits.
//
// It does not judge: what is to be set is a finding of edged's own preflight, handed
// over by the command, so that the two never disagree. Plan is pure; Apply asks the
// kernel by ethtool and netlink. It changes nothing that is not in the plan, keeps
// nothing and undoes nothing: what is set lasts until the interface is made anew.
// `edgectl appliance tune` runs it before edged starts.
package tune

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Leave is a number of queues that is not to be changed.
const Leave = -1

// Queues are those of a device by what they do; Leave lets a number stay.
type Queues struct{ RX, TX, Combined int }

// Change is one setting of an interface: one of Feature, Queues and MTU.
type Change struct {
	Interface string
	// Why is what was found, in a few words.
	Why string
	// Feature is an offload, by the kernel's name (ethtool -k), that is to be off.
	Feature string
	// Queues, if not nil, is how many there are to be.
	Queues *Queues
	// MTU in bytes; 0: it stays.
	MTU int
}

// String says what is set.
func (c Change) String() string {
	switch {
	case c.Feature != "":
		return c.Interface + ": " + c.Feature + " off"
	case c.Queues != nil:
		var parts []string
		for _, n := range []struct {
			name string
			n    int
		}{{"rx", c.Queues.RX}, {"tx", c.Queues.TX}, {"combined", c.Queues.Combined}} {
			if n.n != Leave {
				parts = append(parts, fmt.Sprintf("%s %d", n.name, n.n))
			}
		}
		return c.Interface + ": queues " + strings.Join(parts, ", ")
	}
	return fmt.Sprintf("%s: mtu %d", c.Interface, c.MTU)
}

// step is where a change stands in the order: queues first, since a driver that is
// set up anew for them may forget the rest, and the MTU last, which depends on what
// is merged.
func (c Change) step() int {
	switch {
	case c.Queues != nil:
		return 0
	case c.Feature != "":
		return 1
	}
	return 2
}

// Plan puts changes into the order in which they are made, each once. Two that ask
// for another number of the same thing are both kept: the one that was found last is
// made last.
func Plan(found []Change) []Change {
	var out []Change
	for _, c := range found {
		if !slices.ContainsFunc(out, c.same) {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), a.step()-b.step())
	})
	return out
}

// same says whether both set the same, whatever the reason.
func (c Change) same(o Change) bool { return c.String() == o.String() }

// device is what sets an interface; a kernel, or a test.
type device interface {
	off(iface, feature string) error
	queues(iface string, q Queues) error
	mtu(iface string, bytes int) error
}

// Apply makes the changes in their order, and returns those that were made. One
// that is refused does not keep the others from being made.
func Apply(plan []Change) ([]Change, error) {
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()
	return apply(plan, k)
}

func apply(plan []Change, d device) (done []Change, err error) {
	var errs []error
	for _, c := range plan {
		var err error
		switch {
		case c.Feature != "":
			err = d.off(c.Interface, c.Feature)
		case c.Queues != nil:
			err = d.queues(c.Interface, *c.Queues)
		default:
			err = d.mtu(c.Interface, c.MTU)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set %s: %w", c, err))
			continue
		}
		done = append(done, c)
	}
	return done, errors.Join(errs...)
}
