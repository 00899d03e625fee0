package lab

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// silenced is the packet filter's table of the silence of an interface.
func silenced(ifname string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: "lab-silence-" + ifname}
}

// Silence drops every IP packet between the box and its router, both ways, where
// it arrives: no carrier goes, no send fails, nobody is told. It is what a broken
// switch between the two does.
func (b *Box) Silence() error {
	if err := errors.Join(b.near.deafen(b.name), b.deafen(uplink)); err != nil {
		return fmt.Errorf("silence %s: %w", b.name, errors.Join(err, b.near.hear(b.name), b.hear(uplink)))
	}
	return nil
}

// EndSilence undoes Silence; without one it does nothing.
func (b *Box) EndSilence() error {
	if err := errors.Join(b.near.hear(b.name), b.hear(uplink)); err != nil {
		return fmt.Errorf("end silence of %s: %w", b.name, err)
	}
	return nil
}

// deafen drops what arrives on an interface before anything but XDP sees it.
func (h *Host) deafen(ifname string) error {
	c, err := nftables.New(nftables.WithNetNSFd(h.ns))
	if err != nil {
		return fmt.Errorf("open packet filter of %s: %w", h.name, err)
	}
	name := make([]byte, 16) // IFNAMSIZ
	copy(name, ifname)
	table := c.AddTable(silenced(ifname))
	chain := c.AddChain(&nftables.Chain{
		Name: "in", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("drop what %s gets on %s: %w", h.name, ifname, err)
	}
	return nil
}

// hear takes the table away. Adding it first makes its absence no error.
func (h *Host) hear(ifname string) error {
	c, err := nftables.New(nftables.WithNetNSFd(h.ns))
	if err != nil {
		return fmt.Errorf("open packet filter of %s: %w", h.name, err)
	}
	c.DelTable(c.AddTable(silenced(ifname)))
	if err := c.Flush(); err != nil {
		return fmt.Errorf("drop nothing any more on %s of %s: %w", ifname, h.name, err)
	}
	return nil
}
