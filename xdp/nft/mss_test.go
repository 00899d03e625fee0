package nft

import (
	"net/netip"
	"testing"

	"github.com/catchment-dev/edge"
)

func TestMSSFits(t *testing.T) {
	for _, c := range []struct {
		name   string
		mtu    int
		encap  edge.Encap
		outer6 bool
		vip    string
		want   int
	}{
		{"IPv4 in GUE over IPv4", 1500, edge.EncapGUE, false, vip4, 1500 - 28 - 40},
		{"IPv4 in GUE over IPv6", 1500, edge.EncapGUE, true, vip4, 1500 - 48 - 40},
		{"IPv6 in GUE over IPv4", 1500, edge.EncapGUE, false, vip6, 1500 - 28 - 60},
		{"IPv6 in GUE over IPv6", 1500, edge.EncapGUE, true, vip6, 1500 - 48 - 60},
		{"IPv4 in IPv4", 1500, edge.EncapIPIP, false, vip4, 1500 - 20 - 40},
		{"IPv6 in IPv6", 1500, edge.EncapIPIP, true, vip6, 1500 - 40 - 60},
		{"IPv4-mapped is IPv4", 1500, edge.EncapIPIP, true, "::ffff:192.0.2.1", 1500 - 40 - 40},
		{"jumbo", 9000, edge.EncapGUE, true, vip4, 9000 - 48 - 40},
		{"least of IPv6", 1280, edge.EncapGUE, true, vip6, 1280 - 48 - 60},
		{"too small for TCP", 100, edge.EncapGUE, true, vip4, 88},
		{"larger than an MSS can say", 1 << 17, edge.EncapGUE, true, vip4, 65535},
		{"not known", 0, edge.EncapGUE, true, vip4, 0},
		{"nonsense", -1, edge.EncapGUE, true, vip4, 0},
	} {
		if got := MSS(c.mtu, Overhead(c.encap, c.outer6), netip.MustParseAddr(c.vip)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
