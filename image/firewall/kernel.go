package firewall

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	// patience bounds one exchange with the kernel: the library waits for an answer
	// to each message of a batch, and a kernel that refuses the batch as a whole
	// gives one in all.
	patience = 10 * time.Second
	// buffer, in bytes, takes the largest batch, which is sent in one piece, and the
	// answers to all of it.
	buffer = 16 << 20
	// atOnce is how many elements one message has: its length has 16 bits.
	atOnce = 512
)

func ours() *nftables.Table {
	return &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
}

// open makes a connection that opens a socket, in the namespace of this thread,
// for each exchange.
func open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(bound))
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return c, nil
}

// bound is generic because the library's socket is of a package that this module
// does not import otherwise.
func bound[C interface {
	SetDeadline(time.Time) error
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}](c C) error {
	return errors.Join(c.SetDeadline(time.Now().Add(patience)), c.SetReadBuffer(buffer), c.SetWriteBuffer(buffer))
}

// tableNow is the table as the kernel has it; nil if there is none.
func tableNow() (*nftables.Table, error) {
	c, err := open()
	if err != nil {
		return nil, err
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	i := slices.IndexFunc(all, func(t *nftables.Table) bool { return t.Name == Table })
	if i < 0 {
		return nil, nil
	}
	return all[i], nil
}

// count is where a counter stands.
type count struct{ packets, bytes uint64 }

// countersNow reads where the counters stand, to go on from there. What is counted
// between this and the new table is lost.
func countersNow() (map[string]count, error) {
	t, err := tableNow()
	if t == nil || err != nil {
		return nil, err
	}
	c, err := open()
	if err != nil {
		return nil, err
	}
	all, err := c.GetNamedObjects(t)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	out := map[string]count{}
	for _, o := range all {
		if named, ok := o.(*nftables.NamedObj); ok {
			if n, ok := named.Obj.(*expr.Counter); ok {
				out[named.Name] = count{n.Packets, n.Bytes}
			}
		}
	}
	return out, nil
}

// write replaces the table in one batch.
func (l layout) write() error {
	stood, err := countersNow()
	if err != nil && !errors.Is(err, syscall.ENOENT) { // it was taken away just now
		return err
	}
	c, err := open()
	if err != nil {
		return err
	}
	t := ours()
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
	for _, name := range counters() {
		n := stood[name]
		c.AddObj(&nftables.NamedObj{Table: t, Name: name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{Packets: n.packets, Bytes: n.bytes}})
	}
	for i, s := range l.sets {
		if err := s.write(c, t, uint32(i+1)); err != nil {
			return fmt.Errorf("lay out set %s: %w", s.name, err)
		}
	}
	to := map[string]*nftables.Chain{}
	for _, ch := range l.chains { // all of them first: rules jump to some
		to[ch.name] = c.AddChain(ch.kernel(t))
	}
	for _, ch := range l.chains {
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: to[ch.name], Exprs: r.exprs, UserData: r.userData()})
		}
	}
	return c.Flush()
}

func (ch chain) kernel(t *nftables.Table) *nftables.Chain {
	if ch.hook == nil {
		return &nftables.Chain{Name: ch.name, Table: t}
	}
	policy := nftables.ChainPolicyAccept
	if ch.drops {
		policy = nftables.ChainPolicyDrop
	}
	return &nftables.Chain{Name: ch.name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: ch.hook, Priority: ch.prio, Policy: &policy}
}

// write adds the set with a number of its own in the batch: the library counts
// them itself otherwise, for all threads and without a lock.
func (s set) write(c *nftables.Conn, t *nftables.Table, id uint32) error {
	out := &nftables.Set{ID: id, Table: t, Name: s.name, KeyType: s.key}
	if err := c.AddSet(out, nil); err != nil {
		return err
	}
	for part := range slices.Chunk(s.elements, atOnce) {
		if err := c.SetAddElements(out, part); err != nil {
			return err
		}
	}
	return nil
}

func deleteTable() error {
	c, err := open()
	if err != nil {
		return err
	}
	c.DelTable(ours())
	return c.Flush()
}
