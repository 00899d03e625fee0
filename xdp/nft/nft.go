// Package nft keeps the packet filter rules of a box that serves VIPs itself:
// their traffic bypasses connection tracking, and the MSS of their TCP
// connections is lowered to what fits into the tunnel between two boxes. It also
// keeps BGP packets off that come from further away than they should.
//
// It owns one table, "inet catchment", and replaces it as a whole. It never
// touches another table, loads no kernel module itself, keeps no state and
// starts no goroutine: the rules stay when the process ends. edged calls it.
package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/google/nftables/expr"

	"github.com/catchment-dev/edge"
)

// Table is the name of the table, in the family inet.
const Table = "catchment"

// Service is a VIP that this box serves.
type Service struct {
	// VIP with port 0 is all ports of the address.
	VIP netip.AddrPort
	// Protocol AnyProtocol is all protocols.
	Protocol edge.Protocol
	// MSS is the largest MSS, in bytes, that either side of a TCP connection may
	// announce, 1 to 65535; see the function MSS. 0 leaves it alone, as it does
	// for a protocol that is not TCP.
	MSS int
}

// Rules are the services of this box, in any order. Services that share address,
// port and protocol get the lowest MSS of them.
type Rules []Service

// Apply makes the kernel hold exactly the rules of r and the guards, in the network namespace of
// the calling thread. No rules are no table. If the kernel holds them already,
// nothing is written; a table that somebody else has changed is put right. The
// change is one transaction: a packet meets the rules of before or those of r.
//
// It needs CAP_NET_ADMIN, and an error says what the kernel lacks. Without
// nft_ct the MSS is set all the same. It may be called concurrently, but of two
// calls with different rules either one may be the last.
func Apply(r Rules, guards ...Guard) error { return apply(r, guards, &expr.Notrack{}) }

// Remove takes the table away. It is no error if there is none.
func Remove() error {
	have, err := tableNow()
	if errors.Is(err, errNoTables) || err == nil && have == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := deleteTable(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("remove table inet %s: %w", Table, err)
	}
	return nil
}

// What a kernel can lack.
var (
	errNoTables  = errors.New("the kernel has no nf_tables (module nf_tables, CONFIG_NF_TABLES): the MSS of VIPs is not lowered, and a host with connection tracking tracks their traffic")
	errNoInet    = errors.New("the kernel's nf_tables has no family inet (CONFIG_NF_TABLES_INET): the MSS of VIPs is not lowered, and a host with connection tracking tracks their traffic")
	errNoNotrack = errors.New("the kernel's nf_tables has no notrack (module nft_ct, CONFIG_NFT_CT): traffic of VIPs can fill the table of connection tracking")
)

// apply is Apply with the expression that ends the tracking of a packet.
func apply(r Rules, guards []Guard, untrack expr.Any) error {
	if len(r) == 0 && len(guards) == 0 {
		return Remove()
	}
	have, err := tableNow()
	if err != nil {
		return err
	}
	if want := newLayout(r, guards, untrack); !want.equal(have) {
		err = want.write()
	}
	if !errors.Is(err, syscall.ENOENT) {
		return wrap(err)
	}
	// The batch names nothing that it does not make itself: what does not exist
	// is a kind of chain or of expression.
	if want := newLayout(r, guards, nil); !want.equal(have) {
		err = want.write()
		if errors.Is(err, syscall.ENOENT) {
			err = errNoInet
		}
		if err != nil {
			return wrap(err)
		}
	}
	if len(r) == 0 || !tracks() {
		return nil
	}
	return wrap(errNoNotrack)
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("replace table inet %s: %w", Table, err)
}

// tracks says whether this kernel has connection tracking at all.
func tracks() bool {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max")
	return !errors.Is(err, os.ErrNotExist)
}
