package xdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/catchment-dev/edge/xdp/nic"
	"github.com/cilium/ebpf/link"
)

// mostOverhead is the most that encapsulation adds to a packet, in bytes: an
// IPv6 and a UDP header.
const mostOverhead = 40 + 8

// checkInterfaces refuses interfaces that the program cannot be attached to,
// with all that is wrong with them at once. Where it is attached already it works
// after all: there, and for all that is no obstacle, a warning will do.
func (l *loader) checkInterfaces() error {
	return l.judgeInterfaces(func(ifname string) ([]nic.Finding, error) {
		return nic.Preflight(ifname, l.o.Mode, mostOverhead)
	})
}

func (l *loader) judgeInterfaces(preflight func(ifname string) ([]nic.Finding, error)) error {
	var errs []error
	for _, ifname := range l.o.Interfaces {
		attached := l.isAttached(ifname)
		found, err := preflight(ifname)
		if err != nil && !attached {
			errs = append(errs, err)
		}
		for _, f := range found {
			if f.Fatal && !attached {
				errs = append(errs, errors.New(f.String()))
				continue
			}
			l.o.Log.Warn("interface is not as it should be", "interface", f.Interface, "finding", f.What, "remedy", f.Remedy)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("check interfaces in %s mode: %w", l.o.Mode, errors.Join(errs...))
}

// isAttached says whether an interface has a link that will be kept.
func (l *loader) isAttached(ifname string) bool {
	pins, err := l.linkPins(ifname)
	return err == nil && slices.ContainsFunc(pins, func(pin string) bool {
		lk, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			return false
		}
		defer lk.Close()
		return checkAttached(l.nl, lk, ifname, l.o.Mode) == nil
	})
}
