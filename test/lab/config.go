package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
)

// configData is what templates/edge.yaml is filled with.
type configData struct {
	Dir, Uplink                 string
	Box                         *boxPlan
	Boxes                       []*boxPlan
	Sites                       []string
	ASN, MinSites               int
	Management, Gossip, Health  int
	Prefix4, Prefix6            netip.Prefix
	VIP4, VIP6, EchoVIP         netip.Addr
	EchoPort, DownloadPort      int
	Servers                     []serverData
	Regions                     []regionData
	Shared                      string // ADDRESS:PORT; empty: none
	Certificates                []edge.Certificate
	HostList                    string
	GossipKey, RingSeed, BGPKey string
	NodeKey                     string
	BFD                         bool
	ProxyPace, VIPPace          string // keys of a probe, of a flow mapping
}

// regionData is one region of the configuration.
type regionData struct {
	RegionSpec
	Upstreams []upstreamData
}

// serverData is one server of the configuration.
type serverData struct {
	Name         string
	Addr4, Addr6 netip.Addr
}

type upstreamData struct {
	Name  string
	Addr4 netip.AddrPort
}

// pace is how often a probe runs, and how many bad runs in a row are a failure.
func pace(every time.Duration, fall int) string {
	return fmt.Sprintf("interval: %s, timeout: %s, rise: 2, fall: %d", every, every, fall)
}

// renderConfig makes the configuration of a box whose folder is dir.
func renderConfig(t *Topology, p *plan, s *secrets, b *boxPlan, dir string) (string, error) {
	d := configData{
		Dir: dir, Uplink: uplink, Box: b, Boxes: p.boxes, ASN: boxASN, MinSites: cmp.Or(t.MinSites, min(1, len(t.Sites)-1)),
		Management: ManagementPort, Gossip: gossipPort, Health: healthPort,
		Prefix4: Prefix4, Prefix6: Prefix6, VIP4: VIP4, VIP6: VIP6, EchoVIP: EchoVIP, EchoPort: EchoPort, DownloadPort: DownloadPort,
		HostList: strings.Join(HostNames, ", "), GossipKey: s.gossipKey(), RingSeed: s.ringSeed(), BGPKey: s.bgpKey(b.Name), NodeKey: s.nodeKey(b.Name),
		BFD: t.BFD, ProxyPace: pace(cmp.Or(t.ProbeEvery, time.Second), 3), VIPPace: pace(cmp.Or(t.ProbeEvery, time.Second), 3),
	}
	if t.ProbeEvery == 0 {
		d.ProxyPace = pace(300*time.Millisecond, 2)
	}
	for _, site := range t.Sites {
		d.Sites = append(d.Sites, site.Name)
	}
	for _, name := range HostNames {
		d.Certificates = append(d.Certificates, edge.Certificate{CertFile: s.cert(name), KeyFile: s.key(name)})
	}
	for _, r := range t.Regions {
		region := regionData{RegionSpec: r}
		for i, a := range p.attachmentOf(r.Name).far {
			if a.Addr().Is4() {
				region.Upstreams = append(region.Upstreams, upstreamData{
					Name: fmt.Sprintf("%s-%d", r.Name, i/2+1), Addr4: netip.AddrPortFrom(a.Addr(), OriginPort),
				})
			}
		}
		d.Regions = append(d.Regions, region)
	}
	for _, s := range t.Servers {
		far := p.attachmentOf(s.Name).far
		d.Servers = append(d.Servers, serverData{s.Name, far[0].Addr(), far[1].Addr()})
	}
	if t.Shared != "" {
		d.Shared = netip.AddrPortFrom(p.attachmentOf(sharedName).far[0].Addr(), OriginPort).String()
	}
	text, err := render("edge.yaml", d)
	if err == nil && t.Edit != nil {
		text = t.Edit(b.Name, text)
	}
	return text, err
}
