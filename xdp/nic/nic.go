// Package nic knows the box that the data plane is to run on: what its interfaces
// are unfit for, and the command that mends it; what the maps of the program will
// take of its memory; which MAC addresses and VLAN tags belong to its uplinks.
//
// It owns the knowledge of drivers (drivers.go) and of the sizes of BPF maps
// (memory.go). Judge, Memory and the walk over the links are pure; Preflight and
// Links read the kernel by netlink, ethtool and sysfs. It never changes an
// interface, makes no map and attaches nothing: package xdp does. It runs in edged.
package nic

import (
	"errors"
	"fmt"

	"github.com/catchment-dev/edge"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Finding is one thing about an interface that an operator should know.
type Finding struct {
	Interface string
	// Fatal says that the program cannot run there as asked, or would misdirect
	// packets: it is not to be attached before Remedy is done.
	Fatal bool
	// What is the matter, in a few words.
	What string
	// Remedy is a command, or what to do where there is none.
	Remedy string
	// Setting is what Remedy sets, where a program may do so.
	Setting Setting
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("interface %s: %s: %s", f.Interface, f.What, f.Remedy)
}

// Fatal is an error of all findings that are fatal; nil if none is.
func Fatal(found []Finding) error {
	var errs []error
	for _, f := range found {
		if f.Fatal {
			errs = append(errs, errors.New(f.String()))
		}
	}
	return errors.Join(errs...)
}

// Preflight says what is wrong with an interface that the program is to be
// attached to in a mode; fatal findings come first, none is fine. Overhead is the
// most that encapsulation adds to a packet, in bytes; VLAN tags are no part of it.
//
// It changes nothing, so it cannot try whether a driver runs XDP: a kernel before
// 6.3 does not say it, and then the attachment is what tells. It reads the calling
// thread's network namespace. An error says that the interface is not there or
// that the kernel did not answer.
func Preflight(ifname string, mode edge.XDPMode, overhead int) ([]Finding, error) {
	facts, err := Gather(ifname)
	if err != nil {
		return nil, err
	}
	facts.Mode, facts.Overhead = mode, overhead
	return Judge(facts), nil
}

// ownLinks lists the interfaces of the calling thread's network namespace.
func ownLinks() ([]netlink.Link, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	return listLinks(nl)
}

func listLinks(nl *netlink.Handle) ([]netlink.Link, error) {
	// A list that changed while it was read is read again; one that changes all
	// the time is taken as it is: the caller asks again later.
	var all []netlink.Link
	var err error
	for range 5 {
		if all, err = nl.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return all, nil
}
