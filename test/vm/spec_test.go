package vm

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// value returns what follows the n-th of an option, "" if there is none.
func values(args []string, option string) (all []string) {
	for i := range args[:len(args)-1] {
		if args[i] == option {
			all = append(all, args[i+1])
		}
	}
	return all
}

func TestSpecArgs(t *testing.T) {
	s := Spec{
		Dir: "/tmp/a,b", Disk: "/tmp/d,1.raw", Vars: "/tmp/v.fd", TAP: os.Stdin, MAC: "52:54:00:00:00:01", MTU: 1600,
		Volumes:             []string{"/tmp/one.img", "/tmp/two.iso"},
		Credentials:         map[string]string{"edge.yaml": "a: 1,2\n", "edge.password": "x"},
		FirmwareCredentials: map[string]string{"edge.bundle": "/tmp/b.tar"},
		Clock:               time.Date(2036, 2, 29, 1, 2, 3, 0, time.FixedZone("", 3600)), SectorSize: 4096,
	}
	args := s.args()
	for option, want := range map[string][]string{
		"-accel":  {"tcg,thread=multi"},
		"-smp":    {"2"},
		"-m":      {"1536"},
		"-qmp":    {"unix:/tmp/a,,b/qmp,server=on,wait=off"},
		"-rtc":    {"base=2036-02-29T00:02:03"},
		"-smbios": {"type=11,value=io.systemd.credential.binary:edge.password=eA==", "type=11,value=io.systemd.credential.binary:edge.yaml=YTogMSwyCg=="},
		"-fw_cfg": {"name=opt/io.systemd.credentials/edge.bundle,file=/tmp/b.tar"},
		"-netdev": {"tap,id=uplink,fd=3"},
	} {
		if got := values(args, option); !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", option, got, want)
		}
	}
	devices := strings.Join(values(args, "-device"), "\n")
	for _, want := range []string{
		"virtio-blk-pci,drive=disk,addr=0x4,bootindex=0,logical_block_size=4096,physical_block_size=4096",
		"romfile=,mac=52:54:00:00:00:01,host_mtu=1600", "drive=volume0", "drive=volume1",
	} {
		if !strings.Contains(devices, want) {
			t.Errorf("no device is %q in\n%s", want, devices)
		}
	}
	if drives := strings.Join(values(args, "-drive"), "\n"); !strings.Contains(drives, "file=/tmp/d,,1.raw") || strings.Count(drives, "readonly=on") != 3 {
		t.Errorf("the drives are\n%s", drives)
	}
}

// TestSpecSafe: no machine may use KVM, and a secure one has SMM and the firmware for it.
func TestSpecSafe(t *testing.T) {
	for _, s := range []Spec{{}, {SecureBoot: true}, {Incoming: true}} {
		text := strings.Join(s.args(), " ")
		if strings.Contains(text, "kvm") || strings.Contains(text, "-netdev") || strings.Contains(text, "-rtc") {
			t.Errorf("%+v gives %s", s, text)
		}
		if got := strings.Contains(text, "secboot") && strings.Contains(text, "smm=on") && strings.Contains(text, "property=secure,value=on"); got != s.SecureBoot {
			t.Errorf("%+v: secure is %v in %s", s, got, text)
		}
		if got := strings.Contains(text, "-incoming defer"); got != s.Incoming {
			t.Errorf("%+v: it waits for a state: %v", s, got)
		}
	}
}
