package tune

import (
	"errors"
	"fmt"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
)

// kernel is the device that there is.
type kernel struct{ eth *ethtool.Ethtool }

func openKernel() (kernel, error) {
	eth, err := ethtool.NewEthtool()
	if err != nil {
		return kernel{}, fmt.Errorf("open ethtool: %w", err)
	}
	return kernel{eth}, nil
}

func (k kernel) close() { k.eth.Close() }

// errStays is a driver that says yes and does not do it.
var errStays = errors.New("the driver leaves it on")

// off switches a feature off, and looks: the kernel answers a wish that another
// feature overrules with success.
func (k kernel) off(iface, feature string) error {
	if err := k.eth.Change(iface, map[string]bool{feature: false}); err != nil {
		return err
	}
	now, err := k.eth.Features(iface)
	if err != nil {
		return fmt.Errorf("read it again: %w", err)
	}
	if now[feature] {
		return errStays
	}
	return nil
}

func (k kernel) queues(iface string, q Queues) error {
	now, err := k.eth.GetChannels(iface)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	for _, n := range []struct {
		to   *uint32
		want int
	}{{&now.RxCount, q.RX}, {&now.TxCount, q.TX}, {&now.CombinedCount, q.Combined}} {
		if n.want != Leave {
			*n.to = uint32(n.want)
		}
	}
	_, err = k.eth.SetChannels(iface, now)
	return err
}

func (k kernel) mtu(iface string, bytes int) error {
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(l, bytes)
}
