package nft

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
)

const (
	// patience bounds one exchange with the kernel. It is needed: the library
	// waits for an answer to each message of a batch, and a kernel that refuses
	// the batch as a whole gives one in all.
	patience = 10 * time.Second
	// sendBuffer, in bytes, takes the largest batch: it is sent in one piece.
	sendBuffer = 8 << 20
	// atOnce is how many elements one message has: its length has 16 bits.
	atOnce = 512
)

func ours() *nftables.Table {
	return &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
}

// open makes a connection that opens a socket, in the namespace of this thread,
// for each exchange.
func open() (*nftables.Conn, error) { return nftables.New(nftables.WithSockOptions(bound)) }

// bound is generic because the library's socket is of a package that this module
// does not import otherwise.
func bound[C interface {
	SetDeadline(time.Time) error
	SetWriteBuffer(int) error
}](c C) error {
	return errors.Join(c.SetDeadline(time.Now().Add(patience)), c.SetWriteBuffer(sendBuffer))
}

// tableNow reads the table as the kernel has it; nil if there is none.
func tableNow() (*layout, error) {
	c, err := open()
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if lacksTables(err) {
		return nil, errNoTables
	}
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	i := slices.IndexFunc(all, func(t *nftables.Table) bool { return t.Name == Table })
	if i < 0 {
		return nil, nil
	}
	l, err := read(c, all[i])
	if err != nil {
		// It is being changed right now, or has something in it that the library
		// cannot read. Neither is what we wrote: it is replaced.
		return &layout{}, nil
	}
	return l, nil
}

// lacksTables says whether an answer is that of a kernel without nf_tables: no
// such subsystem (nfnetlink_rcv_msg), no such netlink protocol, no netlink.
func lacksTables(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) ||
		errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.EAFNOSUPPORT)
}

func read(c *nftables.Conn, t *nftables.Table) (*layout, error) {
	l := &layout{flags: t.Flags}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		got := set{name: s.Name, key: s.KeyType, special: s.IsMap || s.Anonymous || s.Constant || s.Interval || s.HasTimeout || s.Dynamic || s.Size != 0}
		if got.elements, err = c.GetSetElements(s); err != nil {
			return nil, err
		}
		slices.SortFunc(got.elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		l.sets = append(l.sets, got)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, ch := range chains {
		if ch.Table.Name != t.Name {
			continue
		}
		got := chain{name: ch.Name, kind: ch.Type}
		if ch.Hooknum != nil && ch.Priority != nil && ch.Policy != nil {
			got.hook, got.prio, got.policy = *ch.Hooknum, *ch.Priority, *ch.Policy
		}
		rules, err := c.GetRules(t, ch)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			got.rules = append(got.rules, rule{r.UserData, r.Exprs})
		}
		l.chains = append(l.chains, got)
	}
	return l, nil
}

// equal says whether the kernel's table does what l says.
func (l layout) equal(have *layout) bool {
	if have == nil || have.flags != l.flags {
		return false
	}
	a, b := l.sorted(), have.sorted()
	return slices.EqualFunc(a.sets, b.sets, set.equal) && reflect.DeepEqual(a.chains, b.chains)
}

func (s set) equal(o set) bool {
	return s.name == o.name && s.key == o.key && s.special == o.special &&
		slices.EqualFunc(s.elements, o.elements, func(a, b nftables.SetElement) bool {
			return bytes.Equal(a.Key, b.Key) && a.Timeout == b.Timeout
		})
}

// write replaces the table in one batch.
func (l layout) write() error {
	c, err := open()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	t := ours()
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
	for i, s := range l.sets {
		if err := s.write(c, t, uint32(i+1)); err != nil {
			return fmt.Errorf("lay out set %s: %w", s.name, err)
		}
	}
	for _, ch := range l.chains {
		to := c.AddChain(&nftables.Chain{Name: ch.name, Table: t, Type: ch.kind, Hooknum: &ch.hook, Priority: &ch.prio, Policy: &ch.policy})
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: t, Chain: to, Exprs: r.exprs, UserData: r.userData})
		}
	}
	return c.Flush()
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
		return fmt.Errorf("open netlink: %w", err)
	}
	c.DelTable(ours())
	return c.Flush()
}
