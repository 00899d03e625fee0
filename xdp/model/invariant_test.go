package model

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/catchment-dev/edge/xdp/model/frame"
)

// invariants holds an outcome against what must be so whatever the frame was.
func invariants(t *testing.T, in []byte, o Outcome) {
	t.Helper()
	if !slices.Contains(Verdicts(), o.Verdict) {
		t.Fatalf("%v is no verdict: % x", o.Verdict, in)
	}
	switch action := o.Verdict.Action(); {
	case o.Verdict == PassDecap:
		// The IP packet is what the frame ended with; the MACs are as they were.
		link, ip := open(t, o.Out)
		if o.Egress != 0 || !bytes.HasSuffix(in[ipAt:], ip.all) || link.Dst != [6]byte(in[:6]) || link.Src != [6]byte(in[6:12]) {
			t.Fatalf("decapsulated % x\nfrom % x", o.Out, in)
		}
	case action == Pass:
		if o.Egress != 0 || !bytes.Equal(o.Out, in) {
			t.Fatalf("%v, but not untouched: % x\nfrom % x", o.Verdict, o.Out, in)
		}
	case action == Drop:
		if o.Egress != 0 || o.Out != nil {
			t.Fatalf("%v, but leaves by %d: % x", o.Verdict, o.Egress, o.Out)
		}
	default:
		leaves(t, in, o)
	}
}

// leaves checks a frame that goes out.
func leaves(t *testing.T, in []byte, o Outcome) {
	t.Helper()
	if (o.Egress == up0) != (o.Verdict.Action() == TX) {
		t.Fatalf("%v by interface %d", o.Verdict, o.Egress)
	}
	_, ip := open(t, o.Out)
	if ip.ttl == 0 || ip.length != len(ip.all) {
		t.Fatalf("%v with TTL %d, %d bytes in %d: % x", o.Verdict, ip.ttl, ip.length, len(ip.all), o.Out)
	}
	if ip.length > routeMTU && o.Verdict != TXEcho {
		t.Fatalf("%v of %d bytes, the route takes %d: % x", o.Verdict, ip.length, routeMTU, o.Out)
	}
	if o.Verdict == TXTooBig && len(o.Out) > len(in) {
		t.Fatalf("an answer of %d bytes to one of %d", len(o.Out), len(in))
	}
	if v := o.Verdict; v == TXBackend || v == RedirectBackend {
		if o.Backend == 0 || o.Service == 0 || o.By == "" {
			t.Fatalf("%v to nobody: %+v", v, o)
		}
	}
}

// hosts are the world of the tests for random frames.
func hosts() frame.Hosts {
	h := frame.Hosts{
		Links:       []frame.Link{inLink, inLink, inLink, {Dst: ourMAC, Src: routerMAC, Tags: []frame.Tag{{Type: 0x8100, TCI: 100}}}},
		ClientPorts: 8, MaxPayload: 1500,
		Connections: [][]byte{{0, 7, 0, 9}, {0, 7, 1}, {0, 8, 1, 3}, {1}},
	}
	for _, f := range families() {
		for range 6 {
			h.Clients = append(h.Clients, f.client, f.other)
			h.VIPs = append(h.VIPs, f.vip, f.vip, f.wild)
			h.Peers = append(h.Peers, f.peer)
		}
		h.Clients = append(h.Clients, f.blocked)
		h.VIPs = append(h.VIPs, f.client)
		h.Peers = append(h.Peers, f.other)
		h.Nodes = append(h.Nodes, f.node)
	}
	for port := uint16(portGUE); port < portBadRoute+8; port++ {
		h.Ports = append(h.Ports, port, portGUE, portTracked)
	}
	return h
}

const randomFrames = 100_000

// Random frames, half of them damaged: the invariants hold, and the world of the
// tests is rich enough that most verdicts come up.
func TestRandomFrames(t *testing.T) {
	l, rnd, h := newLab(), rand.New(rand.NewPCG(3, 1415)), hosts()
	reached := map[Verdict]int{}
	for i := range randomFrames {
		f := h.Random(rnd)
		if i%2 == 1 {
			f = frame.Mutate(rnd, f)
		}
		was := slices.Clone(f)
		o := l.Decide(f, long)
		if !bytes.Equal(was, f) {
			t.Fatalf("the frame was written to: % x", was)
		}
		invariants(t, f, o)
		reached[o.Verdict]++
	}
	for _, v := range Verdicts() {
		if reached[v] == 0 && v != DropNoHeadroom && v != DropTooBigLimited {
			t.Errorf("no random frame reaches %v", v)
		}
	}
	if good := reached[TXBackend] + reached[RedirectBackend]; good < randomFrames/6 {
		t.Errorf("of %d frames only %d reach a backend", randomFrames, good)
	}
	t.Log(reached)
}

// FuzzDecide: any bytes.
func FuzzDecide(f *testing.F) {
	rnd, h := rand.New(rand.NewPCG(2, 7)), hosts()
	for range 200 {
		f.Add(h.Random(rnd))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		invariants(t, b, newLab().Decide(b, long))
	})
}

// FuzzExplain: any flow.
func FuzzExplain(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, uint8(6), uint16(80), false, []byte(nil))
	f.Fuzz(func(t *testing.T, dst []byte, proto uint8, port uint16, fragment bool, id []byte) {
		to, ok := netip.AddrFromSlice(dst)
		if !ok {
			return
		}
		q := Query{Fragment: fragment, ConnectionID: id}
		q.Flow.Src, q.Flow.Dst, q.Flow.Protocol = netip.AddrPortFrom(to, port), netip.AddrPortFrom(to, port), protocol(proto)
		if o := newLab().Explain(q, long); !slices.Contains(Verdicts(), o.Verdict) {
			t.Fatalf("%v is no verdict", o.Verdict)
		}
	})
}
