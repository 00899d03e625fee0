package health

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// TestClockKernel asks the real kernel, whose answer depends on the machine:
// the verdict must be the one that its flags say.
func TestClockKernel(t *testing.T) {
	t.Parallel()
	var x unix.Timex
	state := must(unix.Adjtimex(&x))
	want := ""
	if state == unix.TIME_ERROR || x.Status&unix.STA_UNSYNC != 0 {
		want = "the clock is not synchronised"
	}
	expect(t, try(t, edge.Probe{Kind: edge.ProbeClock}), want)
}

func TestClockStates(t *testing.T) {
	t.Parallel()
	limit := edge.Probe{Kind: edge.ProbeClock, MaxOffset: 100 * time.Millisecond}
	for _, c := range []struct {
		x     unix.Timex
		state int
		err   error
		p     edge.Probe
		want  string
	}{
		{unix.Timex{Offset: 20_000, Maxerror: 80_000}, unix.TIME_OK, nil, limit, ""},
		{unix.Timex{Offset: -20_000, Maxerror: 81_000}, unix.TIME_OK, nil, limit, "the clock can be off by 100ms, at most 100ms is wanted"},
		{unix.Timex{Offset: 437_000_000, Status: unix.STA_NANO}, unix.TIME_OK, nil, limit, "the clock can be off by 400ms, at most 100ms is wanted"},
		{unix.Timex{Offset: 99_000_000, Status: unix.STA_NANO}, unix.TIME_INS, nil, limit, ""}, // a leap second is ahead
		{unix.Timex{Maxerror: 16_000_000}, unix.TIME_OK, nil, limit, "the clock can be off by 10s"},
		{unix.Timex{Maxerror: 16_000_000}, unix.TIME_OK, nil, edge.Probe{Kind: edge.ProbeClock}, ""},
		{unix.Timex{Status: unix.STA_UNSYNC}, unix.TIME_OK, nil, limit, "the clock is not synchronised"},
		{unix.Timex{}, unix.TIME_ERROR, nil, limit, "the clock is not synchronised"},
		{unix.Timex{}, 0, unix.EPERM, limit, "unknown: read the state of the clock: operation not permitted"},
	} {
		k := clockKind{adjtimex: func(x *unix.Timex) (int, error) {
			*x = c.x
			return c.state, c.err
		}}
		expect(t, tryOf(t, k, c.p), c.want)
	}
}

func TestCoarse(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: 1, 19: 10, 437 * time.Millisecond: 400 * time.Millisecond, 1000: 1000, 999_999: 900_000, 70 * time.Second: 70 * time.Second, -5: -5,
	} {
		if got := coarse(d); got != want {
			t.Errorf("coarse(%d) = %d, want %d", d, got, want)
		}
	}
}

// chronyd is where test/install.sh has unpacked it, or the one of the system.
func chronyd() string {
	const unpacked = "/usr/local/lib/catchment-test/chrony/usr/sbin/chronyd"
	if _, err := os.Stat(unpacked); err == nil {
		return unpacked
	}
	return "chronyd"
}

// TestSNTP asks a real server of time, which has this box's own.
func TestSNTP(t *testing.T) {
	t.Parallel()
	at, dir := serverPort(t), t.TempDir()
	file := filepath.Join(dir, "chrony.conf")
	conf := fmt.Sprintf("local stratum 8\nallow 127.0.0.0/8\nport %d\nbindaddress 127.0.0.1\ncmdport 0\nbindcmdaddress /\npidfile %s/pid\n", at.Port(), dir)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	// What the machine does between the questions and the answers counts, too.
	p := edge.Probe{Kind: edge.ProbeClock, Addr: at, MaxOffset: 2 * time.Second, Timeout: time.Second}
	// -x: it leaves the clock of the machine alone.
	daemon(t, func() bool { return try(t, p) == nil }, chronyd(), "-x", "-d", "-u", "root", "-f", file)
	p.Timeout = ample
	expect(t, try(t, p), "")
	p.Source = netip.MustParseAddr("127.0.0.9")
	expect(t, try(t, p), "")
}

// ntpLiar is a server of time whose answers lie makes.
func ntpLiar(t *testing.T, lie func(request []byte) [][]byte) netip.AddrPort {
	t.Helper()
	pc := must(net.ListenPacket("udp", "127.0.0.1:0"))
	t.Cleanup(func() { pc.Close() })
	go func() {
		buf := make([]byte, 1024)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, b := range lie(buf[:n]) {
				_, _ = pc.WriteTo(b, from)
			}
		}
	}()
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// timeOf answers a request with the time of a clock that is off.
func timeOf(request []byte, off time.Duration, change func([]byte)) []byte {
	b := make([]byte, 48)
	b[0], b[1] = 4<<3|4, 2
	copy(b[24:], request[40:48])
	now := ntpTime(time.Now().Add(off))
	binary.BigEndian.PutUint64(b[32:], now)
	binary.BigEndian.PutUint64(b[40:], now)
	change(b)
	return b
}

// later adds seconds to a timestamp.
func later(b []byte, seconds uint64) {
	binary.BigEndian.PutUint64(b, binary.BigEndian.Uint64(b)+seconds<<32)
}

func TestSNTPLiars(t *testing.T) {
	t.Parallel()
	one := func(off time.Duration, change func([]byte)) func([]byte) [][]byte {
		return func(request []byte) [][]byte { return [][]byte{timeOf(request, off, change)} }
	}
	right := func([]byte) {}
	for name, c := range map[string]struct {
		lie  func([]byte) [][]byte
		want string
	}{
		"right":               {one(0, right), ""},
		"right enough":        {one(-2*time.Second, right), ""},
		"ahead":               {one(67*time.Second, right), "the clock is off by 1m0s from that of"},
		"behind":              {one(-67*time.Second, right), "the clock is off by "},
		"years":               {one(-40*365*24*time.Hour, right), "the clock is off by "},
		"after 2036":          {one(20*365*24*time.Hour, right), "the clock is off by "},
		"kiss of death":       {one(0, func(b []byte) { b[1] = 0; copy(b[12:], "RATE") }), `unknown: refuses to tell the time: "RATE"`},
		"not synchronised":    {one(0, func(b []byte) { b[0] |= 3 << 6 }), "unknown: is not synchronised itself"},
		"stratum 16":          {one(0, func(b []byte) { b[1] = 16 }), "unknown: is not synchronised itself"},
		"inexact":             {one(20*time.Second, func(b []byte) { b[9] = 30 }), "unknown: is too inexact to tell"}, // root dispersion of 30 s
		"inexact but far off": {one(500*time.Second, func(b []byte) { b[9] = 30 }), "the clock is off by "},
		"sends before it got": {one(0, func(b []byte) { later(b[32:], 200) }), "unknown: "},
		"holds on for ever":   {one(0, func(b []byte) { later(b[40:], 200) }), "unknown: answered with times that cannot be"},
		"other origin":        {one(0, func(b []byte) { b[24] ^= 1 }), "unknown: no answer within 100ms"},
		"a client":            {one(0, func(b []byte) { b[0] = 4<<3 | 3 }), "unknown: no answer within 100ms"},
		"silent":              {func([]byte) [][]byte { return nil }, "unknown: no answer within 100ms"},
		"garbage, then right": {func(r []byte) [][]byte { return [][]byte{nil, {1}, make([]byte, 47), timeOf(r, 0, right)} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := edge.Probe{Kind: edge.ProbeClock, Addr: ntpLiar(t, c.lie), MaxOffset: 5 * time.Second}
			if c.want == "unknown: no answer within 100ms" {
				p.Timeout = 100 * time.Millisecond
			}
			expect(t, try(t, p), c.want)
		})
	}
	refused := edge.Probe{Kind: edge.ProbeClock, Addr: closedPort(t), MaxOffset: time.Second}
	expect(t, try(t, refused), "unknown: connection refused")
	refused.Source = netip.MustParseAddr("192.0.2.9")
	expect(t, try(t, refused), "unknown: bind to source")
	expect(t, try(t, edge.Probe{Kind: edge.ProbeClock, Addr: refused.Addr}), "unknown: no offset is given")
}

// FuzzTime: whatever a server sends is read without a crash, and an answer to
// another request is none.
func FuzzTime(f *testing.F) {
	request := make([]byte, 48)
	copy(request[40:], "a token!")
	f.Add(timeOf(request, 0, func([]byte) {}))
	f.Add(timeOf(request, time.Hour, func(b []byte) { b[1] = 0; copy(b[12:], "RATE") }))
	f.Add([]byte{0x24})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseTime(b, request[40:], time.Now(), time.Millisecond)
		if ok && string(b[24:32]) != "a token!" {
			t.Errorf("%q is taken", b)
		}
		if ok && s.usable() == nil {
			_ = s.judge(edge.Probe{MaxOffset: time.Second})
		}
	})
}
