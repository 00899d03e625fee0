package pcapng

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/catchment-dev/edge"
)

// frame is UDP from 192.0.2.1:40000 to 198.51.100.10:53 with n bytes of payload.
func frame(t testing.TB, n int) []byte {
	t.Helper()
	b, err := hex.DecodeString("020000000001" + "020000000002" + "0800" +
		fmt.Sprintf("4500%04x000000004011%04x", 28+n, 0) + "c0000201" + "c633640a" + "9c400035" + fmt.Sprintf("%04x0000", 8+n))
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, n)...)
}

// tshark has Wireshark read the file and returns the wanted fields, a line for
// each packet. The colon rather than its default tab parts them.
func tshark(t *testing.T, file []byte, fields ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-n", "-r", path, "-T", "fields", "-E", "separator=|"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(t.Context(), "tshark", args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TZ=UTC")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("tshark: %v\n%s", err, &errs)
	}
	if strings.Contains(errs.String(), path) { // it complains of a file by name, and goes on
		t.Errorf("tshark: %s", &errs)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// TestWireshark: a reader that is not ours finds all that was written.
func TestWireshark(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, Options{Application: "edged v1", Comment: "1 of 10 packets", Interfaces: []string{"eth0", "eth1"}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	big := frame(t, 1400)
	for i, p := range []Packet{
		{Interface: "eth0", Action: "drop", Reason: "bad_length", Data: frame(t, 0)},
		{Interface: "vlan.7", Action: "tx", Reason: "backend", Length: len(big), Data: big[:256]},
		{Interface: "eth1", Action: "redirect", Reason: "backend", Data: frame(t, 1)},
		{Interface: "eth0", Action: "pass", Reason: "not_vip", Length: 3, Data: frame(t, 2)},
		{Interface: "vlan.7", Action: "later", Reason: edge.Reason("né")},
	} {
		p.Time = at.Add(time.Duration(i) * time.Nanosecond)
		if err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"1772366400.123456789|eth0|42|42|drop/bad_length|1|192.0.2.1|53",
		"1772366400.123456790|vlan.7|1442|256|tx/backend|3|192.0.2.1|53",
		"1772366400.123456791|eth1|43|43|redirect/backend|4|192.0.2.1|53",
		"1772366400.123456792|eth0|44|44|pass/not_vip|2|192.0.2.1|53",
		"1772366400.123456793|vlan.7|0|0|later/né|||",
	}
	got := tshark(t, file.Bytes(), "frame.time_epoch", "frame.interface_name", "frame.len", "frame.cap_len", "frame.comment", "frame.verdict.ebpf_xdp", "ip.src", "udp.dstport")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packets (-want +got):\n%s", diff)
	}
	got = tshark(t, file.Bytes(), "frame.interface_description")
	if want := "packets that came in on vlan.7, as they left the forwarder"; len(got) != 5 || got[1] != want {
		t.Errorf("descriptions: %q", got)
	}
}

// TestEmpty: a capture without packets is a file all the same, with its
// interfaces and what it is of.
func TestEmpty(t *testing.T) {
	var file bytes.Buffer
	if _, err := NewWriter(&file, Options{Application: "edged v1", Comment: "1 of 10 packets", Interfaces: []string{"eth0", "eth1"}}); err != nil {
		t.Fatal(err)
	}
	if got := tshark(t, file.Bytes(), "frame.len"); len(got) != 1 || got[0] != "" {
		t.Errorf("packets: %q", got)
	}
	path := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "capinfos", path).CombinedOutput()
	if err != nil {
		t.Fatalf("capinfos: %v\n%s", err, out)
	}
	for _, want := range []string{"edged v1", "1 of 10 packets", "Number of packets:   0", "Number of interfaces in file: 2", "Name = eth0", "Name = eth1", "nanoseconds (9)", "Encapsulation = Ethernet"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("capinfos does not say %q:\n%s", want, out)
		}
	}
	if _, err := NewWriter(&file, Options{}); err == nil {
		t.Error("no interface is no error")
	}
}

// full is a disk with room for so many bytes.
type full int

var errFull = errors.New("disk full")

func (f *full) Write(b []byte) (int, error) {
	if *f -= full(len(b)); *f < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestFull: that there is no more room is told at the packet that has none.
func TestFull(t *testing.T) {
	none := full(10)
	if _, err := NewWriter(&none, Options{Interfaces: []string{"eth0"}}); !errors.Is(err, errFull) {
		t.Errorf("head: %v", err)
	}
	some := full(1000)
	w, err := NewWriter(&some, Options{Interfaces: []string{"eth0"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err = w.Write(Packet{Interface: "eth0", Data: make([]byte, 100)}); err != nil {
			if i < 4 {
				t.Errorf("packet %d: %v", i, err)
			}
			break
		}
	}
	if !errors.Is(err, errFull) {
		t.Errorf("ten packets: %v", err)
	}
}
