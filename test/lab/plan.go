package lab

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/catchment-dev/edge"
)

// The service prefixes and the VIPs of every lab (documentation ranges).
var (
	Prefix4 = netip.MustParsePrefix("198.51.100.0/24")
	Prefix6 = netip.MustParsePrefix("2001:db8:100::/48")
	VIP4    = netip.MustParseAddr("198.51.100.10")
	VIP6    = netip.MustParseAddr("2001:db8:100::10")
	// EchoVIP is the VIP of the L4-only UDP service; see EchoPort.
	EchoVIP = netip.MustParseAddr("198.51.100.53")
)

const (
	// EchoPort is the UDP port of the service "echo" on EchoVIP.
	EchoPort = 7007
	// DownloadPort is the TCP port of the services "download" on VIP4, over GUE,
	// and "download6" on VIP6, over IPIP.
	DownloadPort = 7080
	// OriginPort is the TCP port of every origin.
	OriginPort = 8080
	// ManagementPort is that of each box's console, on its 127.0.0.1.
	ManagementPort = 9180

	gossipPort = 7946
	healthPort = 9181
	boxASN     = 64512
	coreASN    = 65001
	// boxMTU, that of boxes and servers, leaves room for what the encapsulation adds to a client's packet.
	boxMTU, edgeMTU = 1600, 1500
)

// plan is a topology with its addresses.
type plan struct {
	routers     map[string]*routerPlan
	cores       []corePlan
	attachments []attachment
	boxes       []*boxPlan
}

// attachment joins a host to a router by a veth link.
type attachment struct {
	host, router string
	mtu          int
	// near are the router's addresses on the link, far the host's.
	near, far []netip.Prefix
}

type corePlan struct {
	a, b         string
	addrA, addrB []netip.Prefix
	delay        time.Duration
}

// routerPlan is what a router's configuration is made from.
type routerPlan struct {
	Name     string
	Kind     RouterKind
	ASN      int
	ID       netip.Addr
	Cores    []neighbor
	Boxes    []neighbor
	Prefix4  netip.Prefix
	Prefix6  netip.Prefix
	BFD      bool           // with the boxes
	Apart    bool           // see Topology
	Networks []netip.Prefix // of its own links, in the order they were planned
}

// neighbor is a BGP session of a router.
type neighbor struct {
	// Name is that of the interface too.
	Name        string
	ASN         int
	Local, Peer netip.Addr
	Local6      netip.Addr
	Peer6       netip.Addr
	Key         string // of TCP MD5; empty: none
	Cost        int    // cores only: the MED that its paths get
	Probe4      netip.Addr
	Probe6      netip.Addr
}

// boxPlan is what a box's configuration is made from.
type boxPlan struct {
	Name, Site, Router string
	Addr4, Addr6       netip.Addr
	Gateway4           netip.Addr
	Probe4, Probe6     netip.Addr
	PeerASN            int
	Key                string
	Signs              ed25519.PrivateKey // what it says to the other boxes
}

// PublicKey is how the others know the box.
func (b *boxPlan) PublicKey() edge.NodeKey {
	return edge.NodeKey(b.Signs.Public().(ed25519.PublicKey))
}

// prefixes parses a pair of one address of each family with its length.
func prefixes(v4, v6 string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

// newPlan gives every link its networks. The topology has been checked.
func newPlan(t *Topology) *plan {
	p := &plan{routers: map[string]*routerPlan{}}
	for i, r := range t.Routers {
		p.routers[r.Name] = &routerPlan{
			Name: r.Name, Kind: r.Kind, ASN: coreASN + i, ID: netip.AddrFrom4([4]byte{10, 254, 0, byte(i + 1)}),
			Prefix4: Prefix4, Prefix6: Prefix6, BFD: t.BFD, Apart: t.Apart,
		}
	}
	for i, c := range t.Cores {
		p.addCore(i, c)
	}
	for i, s := range t.Sites {
		for j, b := range s.Boxes {
			p.addBox(i+1, j, s, b)
		}
	}
	for i, r := range t.Regions {
		p.attach(attachment{host: r.Name, router: r.Router, mtu: edgeMTU}, 10+i, r.Origins)
	}
	if t.Shared != "" {
		p.attach(attachment{host: sharedName, router: t.Shared, mtu: edgeMTU}, 30, 1)
	}
	for i, s := range t.Servers {
		p.attach(attachment{host: s.Name, router: s.Router, mtu: boxMTU}, 40+i, 1)
	}
	for i, c := range t.Clients {
		p.attach(attachment{host: c.Name, router: c.Router, mtu: edgeMTU}, 101+i, 1)
	}
	return p
}

func (p *plan) addCore(i int, c CoreSpec) {
	k := corePlan{
		a: c.A, b: c.B, delay: c.Delay,
		addrA: prefixes(fmt.Sprintf("10.255.%d.1/30", i), fmt.Sprintf("fd00:255:%d::1/126", i)),
		addrB: prefixes(fmt.Sprintf("10.255.%d.2/30", i), fmt.Sprintf("fd00:255:%d::2/126", i)),
	}
	p.cores = append(p.cores, k)
	a, b := p.routers[c.A], p.routers[c.B]
	cost := int(c.Delay/(100*time.Microsecond)) + 1
	join := func(from, to *routerPlan, local, peer []netip.Prefix) {
		from.Cores = append(from.Cores, neighbor{
			Name: to.Name, ASN: to.ASN, Cost: cost,
			Local: local[0].Addr(), Peer: peer[0].Addr(), Local6: local[1].Addr(), Peer6: peer[1].Addr(),
		})
		from.Networks = append(from.Networks, local[0].Masked(), local[1].Masked())
	}
	join(a, b, k.addrA, k.addrB)
	join(b, a, k.addrB, k.addrA)
}

func (p *plan) addBox(site, n int, s SiteSpec, b BoxSpec) {
	at := attachment{
		host: b.Name, router: s.Router, mtu: boxMTU,
		near: prefixes(fmt.Sprintf("10.%d.%d.1/26", site, n), fmt.Sprintf("fd00:%d:%d::1/64", site, n)),
		far:  prefixes(fmt.Sprintf("10.%d.%d.2/26", site, n), fmt.Sprintf("fd00:%d:%d::2/64", site, n)),
	}
	p.attachments = append(p.attachments, at)
	r := p.routers[s.Router]
	box := &boxPlan{
		Name: b.Name, Site: s.Name, Router: s.Router, PeerASN: r.ASN,
		Addr4: at.far[0].Addr(), Addr6: at.far[1].Addr(), Gateway4: at.near[0].Addr(),
		Probe4: netip.MustParseAddr(fmt.Sprintf("10.%d.%d.65", site, n)),
		Probe6: netip.MustParseAddr(fmt.Sprintf("fd00:%d:%d::65", site, n)),
	}
	_, box.Signs, _ = ed25519.GenerateKey(nil) // never fails
	if b.MD5 {
		box.Key = randomHex(12)
	}
	p.boxes = append(p.boxes, box)
	r.Boxes = append(r.Boxes, neighbor{
		Name: b.Name, ASN: boxASN, Key: box.Key, Probe4: box.Probe4, Probe6: box.Probe6,
		Local: at.near[0].Addr(), Peer: box.Addr4, Local6: at.near[1].Addr(), Peer6: box.Addr6,
	})
	r.Networks = append(r.Networks, at.near[0].Masked(), at.near[1].Masked())
}

// attach joins a host that is neither router nor box, with n addresses of each
// family, to its router by the network 10.X.0.0/24.
func (p *plan) attach(at attachment, x, n int) {
	at.near = prefixes(fmt.Sprintf("10.%d.0.1/24", x), fmt.Sprintf("fd00:%d::1/64", x))
	for i := range n {
		at.far = append(at.far, prefixes(fmt.Sprintf("10.%d.0.%d/24", x, i+2), fmt.Sprintf("fd00:%d::%x/64", x, i+2))...)
	}
	p.attachments = append(p.attachments, at)
	r := p.routers[at.router]
	r.Networks = append(r.Networks, at.near[0].Masked(), at.near[1].Masked())
}

// attachmentOf returns the link of a host that is not a router.
func (p *plan) attachmentOf(host string) attachment {
	for _, a := range p.attachments {
		if a.host == host {
			return a
		}
	}
	return attachment{}
}

// randomHex returns n random bytes as hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
