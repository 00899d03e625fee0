package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// binding is what is served on one address.
type binding struct {
	// health serves the node's own GET /healthz and nothing else.
	health  bool
	tls     bool
	service edge.ServiceID
}

// bindings returns every address that a configuration wants served.
func bindings(cfg *edge.Config) (map[netip.AddrPort]binding, error) {
	out := map[netip.AddrPort]binding{}
	for _, s := range cfg.Fleet.Services {
		if s.Proxied {
			out[s.VIP] = binding{tls: s.TLS, service: s.ID}
		}
	}
	node, err := self(cfg)
	if err != nil {
		return nil, err
	}
	for _, a := range []netip.Addr{node.Addr4, node.Addr6} {
		at := netip.AddrPortFrom(a, node.HealthPort)
		if !a.IsValid() || node.HealthPort == 0 {
			continue
		}
		if b, taken := out[at]; taken {
			return nil, fmt.Errorf("bind health port: %s is the vip of service %s", at, b.service)
		}
		out[at] = binding{health: true}
	}
	return out, nil
}

func self(cfg *edge.Config) (edge.Node, error) {
	for _, n := range cfg.Fleet.Nodes {
		if n.ID == cfg.Local.ID {
			return n, nil
		}
	}
	return edge.Node{}, fmt.Errorf("find this node: %q is not among the nodes of the fleet", cfg.Local.ID)
}

// Listen binds every address that cfg wants served, taking those that are
// already in have instead of binding them again, and returns them all. What is
// left in have afterwards nobody wants. On an error nothing new stays bound.
func Listen(cfg *edge.Config, have map[netip.AddrPort]*net.TCPListener) (map[netip.AddrPort]*net.TCPListener, error) {
	want, err := bindings(cfg)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.AddrPort]*net.TCPListener, len(want))
	var fresh []*net.TCPListener
	for at := range want {
		if ln, ok := have[at]; ok {
			out[at] = ln
			continue
		}
		ln, err := listen(at)
		if err != nil {
			for _, l := range fresh {
				l.Close()
			}
			return nil, err
		}
		fresh = append(fresh, ln)
		out[at] = ln
	}
	for at := range want {
		delete(have, at)
	}
	return out, nil
}

// listen binds at with IP_FREEBIND: the VIP is put on lo by edged, which may
// come later or have restarted just now.
func listen(at netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = freebind(int(fd), at.Addr().Is4()) })
		if ctlErr != nil {
			return ctlErr
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	return ln.(*net.TCPListener), nil
}

func freebind(fd int, v4 bool) error {
	if v4 {
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
}

// addrPort returns the address of one end of a TCP connection or listener.
func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}
