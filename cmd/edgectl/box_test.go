package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
	"github.com/catchment-dev/edge/image/slot"
)

// node is an edged with one prefix that knows of drains. It takes a prefix off the
// air at once, unless the guard refuses.
type node struct {
	mu      sync.Mutex
	refuses bool
	keeps   bool         // undrain is refused
	keep    func() error // whether an order can be kept; nil: it can
	down    bool         // no peer is established
	onDrain func()
	drains  []edge.Drain
	orders  []string
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keep != nil && r.Method == http.MethodPost {
		if err := n.keep(); err != nil {
			socket.Fail(w, http.StatusConflict, err)
			return
		}
	}
	all := func(o edge.Drain) bool { return o.Service == "" && o.Prefix == netip.Prefix{} }
	switch r.URL.Path {
	case "/v1/drain":
		var o edge.Drain
		if err := socket.Read(r, &o); err != nil {
			socket.Fail(w, http.StatusBadRequest, err)
			return
		}
		n.orders = append(n.orders, "drain: "+o.Reason)
		n.drains = append(slices.DeleteFunc(n.drains, all), o)
		if n.onDrain != nil {
			n.onDrain()
		}
	case "/v1/undrain":
		if n.keeps {
			socket.Fail(w, http.StatusConflict, errors.New("the disk is full"))
			return
		}
		n.orders = append(n.orders, "undrain")
		n.drains = slices.DeleteFunc(n.drains, all)
	}
	socket.JSON(w, http.StatusOK, n.status())
}

// set changes it while it is asked.
func (n *node) set(change func(*node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

func (n *node) status() edge.SystemStatus {
	d := edge.Decision{Prefix: prefix4, Rung: edge.Announced}
	if len(n.drains) > 0 {
		d = edge.Decision{Prefix: prefix4, Rung: edge.Withdrawn, Unserved: true}
		if n.refuses {
			d = edge.Decision{Prefix: prefix4, Rung: edge.LastResort, Reason: "1 other site must promise to stay, and none has"}
		}
	}
	st := edge.SystemStatus{Node: "n1", Time: time.Now(), Decisions: []edge.Decision{d}, Drains: slices.Clone(n.drains)}
	st.Forwarder.Interfaces = []string{"up0"}
	st.Speaker.Peers = []edge.PeerState{{ID: "r1", Session: "established"}}
	if n.down {
		st.Speaker.Peers[0].Session = "active"
	}
	return st
}

// trial is an appliance of plain files: the disk, the EFI partition and the state.
type trial struct {
	t       *testing.T
	root    string
	node    *node
	socket  string
	running string
	key     *ecdsa.PrivateKey
	sshPort uint16

	mu   sync.Mutex
	ran  []string // programs of the system
	fail string   // a program that fails
	// between stands between the writer and the EFI partition; nil: nothing does.
	between func(slot.ESP) slot.ESP
	// onExec is called when a program is run; nil: nothing is.
	onExec func(name string)
	// deaf says that edgeproxy answers on no health port.
	deaf bool
	// stopping says that a reboot has begun.
	stopping bool
	bare     bool         // the packet filter is empty
	said     bytes.Buffer // on standard error
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &trial{t: t, root: t.TempDir(), node: &node{}, key: key}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c.put(slot.KeyDir+"/current.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	c.socket = filepath.Join(t.TempDir(), "edged.sock")
	serve(t, c.socket, c.node)
	c.put("/run/edge-setup/result.json", []byte(`{"format":1,"state":"ok","source":"EDGECFG","generation":1,"errors":[]}`))
	for _, s := range []slot.Slot{slot.A, slot.B} {
		c.put("/dev/"+s.RootName(), make([]byte, 64<<10))
		c.put("/dev/"+s.VerityName(), make([]byte, 16<<10))
	}
	c.put("/efi/EFI/Linux/edge_1.1.0.efi", program("roothash=x edge.version=1.1.0"))
	config, err := os.ReadFile("../../testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.put(edgeConfig, config)
	serve(t, filepath.Join(c.root, "/run/edge/edgeproxy.sock"), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		socket.JSON(w, http.StatusOK, edge.ProxyState{PID: 1})
	}))
	c.ssh()
	c.boot("1.1.0", slot.A)
	return c
}

func (c *trial) put(name string, b []byte) {
	c.t.Helper()
	path := filepath.Join(c.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b, 0o644)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *trial) read(name string) string {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.root, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(b)
}

// ssh has something greet, and /proc/net/tcp say that it is on port 22.
func (c *trial) ssh() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "SSH-2.0-OpenSSH\r\n")
			conn.Close()
		}
	}()
	c.t.Cleanup(func() { ln.Close(); <-done })
	c.sshPort = uint16(ln.Addr().(*net.TCPAddr).Port)
	c.put("/proc/net/tcp", fmt.Appendf(nil, "  sl  local_address rem_address   st\n   0: 0100007F:%04X 00000000:0000 0A\n", c.sshPort))
}

// boot starts a version: what the firmware, the loader, the initrd and the image do.
func (c *trial) boot(version string, s slot.Slot) {
	c.t.Helper()
	c.running = version
	c.put(slot.BootedAs+"/version", []byte(version+"\n"))
	c.put(slot.BootedAs+"/slot", []byte(string(s)+"\n"))
	c.put(osRelease, []byte("ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION=\""+version+"\"\nVARIANT_ID=cloud\n"))
	c.put("/proc/sys/kernel/random/boot_id", []byte(fmt.Sprintf("%s-%d\n", version, len(c.ran))))
	vars := filepath.Join(c.root, "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f")
	os.Remove(vars)
	os.Remove(filepath.Join(c.root, judgedFile))
	for _, u := range c.ukis() {
		if u.Version != version || !u.Counted {
			continue
		}
		next := slot.UKI{Version: version, Counted: true, Left: max(0, u.Left-1), Done: u.Done + 1}
		c.rename(u.Name(), next.Name())
		b := []byte{6, 0, 0, 0}
		for _, w := range utf16.Encode([]rune(`\EFI\Linux\` + next.Name() + "\x00")) {
			b = binary.LittleEndian.AppendUint16(b, w)
		}
		c.put("/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", b)
	}
}

// bless is systemd-bless-boot.
func (c *trial) bless() {
	for _, u := range c.ukis() {
		if u.Version == c.running && u.Counted {
			c.rename(u.Name(), slot.UKI{Version: u.Version}.Name())
		}
	}
}

func (c *trial) rename(from, to string) {
	c.t.Helper()
	dir := filepath.Join(c.root, ukiFolder)
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *trial) ukis() []slot.UKI {
	c.t.Helper()
	all, err := c.box().ukis()
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

func (c *trial) esp() string {
	var names []string
	for _, u := range c.ukis() {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(u.Name(), "edge_"), ".efi"))
	}
	return strings.Join(names, " ")
}

func (c *trial) box() *box {
	return &box{root: c.root, open: c.open, exec: c.exec, sshPort: c.sshPort, xdp: func(string) error { return nil }, firewall: func() (bool, error) { return !c.bare, nil }, get: c.get}
}

// get is how edgeproxy answers on the health port; see TestGet.
func (c *trial) get(_ context.Context, url string) error {
	if c.deaf {
		return fmt.Errorf("get %s: connection refused", url)
	}
	return nil
}

func (c *trial) open() (*opened, error) {
	s, _ := slot.ParseSlot(strings.TrimSpace(c.read(slot.BootedAs + "/slot")))
	w := &slot.Writer{
		ESP: slot.Folder(filepath.Join(c.root, ukiFolder)),
		Partition: func(name string) (slot.Volume, error) {
			if name == s.RootName() || name == s.VerityName() {
				return nil, errors.New("it runs")
			}
			return os.OpenFile(filepath.Join(c.root, "/dev", name), os.O_RDWR, 0)
		},
		RootHash: fakeRootHash,
	}
	if c.between != nil {
		w.ESP = c.between(w.ESP)
	}
	return &opened{writer: w, running: s, room: slot.Room{ESPFree: 100 << 20, Verity: 16 << 10, Root: 64 << 10}, close: func() error { return nil }}, nil
}

func fakeRootHash(r io.ReaderAt) (string, error) {
	b := make([]byte, 4096)
	_, err := r.ReadAt(b, 0)
	return hexSum(b), err
}

func hexSum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func (c *trial) exec(_ context.Context, name string, args ...string) ([]byte, error) {
	if c.onExec != nil {
		c.onExec(name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran = append(c.ran, strings.Join(append([]string{name}, args...), " "))
	if c.fail == name {
		return nil, errors.New(name + " fails")
	}
	if c.stopping && slices.Contains(args, "is-system-running") {
		return []byte("stopping\n"), errors.New("exit status 1")
	}
	if name == "journalctl" {
		return []byte("Jan 02 03:04:05 edge kernel: it hurts\n"), nil
	}
	return nil, nil
}

// reboots counts the reboots that were ordered.
func (c *trial) reboots() (n int) {
	for _, r := range c.ran {
		if r == "systemctl reboot" {
			n++
		}
	}
	return n
}

// call runs a command on this appliance.
func (c *trial) call(args ...string) (out string, err error) {
	c.t.Helper()
	return c.callCtx(c.t.Context(), args...)
}

func (c *trial) callCtx(ctx context.Context, args ...string) (string, error) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said.Write(stderr.Bytes())
	}()
	o := &options{env: env{stdout: &stdout, stderr: &stderr, now: func() time.Time { return time.Now() }, user: "ops"}, output: "text", socket: c.socket, timeout: 5 * time.Second}
	root := &cobra.Command{Use: "edgectl", SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().StringVarP(&o.output, "output", "o", "text", "")
	appliance := &cobra.Command{Use: "appliance"}
	appliance.AddCommand(o.applianceHealthCommand(c.box()), o.applianceResumeCommand(c.box()))
	root.AddCommand(o.upgradeCommandOn(c.box()), o.rollbackCommandOn(c.box()), o.slotsCommandOn(c.box()), appliance)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return stdout.String(), err
}

// must is call of a command that is to succeed.
func (c *trial) must(args ...string) string {
	c.t.Helper()
	out, err := c.call(args...)
	if err != nil {
		c.t.Fatalf("edgectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refuses is call of one that is to fail, and to say why.
func (c *trial) refuses(want string, args ...string) {
	c.t.Helper()
	out, err := c.call(args...)
	if err == nil || !strings.Contains(err.Error(), want) {
		c.t.Errorf("edgectl %s: got %v, want %q\n%s", strings.Join(args, " "), err, want, out)
	}
}

func (c *trial) upgrade() *slot.Upgrade {
	c.t.Helper()
	u, err := c.box().state().Upgrade()
	if err != nil || u == nil {
		c.t.Fatal(u, err)
	}
	return u
}

// payload makes a folder with a version.
func (c *trial) payload(version string, change ...func(*slot.Manifest)) string {
	c.t.Helper()
	dir := c.t.TempDir()
	verity, rootfs := []byte(version+strings.Repeat("v", 9000)), []byte(version+strings.Repeat("r", 40000))
	m := &slot.Manifest{Format: 1, Version: version, Profile: "cloud", Arch: arch(), Created: time.Unix(0, 0).UTC(), RootHash: hexSum(verity[:4096])}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer z.Close()
	for p, b := range map[slot.Part][]byte{slot.Verity: verity, slot.Root: rootfs, slot.Kernel: program("roothash=" + m.RootHash + " edge.version=" + version)} {
		packed := z.EncodeAll(b, nil)
		f := slot.File{Part: p, Name: string(p) + ".zst", Size: int64(len(b)), SHA256: hexSum(b), PackedSize: int64(len(packed)), PackedSHA256: hexSum(packed)}
		if err := os.WriteFile(filepath.Join(dir, f.Name), packed, 0o644); err != nil {
			c.t.Fatal(err)
		}
		m.Files = append(m.Files, f)
	}
	for _, f := range change {
		f(m)
	}
	text, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	sig, err := ecdsa.SignASN1(rand.Reader, c.key, sum[:])
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, slot.ManifestName), text, 0o644), os.WriteFile(filepath.Join(dir, slot.SignatureName), sig, 0o644)); err != nil {
		c.t.Fatal(err)
	}
	return dir
}

// program is a PE file with a command line, as small as debug/pe and Secure Boot take it.
func program(cmdline string) []byte {
	const head, optional = 0x80, 240
	b := make([]byte, 8192)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], head)
	copy(b[head:], "PE\x00\x00")
	coff := b[head+4:]
	binary.LittleEndian.PutUint16(coff, 0x8664)
	binary.LittleEndian.PutUint16(coff[2:], 1)
	binary.LittleEndian.PutUint16(coff[16:], optional)
	binary.LittleEndian.PutUint16(coff[20:], 0x20b) // PE32+
	binary.LittleEndian.PutUint32(coff[20+108:], 16)
	section := coff[20+optional:]
	copy(section, ".cmdline")
	binary.LittleEndian.PutUint32(section[8:], uint32(len(cmdline)))
	binary.LittleEndian.PutUint32(section[16:], 512)
	binary.LittleEndian.PutUint32(section[20:], 1024)
	copy(b[1024:], cmdline)
	return b
}

// bootSum is what a firmware knows a program by: its sum, but for its checksum and for
// where its signatures are.
func bootSum(program []byte) string {
	const optional = 0x80 + 24
	return hexSum(slices.Concat(program[:optional+64], program[optional+68:optional+144], program[optional+152:]))
}
