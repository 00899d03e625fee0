package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/xdp"
)

// wire is a forwarder on one end of a veth, and a raw socket on the other.
type wire struct {
	d    *daemon
	mac  net.HardwareAddr // of the forwarder's end
	sock int
	to   unix.Sockaddr
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openWire makes all of it in a network namespace of the test's own, on this
// thread, which ends with the test.
func openWire(t *testing.T) *wire {
	t.Helper()
	runtime.LockOSThread()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/default/disable_ipv6"} {
		must(t, os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0))
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "peer0"}))
	for _, name := range []string{"lo", "up0", "peer0"} {
		dev, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(dev))
	}
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	fwd, err := xdp.Open(t.Context(), xdp.Options{Dir: dir + "/edge", Interfaces: []string{"up0"}, Flows: 4096, HalfFlows: 4096})
	must(t, err)
	t.Cleanup(func() { must(t, fwd.Close()) })
	w := &wire{d: &daemon{fwd: fwd, log: slog.New(slog.DiscardHandler)}}
	c := testConfig()
	c.Local.Forwarder.Interfaces = []string{"up0"}
	w.d.cfg.Store(c)
	w.d.snapshot.Store(&edge.SystemStatus{})
	up, err := netlink.LinkByName("up0")
	must(t, err)
	peer, err := netlink.LinkByName("peer0")
	must(t, err)
	w.mac = up.Attrs().HardwareAddr
	w.sock, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(w.sock) })
	w.to = &unix.SockaddrLinklayer{Ifindex: peer.Attrs().Index, Halen: 6}
	return w
}

// send puts a TCP packet with these flags on the wire; its IP length says extra
// bytes more than there are.
func (w *wire) send(t *testing.T, src, dst string, flags byte, extra int) {
	t.Helper()
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	tcp := make([]byte, 20)
	copy(tcp, ports(s.Port(), d.Port())[:4])
	tcp[12], tcp[13] = 5<<4, flags
	frame := ethernet(0x0800, ip4(6, s.Addr().String(), d.Addr().String(), tcp))
	copy(frame, w.mac)
	copy(frame[6:], "\x02\x00\x00\x00\x00\x09")
	ip := frame[14:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+extra))
	ip[8] = 64
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	must(t, unix.Sendto(w.sock, frame, 0, w.to))
}

// TestDataPlane: packets on a wire, through the real program, are seen by all
// that an operator has to see them with.
func TestDataPlane(t *testing.T) {
	const syn, ack, client, vip = 2, 16, "192.0.2.77:40000", "198.51.100.10:443"
	w := openWire(t)
	must(t, w.d.fwd.Apply(t.Context(), edge.Table{
		Source4: netip.MustParseAddr("192.0.2.1"), Seed: [16]byte{1},
		Services: []edge.TableService{{
			ID: "web", VIP: netip.MustParseAddrPort(vip), Protocol: edge.TCP, Encap: edge.EncapGUE,
			Backends: []edge.TableBackend{{ID: "a1", Addr: netip.MustParseAddr("192.0.2.1"), Weight: 100, Local: true}},
		}},
	}))
	api := w.serve(t)
	c := w.capture(t, api)
	w.send(t, client, vip, syn, 0)
	w.send(t, client, vip, ack, 0)
	w.send(t, client, vip, ack, 100)
	w.send(t, client, "198.51.100.10:80", syn, 0)
	want := []string{"up0|54|pass/local|443", "up0|54|pass/local|443", "up0|54|drop/bad_length|443", "up0|54|pass/no_service|80"}
	if diff := cmp.Diff(want, c.end(t, len(want))); diff != "" {
		t.Errorf("capture, as tshark reads it (-want +got):\n%s", diff)
	}
	var list flowList
	must(t, api.Call(t.Context(), "GET", "/v1/flows?service=web&backend=a1&source=192.0.2.0/24", nil, &list))
	if len(list.Flows) == 2 && list.Flows[0].Half { // it may still be remembered there
		list.Flows = list.Flows[1:]
	}
	if len(list.Flows) != 1 || list.Flows[0].Left < 50*time.Second || list.Flows[0].Left > 61*time.Second {
		t.Fatalf("flows: %+v", list)
	}
	f := list.Flows[0]
	if got := fmt.Sprintf("%s %s %s %s %s half=%t", f.Service, f.Backend, f.Protocol, f.Src, f.Dst, f.Half); got != "web a1 tcp 192.0.2.77:40000 198.51.100.10:443 half=false" {
		t.Errorf("flow: %s", got)
	}
	for what, line := range map[string]string{
		"tcp " + client + " " + vip:        "backend a1: the flow table remembers it",
		"tcp 192.0.2.77:40001 " + vip:      "backend a1: the ring chooses it, by slot ",
		"esp 192.0.2.77 198.51.100.10":     "pass: no_service",
		"tcp 192.0.2.77:1 198.51.100.11:1": "pass: not_vip",
	} {
		var e edge.Explanation
		must(t, api.Call(t.Context(), "GET", "/v1/explain?"+url.Values{"what": {what}}.Encode(), nil, &e))
		if !strings.Contains(strings.Join(e.Lines, "\n"), line) {
			t.Errorf("explain %s does not say %q: %q", what, line, e.Lines)
		}
	}
	// The snapshot is empty: what is told can only be of now.
	got := told(t, collector{w.d})
	for _, line := range []string{
		`edge_xdp_readable 1`, `edge_xdp_attached{interface="up0",mode="native"} 1`,
		`edge_xdp_packets_total{action="drop",reason="bad_length"} 1`, `edge_xdp_service_packets_total{service="web"} 2`,
		`edge_xdp_service_chosen_total{by="ring",service="web"} 1`, `edge_xdp_service_chosen_total{by="half",service="web"} 1`,
		`edge_xdp_service_flows_opened_total{service="web"} 1`, `edge_xdp_service_flows_established_total{service="web"} 1`,
		`edge_xdp_backend_packets_total{backend="a1",service="web"} 2`,
	} {
		if !slices.Contains(got, line) {
			t.Errorf("metrics do not say %q, but %q", line, named(got, line))
		}
	}
}

// TestCaptureLeavesNothing: after a capture whose client went away another can
// begin though no packet comes, and what left before is not in it. It ends in
// time, too.
func TestCaptureLeavesNothing(t *testing.T) {
	w := openWire(t)
	api := w.serve(t)
	first := w.capture(t, api)
	w.send(t, "192.0.2.77:40000", "203.0.113.1:1000", 2, 0)
	first.body.Close()
	second := w.capture(t, api)
	w.send(t, "192.0.2.77:40000", "203.0.113.1:80", 2, 0)
	if diff := cmp.Diff([]string{"up0|54|pass/not_vip|80"}, second.end(t, 1)); diff != "" {
		t.Errorf("second capture (-want +got):\n%s", diff)
	}
	var third *http.Response
	for deadline := time.Now().Add(time.Minute); third == nil; time.Sleep(5 * time.Millisecond) {
		var err error
		if third, err = api.Open(t.Context(), "GET", "/v1/capture?seconds=1", nil); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer third.Body.Close()
	ended := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, third.Body)
		ended <- err
	}()
	if err := within(t, ended, "end of third capture"); err != nil || third.Trailer.Get(trailerPackets) != "0" {
		t.Errorf("third capture: %v, %v", err, third.Trailer)
	}
}

// serve has the handler of the daemon answer on a socket.
func (w *wire) serve(t *testing.T) *socket.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edged.sock")
	ln, err := socket.Listen(path)
	must(t, err)
	serveUntilEnd(t, ln, w.d.handler())
	client := socket.NewClient(path)
	t.Cleanup(client.Close)
	return client
}

// captured is a capture that goes on.
type captured struct {
	body io.ReadCloser
	raw  bytes.Buffer // what was read of it, once seen is closed
	seen chan uint16  // destination ports
}

// knock is the port of the packets that tell when a capture has begun: its head
// comes a little before.
const knock = 9

// capture begins a capture, as soon as the one before has ended.
func (w *wire) capture(t *testing.T, api *socket.Client) *captured {
	t.Helper()
	c := &captured{seen: make(chan uint16, 100)}
	for deadline := time.Now().Add(time.Minute); c.body == nil; time.Sleep(5 * time.Millisecond) {
		resp, err := api.Open(t.Context(), "GET", "/v1/capture?seconds=60", nil)
		if err == nil {
			c.body = resp.Body
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.body.Close() })
	ng, err := pcapgo.NewNgReader(io.TeeReader(c.body, &c.raw), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	go func() {
		defer close(c.seen)
		for {
			data, _, err := ng.ReadPacketData()
			if err != nil {
				return
			}
			c.seen <- binary.BigEndian.Uint16(data[36:])
		}
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		w.send(t, "192.0.2.77:40000", fmt.Sprintf("203.0.113.1:%d", knock), 2, 0)
		select {
		case <-c.seen:
			return c
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no packet is captured within 10 s")
		}
	}
}

// end waits for n packets besides those that knocked, ends the capture, and
// returns what tshark reads of it.
func (c *captured) end(t *testing.T, n int) (lines []string) {
	t.Helper()
	for n > 0 {
		if within(t, c.seen, "packet") != knock {
			n--
		}
	}
	c.body.Close()
	for range c.seen {
	}
	path := filepath.Join(t.TempDir(), "x.pcapng")
	must(t, os.WriteFile(path, c.raw.Bytes(), 0o600))
	cmd := exec.CommandContext(t.Context(), "tshark", "-n", "-r", path, "-T", "fields", "-E", "separator=|",
		"-e", "frame.interface_name", "-e", "frame.len", "-e", "frame.comment", "-e", "tcp.dstport")
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); !strings.HasSuffix(line, fmt.Sprintf("|%d", knock)) {
			lines = append(lines, line)
		}
	}
	return lines
}
