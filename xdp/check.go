package xdp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp/maglev"
)

// checkTable says everything that is wrong with a table, so that nothing of a
// bad one reaches the maps.
func checkTable(t edge.Table) error {
	var errs []error
	backends := 0
	names := make(map[edge.ServiceID]bool)
	type vip struct {
		addr     netip.AddrPort
		protocol edge.Protocol
	}
	vips := make(map[vip]edge.ServiceID)
	addrs := make(map[netip.Addr]bool)
	for _, svc := range t.Services {
		if err := checkService(t, svc); err != nil {
			errs = append(errs, fmt.Errorf("service %q: %w", svc.ID, err))
		}
		v := vip{netip.AddrPortFrom(svc.VIP.Addr().Unmap(), svc.VIP.Port()), svc.Protocol}
		if other, ok := vips[v]; ok {
			errs = append(errs, fmt.Errorf("services %q and %q have the same VIP %s/%s", other, svc.ID, v.addr, v.protocol))
		}
		if names[svc.ID] {
			errs = append(errs, fmt.Errorf("service %q is there twice", svc.ID))
		}
		vips[v], names[svc.ID], addrs[v.addr.Addr()] = svc.ID, true, true
		backends += len(svc.Backends)
	}
	if n := len(t.Services); n > maxServices {
		errs = append(errs, fmt.Errorf("%d services are more than %d", n, maxServices))
	}
	if backends > maxBackends {
		errs = append(errs, fmt.Errorf("%d backends over all services are more than %d", backends, maxBackends))
	}
	return errors.Join(append(errs, checkTunnel(t, addrs))...)
}

// checkTunnel checks the addresses of the node itself.
func checkTunnel(t edge.Table, vips map[netip.Addr]bool) error {
	var errs []error
	if a := t.Source4; a.IsValid() && !a.Unmap().Is4() {
		errs = append(errs, fmt.Errorf("source %s is not an IPv4 address", a))
	}
	if a := t.Source6; a.IsValid() && a.Unmap().Is4() {
		errs = append(errs, fmt.Errorf("source %s is not an IPv6 address", a))
	}
	for _, a := range []netip.Addr{t.Source4, t.Source6} {
		if a.IsValid() && vips[a.Unmap()] {
			errs = append(errs, fmt.Errorf("source %s is a VIP", a))
		}
		if a.IsValid() {
			errs = append(errs, checkAddr(a))
		}
	}
	if len(t.Trusted) > maxTrusted {
		errs = append(errs, fmt.Errorf("%d trusted addresses are more than %d", len(t.Trusted), maxTrusted))
	}
	for _, a := range t.Trusted {
		errs = append(errs, checkAddr(a))
	}
	return errors.Join(errs...)
}

func checkAddr(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
		return fmt.Errorf("address %s is not one of a host", a)
	}
	return nil
}

func checkService(t edge.Table, svc edge.TableService) error {
	if err := checkName(string(svc.ID)); err != nil {
		return err
	}
	if err := checkAddr(svc.VIP.Addr()); err != nil {
		return err
	}
	if err := checkPolicy(svc); err != nil {
		return err
	}
	switch {
	case svc.Protocol == edge.AnyProtocol && svc.VIP.Port() != 0:
		return errors.New("a service of all protocols has all ports: its port is not 0")
	case svc.Protocol != edge.AnyProtocol && svc.Protocol != edge.TCP && svc.Protocol != edge.UDP:
		return fmt.Errorf("protocol %s is not tcp, udp or any", svc.Protocol)
	case svc.Encap != edge.EncapGUE && svc.Encap != edge.EncapIPIP:
		return fmt.Errorf("encapsulation %q is not %s or %s", svc.Encap, edge.EncapGUE, edge.EncapIPIP)
	}
	names := make(map[edge.BackendID]bool)
	for _, b := range svc.Backends {
		if names[b.ID] {
			return fmt.Errorf("backend %q is there twice", b.ID)
		}
		names[b.ID] = true
		if err := checkBackend(t, svc, b); err != nil {
			return fmt.Errorf("backend %q: %w", b.ID, err)
		}
	}
	return nil
}

// checkPolicy checks what the configuration would not let pass either.
func checkPolicy(svc edge.TableService) error {
	if _, ok := affinityFields[svc.Affinity]; !ok {
		return fmt.Errorf("affinity %q is not known", svc.Affinity)
	}
	if t := svc.Tracking; t != "" && t != edge.PerConnection && t != edge.PerSession {
		return fmt.Errorf("tracking %q is not %s or %s", t, edge.PerConnection, edge.PerSession)
	}
	if svc.Pool != edge.PoolPrimary && svc.Pool != edge.PoolFailover {
		return fmt.Errorf("pool %q is not known", svc.Pool)
	}
	if svc.IdleTimeout < 0 || svc.IdleTimeout > maxIdle {
		return fmt.Errorf("idle timeout %s is not 0 to %s", svc.IdleTimeout, maxIdle)
	}
	l := svc.SYNLimit
	for _, n := range []int{l.Rate, l.Burst, l.SourceRate, l.SourceBurst} {
		if n < 0 || n > maxRate {
			return fmt.Errorf("a SYN limit of %d is not 0 to %d", n, maxRate)
		}
	}
	q := svc.QUIC
	if q != nil && (q.Offset < 0 || q.Length < 1 || q.Length > maxServerID || q.Offset+q.Length > maxConnectionID) {
		return fmt.Errorf("a server id of %d bytes at offset %d is not within the %d bytes of a connection id, or is longer than %d",
			q.Length, q.Offset, maxConnectionID, maxServerID)
	}
	return checkServerIDs(svc)
}

func checkServerIDs(svc edge.TableService) error {
	of := make(map[string]edge.BackendID)
	for _, b := range svc.Backends {
		if b.ServerID == "" {
			continue
		}
		if svc.QUIC == nil || len(b.ServerID) != svc.QUIC.Length {
			return fmt.Errorf("backend %q: its server id has %d bytes, which is not what the service reads", b.ID, len(b.ServerID))
		}
		if other, ok := of[b.ServerID]; ok {
			return fmt.Errorf("backends %q and %q have the same server id", other, b.ID)
		}
		of[b.ServerID] = b.ID
	}
	return nil
}

func checkBackend(t edge.Table, svc edge.TableService, b edge.TableBackend) error {
	if err := checkName(string(b.ID)); err != nil {
		return err
	}
	if err := checkAddr(b.Addr); err != nil {
		return err
	}
	if b.Weight < 0 || b.Weight > maglev.MaxWeight {
		return fmt.Errorf("weight %d is not 0 to %d", b.Weight, maglev.MaxWeight)
	}
	if isLocal(t, b) {
		return nil
	}
	if b.Addr.Unmap() == svc.VIP.Addr().Unmap() {
		return errors.New("its address is the VIP: packets would go round in circles")
	}
	if b.Addr.Unmap().Is4() && !t.Source4.IsValid() || b.Addr.Unmap().Is6() && !t.Source6.IsValid() {
		return fmt.Errorf("this node has no source address of the family of %s", b.Addr)
	}
	return nil
}

// isLocal says whether a backend is this box, also if only its address says so.
func isLocal(t edge.Table, b edge.TableBackend) bool {
	a := b.Addr.Unmap()
	return b.Local || t.Source4.IsValid() && a == t.Source4.Unmap() || t.Source6.IsValid() && a == t.Source6.Unmap()
}

func checkName(name string) error {
	if len(name) == 0 || len(name) > maxNameLen {
		return fmt.Errorf("its name has %d bytes, not 1 to %d", len(name), maxNameLen)
	}
	for _, c := range []byte(name) {
		if c == 0 {
			return errors.New("its name holds a zero byte")
		}
	}
	return nil
}
