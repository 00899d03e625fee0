package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/catchment-dev/edge"
)

// The names of a box's daemons, in the order they are started in.
const (
	Speaker = "edgebgp"
	Proxy   = "edgeproxy"
	Control = "edged"
)

// Box is a host of a site with a folder, a configuration and, once started, the
// three daemons. Its BPF file system is mounted only in its own mount
// namespace: to see the pins, use Run.
type Box struct {
	*Host
	// Site and Router are where it is.
	Site, Router string
	// Addr4 and Addr6 are its own addresses, on eth0.
	Addr4, Addr6 string
	// Link is its uplink.
	Link Link

	dir  string
	near *Host // its router

	mu      sync.Mutex
	daemons map[string]*Daemon
	bin     string
	echo    net.PacketConn
	echoing sync.WaitGroup
}

// furnishBox makes a box of a host.
func (l *Lab) furnishBox(h *Host, p *boxPlan) error {
	b := &Box{
		Host: h, Site: p.Site, Router: p.Router, Addr4: p.Addr4.String(), Addr6: p.Addr6.String(),
		Link: l.Links[h.name], dir: filepath.Join(l.dir, h.name), daemons: map[string]*Daemon{},
		near: l.Routers[p.Router].Host,
	}
	l.Boxes[h.name] = b
	for _, dir := range []string{b.dir, b.RunDir(), b.path("state"), b.path("bpf")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make folder of box: %w", err)
		}
	}
	if err := b.mount("bpf", b.path("bpf")); err != nil {
		return err
	}
	text, err := renderConfig(&l.Topology, l.plan, l.secrets, p, b.dir)
	if err != nil {
		return err
	}
	if err := b.Configure(text); err != nil {
		return err
	}
	if err := b.serveEcho(); err != nil {
		return err
	}
	return l.attachStub(l.Routers[p.Router], h.name)
}

func (b *Box) path(name string) string { return filepath.Join(b.dir, name) }

// RunDir has the sockets and pid files of the daemons.
func (b *Box) RunDir() string { return b.path("run") }

// ConfigPath is the configuration.
func (b *Box) ConfigPath() string { return b.path("edge.yaml") }

// AccessLogPath is where edgeproxy logs its requests.
func (b *Box) AccessLogPath() string { return b.path("access.log") }

// Config reads the configuration.
func (b *Box) Config() (string, error) {
	text, err := os.ReadFile(b.ConfigPath())
	return string(text), err
}

// Configure replaces the configuration file. Nobody is told: edgectl reload is
// what does that.
func (b *Box) Configure(yaml string) error {
	next := b.path("edge.yaml.next")
	if err := os.WriteFile(next, []byte(yaml), 0o644); err != nil {
		return fmt.Errorf("write configuration of %s: %w", b.name, err)
	}
	if err := os.Rename(next, b.ConfigPath()); err != nil {
		return fmt.Errorf("replace configuration of %s: %w", b.name, err)
	}
	return nil
}

// Start starts the three daemons from the folder of Build, without waiting
// until they are ready. Each is restarted a second after it has ended.
func (b *Box) Start(bin string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.daemons) > 0 {
		return fmt.Errorf("start %s: its daemons have been started", b.name)
	}
	var err error
	if b.bin, err = filepath.Abs(bin); err != nil {
		return fmt.Errorf("start %s: %w", b.name, err)
	}
	for _, d := range []struct {
		name, pidFile string
		args          []string
	}{
		{Speaker, "", []string{"-socket", filepath.Join(b.RunDir(), "edgebgp.sock"), "-state", filepath.Join(b.RunDir(), "edgebgp.state")}},
		{Proxy, filepath.Join(b.RunDir(), "edgeproxy.pid"), []string{"-config", b.ConfigPath(), "-fallback", b.path("state/applied.yaml")}},
		{Control, "", []string{"-config", b.ConfigPath()}},
	} {
		daemon, err := startDaemon(daemonSpec{
			host: b.Host, name: d.name, path: filepath.Join(b.bin, d.name), args: d.args,
			pidFile: d.pidFile, log: b.path(d.name + ".log"), restart: time.Second,
		})
		if err != nil {
			return err
		}
		b.daemons[d.name] = daemon
	}
	return nil
}

// Daemon returns one of Speaker, Proxy and Control; nil before Start.
func (b *Box) Daemon(name string) *Daemon {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.daemons[name]
}

// Isolate cuts the box off, as if it had died: its router sees the link go
// down. Rejoin undoes it.
func (b *Box) Isolate() error { return b.Link.Cut() }

// Rejoin heals the link.
func (b *Box) Rejoin() error { return b.Link.Heal() }

// KillAll ends every process in the box by SIGKILL, for good: none is
// restarted. The kernel goes on, and so does what is pinned.
func (b *Box) KillAll() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.daemons {
		d.close()
	}
	clear(b.daemons)
	return sweep([]uint64{b.inode})
}

// Ctl runs edgectl inside the box, with its socket before the arguments. The
// error has what it printed to standard error.
func (b *Box) Ctl(ctx context.Context, args ...string) (string, error) {
	b.mu.Lock()
	bin := b.bin
	b.mu.Unlock()
	args = append([]string{"--socket", b.controlSocket()}, args...)
	out, err := b.Run(ctx, filepath.Join(bin, "edgectl"), args...)
	return string(out), err
}

func (b *Box) controlSocket() string { return filepath.Join(b.RunDir(), "edged.sock") }

// Status asks edged for everything it knows.
func (b *Box) Status(ctx context.Context) (edge.SystemStatus, error) {
	var st edge.SystemStatus
	err := b.Ask(ctx, Control, "/v1/status", &st)
	return st, err
}

// Ask gets a document from the unix socket of a daemon.
func (b *Box) Ask(ctx context.Context, daemon, path string, out any) error {
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(b.RunDir(), daemon+".sock"))
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return fmt.Errorf("ask %s of %s: %w", daemon, b.name, err)
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask %s of %s: %w", daemon, b.name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", resp.Status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		return fmt.Errorf("ask %s of %s: %w", daemon, b.name, err)
	}
	return nil
}

// Logs returns the last lines of the daemons' logs; nothing before Start.
func (b *Box) Logs(lines int) string {
	var text strings.Builder
	for _, name := range []string{Speaker, Proxy, Control} {
		if d := b.Daemon(name); d != nil {
			fmt.Fprintf(&text, "--- %s\n%s", d.LogPath(), tail(d.LogPath(), lines))
		}
	}
	return text.String()
}

// serveEcho answers datagrams to EchoVIP with the box's name: the backend of
// the L4-only service.
func (b *Box) serveEcho() error {
	pc, err := b.ListenPacket("udp", fmt.Sprintf("%s:%d", EchoVIP, EchoPort))
	if err != nil {
		return fmt.Errorf("start echo of %s: %w", b.name, err)
	}
	b.echo = pc
	b.echoing.Go(func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := pc.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				pc.WriteTo([]byte(b.name), from) // lost answers are the client's to see
			}
		}
	})
	return nil
}

func (b *Box) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.daemons {
		d.close()
	}
	if b.echo != nil {
		b.echo.Close()
		b.echoing.Wait()
	}
}
