package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bpf is a call of the kernel whose result is a file descriptor.
func bpf[T any](t *testing.T, cmd uintptr, attr T) int {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		t.Fatalf("bpf command %d: %v", cmd, errno)
	}
	return int(fd)
}

// pinLink attaches a program that passes everything to an interface, and pins
// the link.
func pinLink(t *testing.T, ifindex int, pin string) {
	t.Helper()
	insns := [2]uint64{0x00000002_000000b7, 0x95} // r0 = XDP_PASS; exit
	license := [4]byte{'G', 'P', 'L'}
	prog := bpf(t, unix.BPF_PROG_LOAD, struct {
		kind, count    uint32
		insns, license unsafe.Pointer
		rest           [8]uint64
	}{kind: unix.BPF_PROG_TYPE_XDP, count: 2, insns: unsafe.Pointer(&insns), license: unsafe.Pointer(&license)})
	defer unix.Close(prog)
	link := bpf(t, unix.BPF_LINK_CREATE, struct {
		prog, ifindex, attach, flags uint32
	}{uint32(prog), uint32(ifindex), 37 /* BPF_XDP */, 2 /* generic mode */})
	defer unix.Close(link)
	path := append([]byte(pin), 0)
	bpf(t, unix.BPF_OBJ_PIN, struct {
		path unsafe.Pointer
		fd   uint32
		_    uint32
	}{unsafe.Pointer(&path[0]), uint32(link), 0})
	runtime.KeepAlive(path)
}

// TestForwards: the pinned links prove it, and nothing else does.
func TestForwards(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	a, err := netlink.LinkByName("a")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	mounted := dir
	t.Cleanup(func() { unix.Unmount(mounted, unix.MNT_DETACH) })
	says := func(want string) {
		t.Helper()
		err := forwards(dir)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("forwards: %v, want %q", err, want)
		}
	}
	says("no link is pinned")
	if err := os.Mkdir(filepath.Join(dir, "v2"), 0o700); err != nil {
		t.Fatal(err)
	}
	pinLink(t, a.Attrs().Index, filepath.Join(dir, "v2", "link_a"))
	says("")
	if err := netlink.LinkDel(a); err != nil {
		t.Fatal(err)
	}
	says("attached to no interface any more")
	if err := os.Remove(filepath.Join(dir, "v2", "link_a")); err != nil {
		t.Fatal(err)
	}
	says("no link is pinned")
	plain := t.TempDir()
	os.Mkdir(plain+"/v2", 0o700)
	os.WriteFile(plain+"/v2/link_x", nil, 0o600)
	dir = plain
	says("open link")
}
