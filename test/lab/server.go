package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/xdp"
)

// A server sends a download in chunks with a pause after each: 40 kB/s. Its
// sockets hold little that the client has not acknowledged, so that a download
// stands still soon after packets to the server are lost.
const (
	chunkSize  = 2048
	chunkPause = 50 * time.Millisecond
	sendBuffer = 2 * chunkSize
)

// Server is an L4 backend: it has the VIPs, takes what the boxes send it out of
// the tunnel with the product's own forwarder, and answers clients directly. It
// speaks HTTP/1.1:
//
//	GET /healthz   "ok"
//	GET /download  bytes at 40 kB/s, until Finish
//
// Its methods may be called by several goroutines at once.
type Server struct {
	*Host
	Addr4, Addr6 netip.Addr

	fwd     *xdp.Forwarder
	http    *http.Server
	serving sync.WaitGroup

	mu     sync.Mutex
	finish chan struct{}
}

// furnishServer makes a server of a host.
func (l *Lab) furnishServer(h *Host, a attachment) error {
	s := &Server{Host: h, Addr4: a.far[0].Addr(), Addr6: a.far[1].Addr(), finish: make(chan struct{})}
	l.Servers[h.name] = s
	if err := errors.Join(s.addVIPs(), s.receive(filepath.Join(l.dir, h.name), l.plan.boxes), s.serve()); err != nil {
		return fmt.Errorf("make server %s: %w", h.name, err)
	}
	return nil
}

// addVIPs gives the server the addresses that its clients talk to.
func (s *Server) addVIPs() error {
	lo, err := s.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for _, vip := range []netip.Addr{VIP4, VIP6} {
		if err := s.nl.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(vip, vip.BitLen()))}); err != nil {
			return fmt.Errorf("add %s: %w", vip, err)
		}
	}
	return nil
}

// receive loads the forwarder, with the folder dir on a bpffs of the host's own.
func (s *Server) receive(dir string, from []*boxPlan) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make folder of server: %w", err)
	}
	if err := s.mount("bpf", dir); err != nil {
		return err
	}
	return s.Do(func() (err error) {
		ctx := context.Background() // nobody else has the folder open
		s.fwd, err = xdp.Open(ctx, xdp.Options{Dir: filepath.Join(dir, "edge"), Interfaces: []string{uplink}, Flows: 4096, HalfFlows: 4096})
		if err != nil {
			return err
		}
		return s.fwd.Apply(ctx, s.table(from))
	})
}

// table takes both services from the boxes, and gives them to the stack.
func (s *Server) table(from []*boxPlan) edge.Table {
	t := edge.Table{Source4: s.Addr4, Source6: s.Addr6}
	for _, b := range from {
		t.Trusted = append(t.Trusted, b.Addr4, b.Addr6)
	}
	for _, one := range []struct {
		id       edge.ServiceID
		vip, far netip.Addr
		encap    edge.Encap
	}{{"download", VIP4, s.Addr4, edge.EncapGUE}, {"download6", VIP6, s.Addr6, edge.EncapIPIP}} {
		t.Services = append(t.Services, edge.TableService{
			ID: one.id, VIP: netip.AddrPortFrom(one.vip, DownloadPort), Protocol: edge.TCP, Encap: one.encap,
			Backends: []edge.TableBackend{{ID: edge.BackendID(s.name), Addr: one.far, Weight: 1, Local: true}},
		})
	}
	return t
}

// serve listens on the VIPs and, for the boxes' checks, on its own addresses.
func (s *Server) serve() error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("/download", s.download)
	ln, err := s.Listen("tcp", fmt.Sprintf("[::]:%d", DownloadPort))
	if err != nil {
		return err
	}
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(sendBuffer) // one that is gone is Serve's to see
			return ctx
		},
	}
	s.serving.Go(func() { s.http.Serve(ln) }) // ends with close
	return nil
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	finish := s.finish
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(serverHeader, s.name)
	tick := time.NewTicker(chunkPause)
	defer tick.Stop()
	chunk := make([]byte, chunkSize)
	for sent := int64(0); ; sent += chunkSize {
		fill(chunk, sent)
		if _, err := w.Write(chunk); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-finish:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// Finish ends the downloads that are under way, each with a whole answer.
func (s *Server) Finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.finish)
	s.finish = make(chan struct{})
}

// Forwarder says what the server's forwarder did with its packets.
func (s *Server) Forwarder() (edge.ForwarderStats, error) { return s.fwd.Stats() }

func (s *Server) close() error {
	if s.http != nil {
		s.http.Close()
		s.serving.Wait()
	}
	if s.fwd != nil {
		return s.fwd.Close()
	}
	return nil
}
