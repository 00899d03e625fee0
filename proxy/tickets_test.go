package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/catchment-dev/edge"
)

// ticketLine is the line of a key that is n times the same byte.
func ticketLine(b byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) + "\n"
}

func ticketName(b byte) string { return ticketKey(bytes.Repeat([]byte{b}, 32)).name() }

// ticketBox is a box of a fleet that shares ticket keys.
type ticketBox struct {
	*bench
	file string
}

func newTicketBox(t *testing.T, origin netip.AddrPort, keys string) *ticketBox {
	t.Helper()
	x := &ticketBox{file: filepath.Join(t.TempDir(), "tickets")}
	x.write(t, keys)
	x.bench = newBenchWith(t, func(c *edge.Config) { c.Fleet.Proxy.TicketKeyFile = x.file }, origin)
	return x
}

func (x *ticketBox) write(t *testing.T, keys string) {
	t.Helper()
	if err := os.WriteFile(x.file, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload takes keys over, and checks that State tells which they are.
func (x *ticketBox) reload(keys ...byte) {
	x.t.Helper()
	text, names := "# of a test\n\n", []string{}
	for _, k := range keys {
		text, names = text+ticketLine(k), append(names, ticketName(k))
	}
	x.write(x.t, text)
	if err := x.s.Reload(Reload{Config: x.cfg}); err != nil {
		x.t.Fatal(err)
	}
	if st := x.s.State(); !slices.Equal(st.TicketKeys, names) || st.TicketErr != "" {
		x.t.Errorf("keys %q, error %q; want %q", st.TicketKeys, st.TicketErr, names)
	}
}

// customer is a client with the sessions of its own.
type customer struct {
	tls.ClientSessionCache
	version uint16
}

func customers() map[string]*customer {
	return map[string]*customer{
		"1.2": {tls.NewLRUClientSessionCache(0), tls.VersionTLS12},
		"1.3": {tls.NewLRUClientSessionCache(0), tls.VersionTLS13},
	}
}

// visit does a request at a box by a new connection and says whether it took up
// a session.
func (c *customer) visit(vip netip.Addr) (resumed bool, err error) {
	conn, err := net.Dial("tcp", netip.AddrPortFrom(vip, 443).String())
	if err != nil {
		return false, err
	}
	defer conn.Close()
	t := tls.Client(conn, &tls.Config{
		ServerName: "www.example.net", InsecureSkipVerify: true, MinVersion: c.version, MaxVersion: c.version,
		ClientSessionCache: c, NextProtos: []string{"http/1.1"},
	})
	if err := t.Handshake(); err != nil {
		return false, fmt.Errorf("handshake: %w", err)
	}
	// A ticket of TLS 1.3 comes with the answer.
	if _, err := fmt.Fprint(t, get); err != nil {
		return false, err
	}
	buf := make([]byte, 12)
	if _, err := t.Read(buf); err != nil || string(buf) != "HTTP/1.1 200" {
		return false, fmt.Errorf("answer %q: %w", buf, err)
	}
	return t.ConnectionState().DidResume, nil
}

func (c *customer) expect(t *testing.T, what string, x *bench, want bool) {
	t.Helper()
	if got, err := c.visit(x.vip()); err != nil || got != want {
		t.Errorf("%s: resumed %v, %v; want %v", what, got, err, want)
	}
}

// TestTicketsOfTheFleet: a session of one box is resumed at another with the same
// file, and after a restart; not at one with other keys, which serves it all the same.
func TestTicketsOfTheFleet(t *testing.T) {
	o, _ := simpleOrigin(t)
	one, two := newTicketBox(t, o.addr, ticketLine('a')), newTicketBox(t, o.addr, ticketLine('a')+ticketLine('b'))
	other, own := newTicketBox(t, o.addr, ticketLine('c')), newBench(t, o.addr)
	for v, c := range customers() {
		c.expect(t, v+" first", one.bench, false)
		c.expect(t, v+" again", one.bench, true)
		c.expect(t, v+" at the other box", two.bench, true)
		c.expect(t, v+" back", one.bench, true)
		c.expect(t, v+" at a box with other keys", other.bench, false)
		c.expect(t, v+" back from there", one.bench, false)
		c.expect(t, v+" at a box without keys", own, false)
		c.expect(t, v+" there again", own, true)
		if err := own.s.Reload(Reload{Config: own.cfg}); err != nil {
			t.Fatal(err)
		}
		c.expect(t, v+" there after a reload", own, true)
	}
	if got := own.s.State().TicketKeys; got != nil {
		t.Errorf("keys of its own are shown: %q", got)
	}
	if full, resumed := one.s.metrics.full.Load(), one.s.metrics.resumed.Load(); full != 4 || resumed != 4 {
		t.Errorf("%d full handshakes and %d resumed are counted, want 4 and 4", full, resumed)
	}
}

// TestTicketRotation: in the order of the manual no client that comes back does
// a full handshake before its key is removed, whichever box has got how far.
func TestTicketRotation(t *testing.T) {
	o, _ := simpleOrigin(t)
	one, two := newTicketBox(t, o.addr, ticketLine('a')), newTicketBox(t, o.addr, ticketLine('a'))
	clients := customers()
	look := func(what string) {
		t.Helper()
		for v, c := range clients {
			for i, x := range []*ticketBox{one, two, one} {
				c.expect(t, fmt.Sprintf("%s, TLS %s, visit %d", what, v, i), x.bench, true)
			}
		}
	}
	for v, c := range clients {
		c.expect(t, "first, TLS "+v, one.bench, false)
	}
	for _, step := range []struct {
		what string
		keys []byte
	}{{"install", []byte("ab")}, {"use", []byte("ba")}, {"remove", []byte("b")}, {"install the next", []byte("bc")}} {
		one.reload(step.keys...)
		look(step.what + " at the first box")
		two.reload(step.keys...)
		look(step.what + " at both")
	}
	// Steps that are skipped cost full handshakes, and nothing else.
	one.reload('d')
	for v, c := range clients {
		c.expect(t, "a key that is replaced at once, TLS "+v, one.bench, false)
		c.expect(t, "at a box that has not got it, TLS "+v, two.bench, false)
	}
	// Who goes back to keys of its own forgets those of the file.
	if err := one.s.Reload(Reload{Config: one.with(func(c *edge.Config) { c.Fleet.Proxy.TicketKeyFile = "" })}); err != nil {
		t.Fatal(err)
	}
	two.reload('d', 'c')
	for v, c := range clients {
		c.expect(t, "without a file, TLS "+v, one.bench, false)
		c.expect(t, "with its own keys, TLS "+v, one.bench, true)
		c.expect(t, "elsewhere with those, TLS "+v, two.bench, false)
	}
}

// TestTicketRotationUnderLoad: clients that come and go all the time see no
// failed handshake while keys are changed, in the right order or in none.
func TestTicketRotationUnderLoad(t *testing.T) {
	o, _ := simpleOrigin(t)
	one, two := newTicketBox(t, o.addr, ticketLine('a')), newTicketBox(t, o.addr, ticketLine('a'))
	var wg sync.WaitGroup
	var visits, resumed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	for _, c := range customers() {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				again, err := c.visit([]*ticketBox{one, two}[i%2].vip())
				if err != nil {
					t.Errorf("TLS %#x, visit %d: %v", c.version, i, err)
					return
				}
				visits.Add(1)
				if again {
					resumed.Add(1)
				}
			}
		})
	}
	for i, keys := range []string{"ab", "ba", "b", "bc", "cb", "c", "d", "a", "ad"} {
		waitFor(t, "visits between the steps", func() bool { return visits.Load() >= int64(20*i) || t.Failed() })
		one.reload([]byte(keys)...)
		two.reload([]byte(keys)...)
	}
	waitFor(t, "the last visits", func() bool { return visits.Load() >= 200 || t.Failed() })
	stop()
	wg.Wait()
	if resumed.Load() < visits.Load()/2 {
		t.Errorf("%d of %d visits took up a session", resumed.Load(), visits.Load())
	}
}

// TestTicketsOfOpenSSL: another implementation of TLS takes up its session at
// the other box.
func TestTicketsOfOpenSSL(t *testing.T) {
	o, _ := simpleOrigin(t)
	one, two := newTicketBox(t, o.addr, ticketLine('a')), newTicketBox(t, o.addr, ticketLine('b')+ticketLine('a'))
	for _, v := range []string{"-tls1_2", "-tls1_3"} {
		session := filepath.Join(t.TempDir(), "session")
		visit := func(x *ticketBox, args ...string) string {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), "openssl", append([]string{"s_client", "-connect", netip.AddrPortFrom(x.vip(), 443).String(),
				"-servername", "www.example.net", "-ign_eof", v}, args...)...)
			cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: www.example.net\r\nConnection: close\r\n\r\n")
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("HTTP/1.1 200 OK")) {
				t.Fatalf("openssl: %v\n%s", err, out)
			}
			return string(out)
		}
		if out := visit(one, "-sess_out", session); !strings.Contains(out, "\nNew, TLSv1.") {
			t.Errorf("%s, the first visit:\n%s", v, out)
		}
		if out := visit(two, "-sess_in", session); !strings.Contains(out, "\nReused, TLSv1.") {
			t.Errorf("%s, at the other box:\n%s", v, out)
		}
	}
}

// TestBadTicketFiles: what is wrong has a place and a remedy and no secret; a
// reload is refused and changes nothing, and a start goes on without the file.
func TestBadTicketFiles(t *testing.T) {
	const secret = "hunter2hunter2"
	o, _ := simpleOrigin(t)
	x := newTicketBox(t, o.addr, ticketLine('a'))
	c := customers()["1.3"]
	c.expect(t, "first", x.bench, false)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	nine := ""
	for i := range byte(MaxTicketKeys + 1) {
		nine += ticketLine('a' + i)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):          "no such file",
		pipe:                                "pipe is not a regular file",
		dir:                                 "is not a regular file",
		write("empty", "", 0o600):           "empty: 0 ticket keys are not from 1 to 8",
		write("comments", "# a\n\n", 0o600): "0 ticket keys are not from 1 to 8",
		write("nine", nine, 0o600):          "9 ticket keys are not from 1 to 8",
		write("word", ticketLine('a')+secret+"\n", 0o600):            "word: line 2 does not hold 32 bytes in base64; make a key with: openssl rand -base64 32",
		write("short", ticketLine('a')[8:], 0o600):                   "line 1 does not hold 32 bytes",
		write("hex", strings.Repeat("0", 64), 0o600):                 "line 1 does not hold 32 bytes",
		write("twice", ticketLine('a')+"#\n"+ticketLine('a'), 0o600): "the key of line 3 is given twice; remove one of the two lines",
		write("large", strings.Repeat("#\n", 10000), 0o600):          "large is larger than 16384 bytes",
		write("open", ticketLine('a'), 0o644):                        "open (mode 0644); chmod 0600",
	} {
		cfg := x.with(func(c *edge.Config) { c.Hash, c.Fleet.Proxy.TicketKeyFile = "two", path })
		err := x.s.Reload(Reload{Config: cfg})
		if err == nil || !strings.HasPrefix(err.Error(), "fleet.proxy.ticket_key_file: read ticket keys: ") || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), ticketLine('a')[:20]) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if st := x.s.State(); st.ConfigHash != "one" || !slices.Equal(st.TicketKeys, []string{ticketName('a')}) || st.TicketErr != "" {
			t.Errorf("after %s: %+v", path, st)
		}
	}
	c.expect(t, "after all that was refused", x.bench, true)

	bad := newTicketBox(t, o.addr, secret)
	st := bad.s.State()
	if len(st.TicketKeys) != 0 || !strings.Contains(st.TicketErr, "line 1 does not hold 32 bytes in base64") || strings.Contains(st.TicketErr, secret) {
		t.Errorf("started with a bad file: %+v", st)
	}
	c.expect(t, "at a box with a bad file", bad.bench, false)
	c.expect(t, "there again", bad.bench, true)
	bad.reload('a')
	c.expect(t, "at the box before", x.bench, false)
	c.expect(t, "at the mended box", bad.bench, true)
	state, err := json.Marshal(bad.s.State())
	if err != nil || bytes.Contains(state, []byte(ticketLine('a')[:20])) {
		t.Errorf("state %s, %v", state, err)
	}
}

// TestTicketsOfHTTP: http clients of the standard library resume as well.
func TestTicketsOfHTTP(t *testing.T) {
	o, _ := simpleOrigin(t)
	one, two := newTicketBox(t, o.addr, ticketLine('a')), newTicketBox(t, o.addr, ticketLine('a'))
	cache := tls.NewLRUClientSessionCache(0)
	for i, x := range []*ticketBox{one, two} {
		for _, h2 := range []bool{true, false} {
			c := x.stdClient(h2)
			c.Transport.(*http.Transport).TLSClientConfig.ClientSessionCache = cache
			resp, err := c.Get("https://www.example.net/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			c.CloseIdleConnections()
			if want := i > 0 || !h2; resp.TLS.DidResume != want || (resp.ProtoMajor == 2) != h2 {
				t.Errorf("box %d, %s: resumed %v", i, resp.Proto, resp.TLS.DidResume)
			}
		}
	}
}

func FuzzTicketKeys(f *testing.F) {
	f.Add([]byte("# a\n\n  " + ticketLine('a') + ticketLine('b')))
	f.Add([]byte(ticketLine('a') + ticketLine('a')))
	f.Add([]byte("x\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		keys, err := parseTicketKeys(src)
		if (err == nil) == (len(keys) == 0) || len(keys) > MaxTicketKeys {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		again := ""
		for _, k := range keys {
			again += base64.StdEncoding.EncodeToString(k[:]) + "\n"
		}
		if got, err := parseTicketKeys([]byte(again)); len(keys) > 0 && (err != nil || !slices.Equal(got, keys)) {
			t.Errorf("%q is read as %d keys, %v", again, len(got), err)
		}
	})
}
