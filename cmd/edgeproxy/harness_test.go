package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

// binary is edgeproxy as it is installed: the tests run it as a process.
var binary string

// inside tells the test that it is in a network namespace of its own.
const inside = "EDGEPROXY_TEST_INSIDE"

// TestMain runs the tests in a network namespace of their own: a node's
// addresses cannot be loopback ones, and others are not ours to take.
func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		runtime.LockOSThread() // the child dies with the thread that made it
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "run in a network namespace:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testMain(m))
}

// bringUp makes all of 198.18.0.0/15 (RFC 2544) this namespace's own.
func bringUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	all := net.IPNet{IP: net.IPv4(198, 18, 0, 0), Mask: net.CIDRMask(15, 32)}
	local := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
	if err := netlink.RouteAdd(local); err != nil {
		return fmt.Errorf("add local route: %w", err)
	}
	return nil
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "edgeproxy")
	if err == nil {
		err = bringUp()
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // another user must be able to execute it
	}
	binary = filepath.Join(dir, "edgeproxy")
	if err == nil {
		var out []byte
		if out, err = exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
	} else if code = m.Run(); code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	return code
}

const patience = time.Minute

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // between two polls
	}
}

// site is the surroundings of one process: files, addresses, an origin.
type site struct {
	t    *testing.T
	dir  string
	net  string // "198.18.x": this test's own
	user string
	// route is what the only route matches.
	route    string
	capacity int
	extra    string // more services
	tickets  string // file of ticket keys
	// check is what the origin answers to the check of its region; nil: what it
	// answers to everything.
	check atomic.Pointer[string]
	// asked gets a value for each request for /slow, which are answered once
	// release has been called.
	asked, let chan struct{}
	release    func()
}

var lastSite atomic.Int32

func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "edgeproxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n := lastSite.Add(1)
	s := &site{t: t, dir: dir, net: fmt.Sprintf("198.18.%d", n), route: "/", capacity: 1000,
		asked: make(chan struct{}, 1), let: make(chan struct{})}
	s.release = sync.OnceFunc(func() { close(s.let) })
	writeCert(t, dir)
	s.origin()
	s.configure()
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }
func (s *site) vip() string             { return s.net + ".10" }

func (s *site) configure() {
	s.t.Helper()
	text := fmt.Sprintf(`
node:
  name: a1
  key_file: %[1]s/node.key
  run_dir: %[1]s/run
  state_dir: %[1]s/state
  proxy_user: "%[3]s"
  forwarder: {interfaces: [lo]}
  bgp: {asn: 64512, peers: [{name: r, address: %[2]s.1, asn: 65001}]}
fleet:
  ring_seed_file: %[1]s/seed
  sites: [{name: a}, {name: b}]
  nodes:
    - {name: a1, site: a, address4: %[2]s.2, gossip: "%[2]s.2:7946", health_port: 9181, public_key: 3EizPn141Y0lV57J5PTWH5WGdDhX5MGKnXBWYeMxvLY=}
    - {name: b1, site: b, address4: %[2]s.3, gossip: "%[2]s.3:7946", health_port: 9181, public_key: e8RFm9BVs1svQXhPo7vQgCNUc1MmZDkMdcNuxfMshiY=}
  prefixes: [{prefix: %[2]s.0/24, min_sites: 1}]
  services:
    - {name: web, vip: %[2]s.10, port: 443, protocol: tcp, proxy: https}
%[6]s
  regions:
    - {name: east, capacity: %[5]d, upstreams: [{name: o1, address: "%[2]s.20:8080"}], check: {kind: http, path: /check, interval: 100ms, timeout: 90ms}}
  proxy:
    certificates: [{cert_file: %[1]s/web.crt, key_file: %[1]s/web.key}]
    routes: [{path_prefix: "%[4]s"}]
    ticket_key_file: "%[7]s"
    access_log: %[1]s/access.log
    drain_timeout: 5s
  guard: {key_file: %[1]s/gossip.key}
`, s.dir, s.net, s.user, s.route, s.capacity, s.extra, s.tickets)
	if err := os.WriteFile(s.path("edge.yaml"), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func writeCert(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"www.example.net"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"web.crt": {Type: "CERTIFICATE", Bytes: der}, "web.key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// origin answers each request on a connection of its own, the ones for /slow
// when it is let.
func (s *site) origin() {
	ln, err := net.Listen("tcp", s.net+".20:8080")
	if err != nil {
		s.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				buf := make([]byte, 4096)
				n, _ := c.Read(buf)
				if bytes.HasPrefix(buf[:n], []byte("GET /slow")) {
					s.asked <- struct{}{}
					<-s.let
				}
				if check := s.check.Load(); check != nil && bytes.HasPrefix(buf[:n], []byte("GET /check")) {
					io.WriteString(c, *check)
					return
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\norigin")
			})
		}
	})
	s.t.Cleanup(func() { ln.Close(); s.release(); wg.Wait() })
}

// process is a running edgeproxy.
type process struct {
	*site
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	client *socket.Client
	exited chan error
}

// start runs cmd, which is edgeproxy or becomes it.
func (s *site) start(cmd *exec.Cmd) *process {
	s.t.Helper()
	p := &process{site: s, cmd: cmd, stderr: &bytes.Buffer{}, exited: make(chan error, 1), client: socket.NewClient(s.path("run/edgeproxy.sock"))}
	cmd.Stderr = p.stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { p.exited <- cmd.Wait() }()
	s.t.Cleanup(func() {
		p.client.Close()
		cmd.Process.Kill()
		p.wait()
		if s.t.Failed() {
			s.t.Logf("stderr:\n%s", p.stderr)
		}
	})
	return p
}

func (s *site) command() *exec.Cmd { return exec.Command(binary, "-config", s.path("edge.yaml")) }

// wait returns how the process ended.
func (p *process) wait() error {
	select {
	case err := <-p.exited:
		p.exited <- err
		return err
	case <-time.After(patience):
		return errors.New("still running")
	}
}

func (p *process) state() (st edge.ProxyState, err error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	err = p.client.Call(ctx, "GET", "/v1/state", nil, &st)
	return st, err
}

func (p *process) awaitServing() {
	p.t.Helper()
	waitFor(p.t, "edgeproxy to serve", func() bool {
		st, err := p.state()
		return err == nil && len(st.Load.Regions) == 1 && st.Load.Regions[0].Up == 1
	})
}

func (s *site) curl(url string, args ...string) string {
	args = append([]string{"-sk", "--max-time", "60", "-w", " %{http_code}", "--resolve", "www.example.net:443:" + s.vip()}, args...)
	out, err := exec.Command("curl", append(args, url)...).Output()
	if err != nil {
		return fmt.Sprintf("%s (%v)", out, err)
	}
	return string(out)
}

func (p *process) serves() {
	p.t.Helper()
	for _, v := range []string{"--http1.1", "--http2"} {
		if out := p.curl("https://www.example.net/x", v); out != "origin 200" {
			p.t.Errorf("%s: %s", v, out)
		}
	}
	if out := p.curl("http://" + p.net + ".2:9181/healthz"); out != "ok\n 200" {
		p.t.Errorf("health: %s", out)
	}
}
