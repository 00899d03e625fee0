package nic

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/catchment-dev/edge"
	"github.com/cilium/ebpf"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Facts are what Judge looks at. The zero value of a field that the kernel did
// not tell is never taken for something bad.
type Facts struct {
	Name string
	Mode edge.XDPMode
	// Overhead is the most that encapsulation adds, in bytes.
	Overhead int

	// Kind is the kernel's kind of a virtual interface: veth, vlan, bond, tun ...;
	// device for one that a driver alone makes.
	Kind string
	// Driver is the name that ethtool -i shows; empty if it has none.
	Driver string
	// Link is the link layer: ether, loopback, none, ppp ...
	Link string
	Up   bool
	MTU  int
	// Lower is the interface below a VLAN or a macvlan, Peer the other end of a
	// veth; empty if it is in another network namespace.
	Lower, Peer string
	PeerMTU     int
	// Master is the bond, team or bridge that it is a port of.
	Master, MasterKind string
	// VLANs are the VLAN sub-interfaces above it.
	VLANs []VLAN
	// Bond is set for a bond: the program runs on its ports.
	Bond *Bond

	// XDP is what the driver can do; nil: the kernel does not say.
	XDP *XDPFeatures
	// Attached says that a program runs on it in native mode already: the driver
	// may have taken queues for it.
	Attached bool
	// Features are the ethtool features that are on, by the kernel's name of them.
	Features map[string]Feature
	Channels Channels

	// PossibleCPUs are all that the kernel has room for, OnlineCPUs those that run.
	PossibleCPUs, OnlineCPUs int
	// Kernel is its version, major and minor.
	Kernel [2]int
	// PageSize in bytes.
	PageSize int
}

// Feature is an offload that is on.
type Feature struct {
	// Fixed: it cannot be switched off.
	Fixed bool
}

// Channels are the queues of a device; all 0 if it does not say.
type Channels struct {
	RX, TX, Combined          int
	MaxRX, MaxTX, MaxCombined int
}

// Bond is what Judge asks of a bond.
type Bond struct {
	// Mode and HashPolicy are the kernel's words, as ip link shows them.
	Mode, HashPolicy string
	Ports            []Facts
}

// Gather reads the facts of an interface of the calling thread's network
// namespace. Mode and Overhead are left to the caller.
func Gather(ifname string) (Facts, error) {
	all, err := ownLinks()
	if err != nil {
		return Facts{}, err
	}
	i := slices.IndexFunc(all, func(l netlink.Link) bool {
		return l.Attrs().Name == ifname || slices.Contains(l.Attrs().AltNames, ifname)
	})
	if i < 0 {
		return Facts{}, fmt.Errorf("find interface %s: %w", ifname, unix.ENODEV)
	}
	eth, err := ethtool.NewEthtool()
	if err != nil {
		return Facts{}, fmt.Errorf("open ethtool: %w", err)
	}
	defer eth.Close()
	host, err := hostFacts()
	if err != nil {
		return Facts{}, err
	}
	g := gatherer{all: all, eth: eth, host: host}
	return g.interfaceFacts(all[i])
}

// gatherer reads the facts of one interface and of the ports below it.
type gatherer struct {
	all  []netlink.Link
	eth  *ethtool.Ethtool
	host Facts // what is the same for all of them
}

func hostFacts() (Facts, error) {
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		return Facts{}, fmt.Errorf("count possible CPUs: %w", err)
	}
	online, err := onlineCPUs()
	if err != nil {
		return Facts{}, err
	}
	kernel, err := kernelVersion()
	if err != nil {
		return Facts{}, err
	}
	return Facts{PossibleCPUs: possible, OnlineCPUs: online, Kernel: kernel, PageSize: os.Getpagesize()}, nil
}

func (g gatherer) interfaceFacts(dev netlink.Link) (Facts, error) {
	f := g.host
	a := dev.Attrs()
	f.Name, f.Kind, f.Link, f.MTU = a.Name, dev.Type(), a.EncapType, a.MTU
	f.Up = a.RawFlags&unix.IFF_UP != 0
	f.Attached = a.Xdp != nil && a.Xdp.Attached && a.Xdp.AttachMode == attachedNative
	g.neighbours(&f, a)
	if err := g.ethtoolFacts(&f); err != nil {
		return f, err
	}
	var err error
	if f.XDP, err = xdpFeatures(a.Index); err != nil {
		return f, fmt.Errorf("read XDP features of interface %s: %w", a.Name, err)
	}
	if bond, ok := dev.(*netlink.Bond); ok {
		f.Bond = &Bond{Mode: bond.Mode.String(), HashPolicy: bond.XmitHashPolicy.String()}
		for _, port := range g.all {
			if port.Attrs().MasterIndex != a.Index {
				continue
			}
			p, err := g.interfaceFacts(port)
			if err != nil {
				return f, err
			}
			f.Bond.Ports = append(f.Bond.Ports, p)
		}
	}
	return f, nil
}

// attachedNative is what IFLA_XDP_ATTACHED says of native mode (linux/if_link.h).
const attachedNative = 1

// neighbours finds what is below, beside and above an interface.
func (g gatherer) neighbours(f *Facts, a *netlink.LinkAttrs) {
	if a.NetNsID < 0 { // else the index is one of another namespace
		if lower := g.byIndex(a.ParentIndex); lower != nil && f.Kind == "veth" {
			f.Peer, f.PeerMTU = lower.Attrs().Name, lower.Attrs().MTU
		} else if lower != nil && stacked(f.Kind) {
			f.Lower = lower.Attrs().Name
		}
	}
	if master := g.byIndex(a.MasterIndex); master != nil && gathers(master.Type()) {
		f.Master, f.MasterKind = master.Attrs().Name, master.Type()
	}
	// The interface is there, so this cannot fail.
	info, _ := findLinks(linkFacts(g.all), []string{a.Name})
	f.VLANs = info.VLANs
}

func (g gatherer) byIndex(index int) netlink.Link {
	i := slices.IndexFunc(g.all, func(l netlink.Link) bool { return l.Attrs().Index == index })
	if i < 0 || index == 0 {
		return nil
	}
	return g.all[i]
}

// ethtoolFacts asks the driver. What it does not support is left out.
func (g gatherer) ethtoolFacts(f *Facts) error {
	var err error
	if f.Driver, err = g.eth.DriverName(f.Name); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("read driver of interface %s: %w", f.Name, err)
	}
	features, err := g.eth.FeaturesWithState(f.Name)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("read offloads of interface %s: %w", f.Name, err)
	}
	f.Features = make(map[string]Feature)
	for name, s := range features {
		if s.Active {
			f.Features[name] = Feature{Fixed: !s.Available || s.NeverChanged}
		}
	}
	c, err := g.eth.GetChannels(f.Name)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("read channels of interface %s: %w", f.Name, err)
	}
	f.Channels = Channels{
		RX: int(c.RxCount), TX: int(c.TxCount), Combined: int(c.CombinedCount),
		MaxRX: int(c.MaxRx), MaxTX: int(c.MaxTx), MaxCombined: int(c.MaxCombined),
	}
	return nil
}
