package units

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"
)

// deadman runs the script on a root with these UKIs, and says whether it rebooted.
func deadman(t *testing.T, booted, esp string, judged bool) (said string, rebooted bool) {
	t.Helper()
	root, bin := t.TempDir(), t.TempDir()
	put := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"systemctl", "sleep", "sync"} {
		put(filepath.Join(bin, name), "#!/bin/sh\necho \"$0 $*\" >>"+root+"/ran\n")
	}
	put(root+"/proc/sysrq-trigger", "")
	for name := range strings.FieldsSeq(esp) {
		put(root+"/efi/EFI/Linux/"+name, "MZ")
	}
	if booted != "" {
		b := []byte{6, 0, 0, 0}
		for _, w := range utf16.Encode([]rune(`\EFI\Linux\` + booted + "\x00")) {
			b = binary.LittleEndian.AppendUint16(b, w)
		}
		put(root+"/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", string(b))
	}
	if judged {
		put(root+"/run/edge-image/judged", "so it stays\n")
	}
	said = run(t, "env", "PATH="+bin+":"+os.Getenv("PATH"), "appliance/usr/lib/edge/deadman", root)
	trigger, err := os.ReadFile(root + "/proc/sysrq-trigger")
	if err != nil {
		t.Fatal(err)
	}
	ran, _ := os.ReadFile(root + "/ran")
	if rebooted = string(trigger) == "b\n"; !rebooted && strings.Contains(string(ran), "systemctl") {
		t.Errorf("it stays, and has run %s", ran)
	}
	return said, rebooted
}

func TestDeadman(t *testing.T) {
	for _, c := range []struct {
		name, booted, esp string
		judged, reboots   bool
		says              string
	}{
		{name: "good before", esp: "edge_1.1.0.efi edge_1.2.0.efi", says: "not under trial"},
		{name: "no counter", booted: "edge_1.2.0.efi", esp: "edge_1.1.0.efi edge_1.2.0.efi", says: "not under trial"},
		{name: "judged", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.1.0.efi edge_1.2.0+2-1.efi", judged: true, says: "was judged"},
		{name: "blessed", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.1.0.efi edge_1.2.0.efi", says: "was found good"},
		{name: "never judged", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.1.0.efi edge_1.2.0+2-1.efi", reboots: true, says: "version 1.2.0 was not judged in time, 2 tries are left, then 1.1.0 is booted"},
		{name: "the last try", booted: "edge_1.2.0+0-3.efi", esp: "edge_1.1.0.efi edge_1.2.0+0-3.efi", reboots: true, says: "0 tries"},
		{name: "a FAT in capitals", booted: "EDGE_1.2.0+2-1.EFI", esp: "EDGE_1.1.0.EFI EDGE_1.2.0+2-1.EFI", reboots: true, says: "then 1.1.0"},
		{name: "alone", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.2.0+2-1.efi", says: "no other version"},
		{name: "beside what is none of ours", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.2.0+2-1.efi memtest.efi edge_.efi edge_1+x.efi", says: "no other version"},
		{name: "the other has failed", booted: "edge_1.2.0+2-1.efi", esp: "edge_1.1.0+0-3.efi edge_1.2.0+2-1.efi", says: "no other version"},
		{name: "the other is under trial", booted: "edge_1.2.0+0-3.efi", esp: "edge_1.1.0+1-1.efi edge_1.2.0+0-3.efi", reboots: true, says: "then 1.1.0"},
		{name: "after a rollback", booted: "edge_1.9.0+0-3.efi", esp: "edge_1.10.0+0.efi edge_1.9.0+0-3.efi", reboots: true, says: "then 1.10.0"},
		{name: "the older was set aside", booted: "edge_1.10.0+0-3.efi", esp: "edge_1.9.0+0.efi edge_1.10.0+0-3.efi", says: "no other version"},
		{name: "the partition cannot be read", booted: "edge_1.2.0+1-2.efi", reboots: true, says: "then the one before"},
		{name: "nor are there tries", booted: "edge_1.2.0+0-3.efi", says: "so 1.2.0 stays"},
		{name: "something else was booted", booted: "other.efi", esp: "edge_1.1.0.efi", says: "not under trial"},
	} {
		said, rebooted := deadman(t, c.booted, c.esp, c.judged)
		if rebooted != c.reboots || !strings.Contains(said, c.says) {
			t.Errorf("%s: reboots %v: %s", c.name, rebooted, said)
		}
	}
}

// TestDeadmanComesEarly: what hangs or fails at boot must not keep it away, nor end it.
func TestDeadmanComesEarly(t *testing.T) {
	units := files(t, "edge-deadman.timer")["/usr/lib/systemd/system/edge-deadman.timer"]
	units += files(t, "edge-deadman.service")["/usr/lib/systemd/system/edge-deadman.service"]
	for _, bad := range []string{"\nAfter=", "\nRequires=", "\nWants=", "edgectl appliance", "\nExecStart=/usr/bin/edgectl"} {
		if strings.Contains(units, bad) {
			t.Errorf("it depends on something: %q", bad)
		}
	}
	if strings.Count(units, "DefaultDependencies=no") != 2 || strings.Count(units, "IgnoreOnIsolate=yes") != 2 {
		t.Error("another target ends it")
	}
}
