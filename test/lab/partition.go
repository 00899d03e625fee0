package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ignoring is the packet filter's table of Ignore.
var ignoring = &nftables.Table{Family: nftables.TableFamilyINet, Name: "lab-ignore"}

// Ignore drops, where it arrives, every IP packet that comes from one of these
// boxes, and from no others any more; with none of them it drops nothing. The boxes
// go on hearing this one as long as they do not ignore it: what is cut is one way.
// No carrier goes, no send fails, nobody is told.
func (b *Box) Ignore(from ...*Box) error {
	c, err := nftables.New(nftables.WithNetNSFd(b.ns))
	if err != nil {
		return fmt.Errorf("open packet filter of %s: %w", b.name, err)
	}
	// One batch: nothing passes between the old rules and the new. Adding the table
	// first makes its absence no error.
	c.DelTable(c.AddTable(ignoring))
	if len(from) > 0 {
		table := c.AddTable(ignoring)
		chain := c.AddChain(&nftables.Chain{
			Name: "in", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		for _, other := range from {
			for _, addr := range []string{other.Addr4, other.Addr6} {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: dropFrom(netip.MustParseAddr(addr))})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("change what %s ignores: %w", b.name, err)
	}
	return nil
}

// dropFrom matches the source address of a packet of the family of a.
func dropFrom(a netip.Addr) []expr.Any {
	proto, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if a.Is6() {
		proto, offset = unix.NFPROTO_IPV6, 8
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(a.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// Ignored counts the packets that the rules of Ignore have dropped so far.
func (b *Box) Ignored() (n uint64, err error) {
	c, err := nftables.New(nftables.WithNetNSFd(b.ns))
	if err != nil {
		return 0, fmt.Errorf("open packet filter of %s: %w", b.name, err)
	}
	rules, err := c.GetRules(ignoring, &nftables.Chain{Name: "in", Table: ignoring})
	if err != nil {
		return 0, fmt.Errorf("read what %s ignores: %w", b.name, err)
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			if count, ok := e.(*expr.Counter); ok {
				n += count.Packets
			}
		}
	}
	return n, nil
}
