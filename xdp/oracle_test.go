package xdp

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"testing"
)

// The oracle says what becomes of a frame in the namespace of oneBox. It is
// written from the rules, not from the C: it looks at whole slices.

// parsed is a packet that is in order, down to its ports.
type parsed struct {
	dst   netip.AddrPort
	proto uint8
	len   int
	ttl   uint8
}

func oracle(f []byte) edgeVerdict {
	if f[0]&1 != 0 {
		return edgeVerdictPASS_MULTICAST_MAC
	}
	switch be.Uint16(f[12:]) {
	case 0x8100, 0x88a8:
		return edgeVerdictPASS_VLAN
	case 0x0800:
		return oracleIP(f[ethLen:], false)
	case 0x86dd:
		return oracleIP(f[ethLen:], true)
	}
	return edgeVerdictPASS_NOT_IP
}

func oracleIP(b []byte, v6 bool) edgeVerdict {
	head, at := ip4Len, b
	if v6 {
		head = ip6Len
	}
	if len(b) < head {
		return edgeVerdictPASS_TRUNCATED_IP
	}
	dst, _ := netip.AddrFromSlice(at[map[bool]int{false: 16, true: 24}[v6]:head])
	switch dst {
	case addr(vip4), addr(vip6):
		p, v := oracleParse(b, v6)
		if v != edgeVerdictVERDICT_NONE {
			return v
		}
		return oracleService(p, v6)
	case addr(node4), addr(node6):
		return oracleTunnel(b, v6)
	}
	return edgeVerdictPASS_NOT_VIP
}

func oracleParse(b []byte, v6 bool) (parsed, edgeVerdict) {
	if v6 {
		return oracleParse6(b)
	}
	switch total := int(be.Uint16(b[2:])); {
	case b[0]>>4 != 4:
		return parsed{}, edgeVerdictDROP_BAD_VERSION
	case b[0]&15 < 5:
		return parsed{}, edgeVerdictDROP_BAD_HEADER
	case total < int(b[0]&15)*4 || total > len(b):
		return parsed{}, edgeVerdictDROP_BAD_LENGTH
	case b[12] == 0 || b[12] == 127 || b[12] >= 224:
		return parsed{}, edgeVerdictDROP_BAD_SOURCE
	case be.Uint16(b[6:])&0x3fff != 0:
		return parsed{}, edgeVerdictDROP_FRAGMENT
	default:
		dst, _ := netip.AddrFromSlice(b[16:20])
		return oracleL4(parsed{dst: netip.AddrPortFrom(dst, 0), proto: b[9], len: total, ttl: b[8]}, b[int(b[0]&15)*4:total], 1)
	}
}

func oracleParse6(b []byte) (parsed, edgeVerdict) {
	total := ip6Len + int(be.Uint16(b[4:]))
	if b[0]>>4 != 6 {
		return parsed{}, edgeVerdictDROP_BAD_VERSION
	}
	if total > len(b) {
		return parsed{}, edgeVerdictDROP_BAD_LENGTH
	}
	src, _ := netip.AddrFromSlice(b[8:24])
	dst, _ := netip.AddrFromSlice(b[24:40])
	if src.Is4In6() || src.IsMulticast() || src.IsUnspecified() || src.IsLoopback() {
		return parsed{}, edgeVerdictDROP_BAD_SOURCE
	}
	proto, rest := b[6], b[ip6Len:total]
	for n := 0; proto == 0 || proto == 43 || proto == 60 || proto == 51; n++ {
		if n == 6 {
			return parsed{}, edgeVerdictDROP_EXT_HEADERS
		}
		if len(rest) < 8 {
			return parsed{}, edgeVerdictDROP_TRUNCATED
		}
		size := (int(rest[1]) + 1) * 8
		if proto == 51 {
			size = (int(rest[1]) + 2) * 4
		}
		if size < 8 || size > len(rest) {
			return parsed{}, edgeVerdictDROP_TRUNCATED
		}
		proto, rest = rest[0], rest[size:]
	}
	if proto == 44 {
		return parsed{}, edgeVerdictDROP_FRAGMENT
	}
	return oracleL4(parsed{dst: netip.AddrPortFrom(dst, 0), proto: proto, len: total, ttl: b[7]}, rest, 58)
}

func oracleL4(p parsed, b []byte, icmp uint8) (parsed, edgeVerdict) {
	switch p.proto {
	case 6:
		if len(b) < 20 {
			return p, edgeVerdictDROP_TRUNCATED
		}
		if size := int(b[12]>>4) * 4; size < 20 || size > len(b) {
			return p, edgeVerdictDROP_BAD_TCP
		}
	case 17:
		if len(b) < 8 {
			return p, edgeVerdictDROP_TRUNCATED
		}
		if size := int(be.Uint16(b[4:])); size < 8 || size > len(b) {
			return p, edgeVerdictDROP_BAD_UDP
		}
	case icmp:
		return p, edgeVerdictPASS_ICMP
	default:
		return p, edgeVerdictPASS_NO_SERVICE
	}
	p.dst = netip.AddrPortFrom(p.dst.Addr(), be.Uint16(b[2:]))
	return p, edgeVerdictVERDICT_NONE
}

// oracleService knows the services of oneBoxTable.
func oracleService(p parsed, v6 bool) edgeVerdict {
	port := strconv.Itoa(int(p.dst.Port()))
	gue, outer6, exit := true, v6, edgeVerdictTX_BACKEND
	switch {
	case p.proto == 17 && port != portRemote:
		return edgeVerdictPASS_NO_SERVICE
	case port == portRemote, port == portBroken:
	case port == portIPIP:
		gue = false
	case port == portCross:
		outer6 = !v6
	case port == portCrossIPIP:
		gue, outer6 = false, !v6
	case port == portFar:
		exit = edgeVerdictREDIRECT_BACKEND
	case port == portLocal:
		return edgeVerdictPASS_LOCAL
	case port == portEmpty:
		return edgeVerdictDROP_NO_BACKEND
	default:
		n := int(p.dst.Port()) - portFirstBadRoute
		if n < 0 || n >= len(badRoutes) {
			return edgeVerdictPASS_NO_SERVICE
		}
		exit = badRoutes[n].want
	}
	if p.ttl <= 1 {
		return edgeVerdictDROP_TTL
	}
	size := p.len + map[bool]int{false: ip4Len, true: ip6Len}[outer6] + map[bool]int{true: 8}[gue]
	if size > 1500 && (exit>>6 != 3 || exit == edgeVerdictDROP_FIB_NO_NEIGHBOUR) {
		return edgeVerdictDROP_TOO_BIG
	}
	return exit
}

func oracleTunnel(b []byte, v6 bool) edgeVerdict {
	proto, head, total := b[9], ip4Len, int(be.Uint16(b[2:]))
	src, _ := netip.AddrFromSlice(b[12:16])
	bad := b[0] != 0x45 || total < ip4Len || total > len(b)
	fragment := be.Uint16(b[6:])&0x3fff != 0
	if v6 {
		proto, head, total = b[6], ip6Len, ip6Len+int(be.Uint16(b[4:]))
		src, _ = netip.AddrFromSlice(b[8:24])
		bad, fragment = b[0]>>4 != 6 || total > len(b) || src.Is4In6(), false
	}
	isUDP := proto == 17 && !bad && !fragment && total-head >= 8 && be.Uint16(b[head+2:]) == 6080
	switch {
	case proto != 4 && proto != 41 && !isUDP:
		return edgeVerdictPASS_NOT_VIP
	case bad:
		return edgeVerdictDROP_DECAP_MALFORMED
	case src != addr(trust4) && src != addr(trust6):
		return edgeVerdictDROP_DECAP_UNTRUSTED
	case fragment:
		return edgeVerdictDROP_FRAGMENT
	}
	inner := b[head:total]
	if isUDP {
		size := int(be.Uint16(inner[4:]))
		if size < 8 || size > len(inner) {
			return edgeVerdictDROP_DECAP_MALFORMED
		}
		inner = inner[8:size]
	}
	return oracleInner(inner, proto)
}

// oracleInner judges what is in a tunnel.
func oracleInner(inner []byte, proto uint8) edgeVerdict {
	if len(inner) == 0 {
		return edgeVerdictDROP_DECAP_MALFORMED
	}
	version := inner[0] >> 4
	if version != 4 && version != 6 || proto == 4 && version != 4 || proto == 41 && version != 6 {
		return edgeVerdictDROP_DECAP_MALFORMED
	}
	if len(inner) < map[uint8]int{4: ip4Len, 6: ip6Len}[version] {
		return edgeVerdictDROP_DECAP_MALFORMED
	}
	if version == 6 && netip.AddrFrom16([16]byte(inner[24:40])).Is4In6() {
		return edgeVerdictDROP_DECAP_MALFORMED
	}
	p, v := oracleParse(inner, version == 6)
	if v>>6 == 3 {
		return v
	}
	if v != edgeVerdictVERDICT_NONE || p.dst.Addr() != addr(vip4) && p.dst.Addr() != addr(vip6) ||
		oracleService(p, version == 6) == edgeVerdictPASS_NO_SERVICE {
		return edgeVerdictDROP_DECAP_NOT_VIP
	}
	return edgeVerdictPASS_DECAP
}

// corpus is every frame of the packet tests.
func corpus() [][]byte {
	var frames [][]byte
	for _, cases := range [][]packetCase{plainCases(false), plainCases(true), onlyIPv4(), onlyIPv6(),
		tunnelCases(addr(trust4), addr(node4)), tunnelCases(addr(trust6), addr(node6))} {
		for _, c := range cases {
			frames = append(frames, c.frame)
		}
	}
	return frames
}

// mutate damages a frame in one place.
func mutate(rnd *rand.Rand, f []byte) []byte {
	f = slices.Clone(f)
	at := rnd.IntN(min(len(f), 120))
	switch rnd.IntN(8) {
	case 0: // cut off
		return f[:max(ethLen, at)]
	case 1: // padded
		return append(f, make([]byte, rnd.IntN(60))...)
	case 2: // a field at its edge
		edges := []uint16{0, 1, 7, 8, 19, 20, 21, 39, 40, 41, 0x3fff, 0x7fff, 0xffff, uint16(len(f)), uint16(len(f) - ethLen)}
		if at+2 <= len(f) {
			be.PutUint16(f[at:], edges[rnd.IntN(len(edges))])
		}
	case 3: // a piece of another place
		copy(f[at:], f[rnd.IntN(len(f)):])
	case 4:
		f[at] ^= 1 << rnd.IntN(8)
	default: // in a header, where it matters most
		f[ethLen+rnd.IntN(min(60, len(f)-ethLen))] = byte(rnd.Uint32())
	}
	return f
}

const mutated = 30000

// The program must do with every frame, however damaged, what the oracle says,
// and must send nothing that does not hold the packet it was given.
func TestOracle(t *testing.T) {
	d := oneBox(t)
	rnd := rand.New(rand.NewPCG(20, 26))
	frames := corpus()
	reached := make(map[edgeVerdict]int)
	for range mutated {
		f := frames[rnd.IntN(len(frames))]
		for range 1 + rnd.IntN(3) {
			if len(f) > ethLen {
				f = mutate(rnd, f)
			}
		}
		judge(t, d, f)
		reached[oracle(f)]++
	}
	balanced(t, d.Forwarder)
	if len(reached) < 30 {
		t.Errorf("only %d verdicts reached: %v", len(reached), reached)
	}
}

// judge runs a frame and compares verdict and bytes with the oracle's.
func judge(t *testing.T, d device, f []byte) {
	t.Helper()
	r, want := d.run(t, f), oracle(f)
	if r.verdict != want {
		t.Fatalf("%s, the oracle says %s\n% x", d.name(r.verdict), d.name(want), f)
	}
	switch {
	case want == edgeVerdictPASS_DECAP:
		if i := len(f) - (len(r.out) - ethLen); !bytes.Equal(r.out[ethLen:], f[i:]) || !bytes.Equal(r.out[:12], f[:12]) {
			t.Fatalf("decapsulated % x\nfrom % x", r.out, f)
		}
	case want>>6 == 0:
		if !bytes.Equal(r.out, f) {
			t.Fatalf("passed, but not untouched: % x\nfrom % x", r.out, f)
		}
	case want>>6 == 1 || want>>6 == 2:
		inner := openTunnel(t, r.out).inner
		if inner[0]>>4 == 4 {
			// Whatever the checksum was off by, it is off by that still.
			if got, was := sum(0, inner[:int(inner[0]&15)*4]), sum(0, f[ethLen:ethLen+int(inner[0]&15)*4]); got != was {
				t.Fatalf("inner checksum off by %#x, was %#x\n% x", got, was, f)
			}
			inner[8]++
			copy(inner[10:12], f[ethLen+10:])
		} else {
			inner[7]++
		}
		if !bytes.HasPrefix(f[ethLen:], inner) {
			t.Fatalf("sent % x\nfrom % x", inner, f)
		}
	}
}

// FuzzFrame looks for a frame on which the program and the oracle disagree.
func FuzzFrame(f *testing.F) {
	for _, frame := range corpus() {
		f.Add(frame)
	}
	d := oneBox(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < ethLen || len(frame) > 1600 {
			return
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		in(t, d.ns, func() { judge(t, d, frame) })
	})
}
