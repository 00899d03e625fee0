package nic

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// XDPFeatures is what a driver can do with XDP, as the kernel says it
// (linux/netdev.h, enum netdev_xdp_act).
type XDPFeatures uint64

// The features that matter here.
const (
	xdpBasic    XDPFeatures = 1 << 0 // a program runs in the driver, and may pass, drop and send back
	xdpRedirect XDPFeatures = 1 << 1 // it may send out of another interface
	xdpTransmit XDPFeatures = 1 << 2 // another's program may send out of this one (NDO_XMIT)
)

// Of the generic netlink families nlctrl and netdev (linux/genetlink.h,
// linux/netdev.h).
const (
	ctrlGetFamily  = 3
	ctrlFamilyID   = 1
	ctrlFamilyName = 2

	netdevName     = "netdev"
	netdevGet      = 1
	netdevIfindex  = 1
	netdevFeatures = 3
)

// TakesRedirected says whether a program on another interface can send frames out
// of this one. Nil: the kernel is older than 6.3, which does not say. It asks by
// the socket for generic netlink in at, in the network namespace of that; without
// one in the calling thread's.
func TakesRedirected(at map[int]*nl.SocketHandle, ifindex int) (*bool, error) {
	x, err := askFeatures(at, ifindex)
	if err != nil || x == nil {
		return nil, err
	}
	takes := *x&xdpTransmit != 0
	return &takes, nil
}

// xdpFeatures asks what the driver of an interface can do. Nil: the kernel is
// older than 6.3, which does not say.
func xdpFeatures(ifindex int) (*XDPFeatures, error) { return askFeatures(nil, ifindex) }

func askFeatures(at map[int]*nl.SocketHandle, ifindex int) (*XDPFeatures, error) {
	id, err := askGenl(at, nl.GENL_ID_CTRL, genlHeader{ctrlGetFamily, 1}, nl.NewRtAttr(ctrlFamilyName, nl.ZeroTerminated(netdevName)), ctrlFamilyID)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find generic netlink family %s: %w", netdevName, err)
	}
	if len(id) != 2 {
		return nil, fmt.Errorf("find generic netlink family %s: its number is %x", netdevName, id)
	}
	b, err := askGenl(at, nl.NativeEndian().Uint16(id), genlHeader{netdevGet, 1}, nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(ifindex))), netdevFeatures)
	if err != nil || len(b) != 8 {
		return nil, err
	}
	x := XDPFeatures(nl.NativeEndian().Uint64(b))
	return &x, nil
}

// genlHeader is a struct genlmsghdr. That of the netlink library (1.3.1) sends
// what happens to be in memory in the reserved bytes, and netdev wants zeroes.
type genlHeader struct{ command, version uint8 }

func (h genlHeader) Len() int          { return nl.SizeofGenlmsg }
func (h genlHeader) Serialize() []byte { return []byte{h.command, h.version, 0, 0} }

// askGenl sends a request of one attribute to a family and returns an attribute
// of the answer; nil if the answer has it not.
func askGenl(at map[int]*nl.SocketHandle, family uint16, h genlHeader, attr *nl.RtAttr, want uint16) ([]byte, error) {
	const kind = 0x3fff // of an attribute, without its flags
	req := nl.NewNetlinkRequest(int(family), 0)
	req.Sockets = at
	req.AddData(h)
	req.AddData(attr)
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m) < h.Len() {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[h.Len():])
		if err != nil {
			return nil, fmt.Errorf("read answer: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type&kind == want {
				return a.Value, nil
			}
		}
	}
	return nil, nil
}

// kernelVersion returns major and minor version.
func kernelVersion() ([2]int, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return [2]int{}, fmt.Errorf("read kernel version: %w", err)
	}
	return parseRelease(unix.ByteSliceToString(u.Release[:]))
}

// parseRelease reads major and minor of a release as uname -r prints it:
// 6.1.0-17-amd64, 6.18-rc1.
func parseRelease(s string) ([2]int, error) {
	major, rest, ok := strings.Cut(s, ".")
	if !ok {
		return [2]int{}, fmt.Errorf("read kernel version %q: no dot", s)
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(rest[:end])
	if err := errors.Join(errA, errB); err != nil {
		return [2]int{}, fmt.Errorf("read kernel version %q: %w", s, err)
	}
	return [2]int{a, b}, nil
}

// onlineCPUs counts the CPUs that run. Not runtime.NumCPU, which counts those
// that this process may use.
func onlineCPUs() (int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	n, err := countCPUs(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	return n, nil
}

// countCPUs counts the numbers in a list of ranges: "0-3,8".
func countCPUs(list string) (int, error) {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(errA, errB); err != nil || b < a {
			return 0, fmt.Errorf("%q is no range of numbers", part)
		}
		n += int(b-a) + 1
	}
	return n, nil
}
