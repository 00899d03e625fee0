package bgp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/wire"
)

// crowd is hundreds of routers, of which each does no more than a session needs
// and notes what it is sent.
type crowd struct {
	t  testing.TB
	ln net.Listener

	mu      sync.Mutex
	routers map[netip.Addr]*crowded
	work    sync.WaitGroup
}

// crowded is one of them.
type crowded struct {
	conn  net.Conn   // nil: no session
	table wire.Table // of this session, or the last one
	ups   int
}

// newCrowd makes the routers at the far end of link 1: crowdPeer(0) and so on.
func newCrowd(t testing.TB, s *speaker) *crowd {
	t.Helper()
	far := newSpace(t)
	link(t, s.ns, far, 1)
	_, all, _ := net.ParseCIDR("10.77.0.0/16")
	lo, err := far.Netlink.LinkByName("lo")
	must(t, err)
	must(t, far.Netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
	near, err := s.ns.Netlink.LinkByName("v1")
	must(t, err)
	must(t, s.ns.Netlink.RouteAdd(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: all, Gw: net.ParseIP("10.0.1.2")}))
	c := &crowd{t: t, routers: map[netip.Addr]*crowded{}}
	must(t, far.Run(func() (err error) { c.ln, err = net.Listen("tcp4", "0.0.0.0:179"); return err }))
	c.work.Go(func() {
		for {
			conn, err := c.ln.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		c.ln.Close()
		c.mu.Lock()
		for _, r := range c.routers {
			if r.conn != nil {
				r.conn.Close()
			}
		}
		c.mu.Unlock()
		c.work.Wait()
	})
	return c
}

func crowdPeer(i int) edge.Peer {
	p := peerN(1)
	p.ID, p.Addr, p.Families = edge.PeerID(fmt.Sprint("c", i)), netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)}), []edge.Family{edge.IPv4}
	return p
}

// serve has one session, from the router's side.
func (c *crowd) serve(conn net.Conn) {
	defer conn.Close()
	addr := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	r := wire.NewReader(conn)
	open := wire.Open{
		ASN: peerN(1).ASN, Hold: 9 * time.Second, ID: addr, Families: []edge.Family{edge.IPv4}, FourOctet: true, RouteRefresh: true,
	}
	if m, err := r.Read(); err != nil || m.Type != wire.TypeOpen {
		return
	}
	if _, err := conn.Write(append(open.Marshal(), wire.Keepalive()...)); err != nil {
		return
	}
	c.mu.Lock()
	me := c.routers[addr]
	if me == nil {
		me = &crowded{}
		c.routers[addr] = me
	}
	me.conn, me.table = conn, wire.Table{}
	me.ups++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if me.conn == conn {
			me.conn = nil
		}
	}()
	said := time.Now()
	for {
		m, err := r.Read()
		if err != nil || m.Type == wire.TypeNotification {
			return
		}
		if m.Type == wire.TypeUpdate {
			u, err := wire.ParseUpdate(m.Raw, true)
			if err != nil {
				c.t.Error(err)
				return
			}
			c.mu.Lock()
			me.table.Apply(u)
			c.mu.Unlock()
		}
		// It is sent a KEEPALIVE every 3 s.
		if time.Since(said) > 2*time.Second {
			said = time.Now()
			if _, err := conn.Write(wire.Keepalive()); err != nil {
				return
			}
		}
	}
}

// hang ends the session of a router.
func (c *crowd) hang(addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.routers[addr]; r != nil && r.conn != nil {
		r.conn.Close()
	}
}

// holders is how many routers hold n prefixes.
func (c *crowd) holders(n int) (routers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.routers {
		if r.conn != nil && r.table.Len(edge.IPv4) == n {
			routers++
		}
	}
	return routers
}

// all waits until so many routers hold n prefixes.
func (c *crowd) all(routers, n int) {
	c.t.Helper()
	eventually(c.t, func() string {
		if got := c.holders(n); got != routers {
			return fmt.Sprintf("%d of %d routers hold %d prefixes", got, routers, n)
		}
		return ""
	})
}

// reader asks by version, as edged does.
type reader struct {
	s     *speaker
	state edge.SpeakerState
	bytes int // of the last answer
}

// call returns the state that the answer makes of the one held.
func (r *reader) call(method, path string, body any) (edge.SpeakerState, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return edge.SpeakerState{}, err
		}
		in = strings.NewReader(string(b))
	}
	sep := "?"
	if strings.Contains(path, sep) {
		sep = "&"
	}
	req, err := http.NewRequest(method, "http://edge"+path+sep+"have="+url.QueryEscape(r.state.Version), in)
	if err != nil {
		return edge.SpeakerState{}, err
	}
	resp, err := r.s.client.Do(req)
	if err != nil {
		return edge.SpeakerState{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return edge.SpeakerState{}, err
	}
	r.bytes = len(b)
	if resp.StatusCode != http.StatusOK {
		return edge.SpeakerState{}, fmt.Errorf("%d: %s", resp.StatusCode, b)
	}
	var c edge.SpeakerChange
	if err := json.Unmarshal(b, &c); err != nil {
		return edge.SpeakerState{}, err
	}
	r.state, err = r.state.With(c)
	return r.state, err
}

func (r *reader) get() edge.SpeakerState {
	r.s.t.Helper()
	st, err := r.call("GET", "/v1/state", nil)
	must(r.s.t, err)
	return st
}

// alike checks that a state by version, asked for before, and a whole one are the
// same if they have the same version.
func (s *speaker) alike(byVersion, whole edge.SpeakerState) {
	s.t.Helper()
	if byVersion.Version != whole.Version {
		return
	}
	for _, st := range []*edge.SpeakerState{&byVersion, &whole} {
		// What makes no version.
		st.Refused, st.LastRefused, st.Stopping = nil, "", time.Time{}
		st.LeaseLeft, st.Expired, st.RPKI, st.Watch, st.KeepErr, st.Renewal = 0, false, edge.SourceState{}, edge.SourceState{}, "", ""
	}
	a, err := json.Marshal(byVersion)
	must(s.t, err)
	b, err := json.Marshal(whole)
	must(s.t, err)
	if !bytes.Equal(a, b) {
		s.t.Errorf("one version, two states:\n%s\n%s", a, b)
	}
}

// cpu is the time that a process has been on the CPUs.
func cpu(t testing.TB, p *process) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	must(t, err)
	// Behind the name, which may hold anything: user and system time, in ticks.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var user, system int
	_, err = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	must(t, err)
	return time.Duration(user+system) * time.Second / 100
}
