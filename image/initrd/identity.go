package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// runDir is where the initrd leaves what the appliance wants to know of it.
const runDir = "/run/edge-initrd"

// notes is what is worth knowing later of a boot: keys and values, and esp, the
// device of the EFI partition; "": the kernel has none.
type notes struct {
	lines []string
	esp   string
}

func (n *notes) add(key, value string) { n.lines = append(n.lines, key+"="+value) }

// write writes the files of runDir. dir is it as seen from here.
func (n *notes) write(dir, slot, version string) error {
	text := ""
	for _, l := range n.lines {
		text += l + "\n"
	}
	files := map[string]string{"slot": slot + "\n", "version": version + "\n", "notes": text}
	if n.esp != "" {
		files["esp"] = n.esp + "\n"
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("leave notes: %w", err)
		}
	}
	return nil
}

// leaveIdentity puts this box's machine id on /etc/machine-id: the one on /var,
// made at the first boot. A copy in /run is mounted, so that /var can be
// unmounted at the end. The root has an empty file for it.
func leaveIdentity(c *console, n *notes) error {
	if err := os.MkdirAll(newRoot+runDir, 0o755); err != nil {
		return fmt.Errorf("leave notes: %w", err)
	}
	id, made, err := machineID(newRoot + "/var/lib/edge-image/machine-id")
	if err != nil {
		// It is then another one at each boot, which is no reason not to boot.
		c.say(warn, "machine id: %v", err)
	}
	if made {
		n.add("edge.machine-id", "new")
	}
	file := newRoot + runDir + "/machine-id"
	if err := os.WriteFile(file, []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("leave machine id: %w", err)
	}
	if err := unix.Mount(file, newRoot+"/etc/machine-id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("put machine id in place: %w", err)
	}
	return nil
}

// machineID reads the id in the file, or makes one (machine-id(5)): 32
// hexadecimal digits. There is always one, also with an error. One that is not
// right is replaced.
func machineID(file string) (id string, made bool, err error) {
	b, err := os.ReadFile(file)
	if id := strings.TrimSpace(string(b)); err == nil && isMachineID(id) {
		return id, false, nil
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // it never fails
	// The form of a random UUID, as systemd makes it.
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	id = hex.EncodeToString(raw[:])
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return id, true, err
	}
	return id, true, writeFile(file, id+"\n")
}

func isMachineID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}

// writeFile writes a file that is there whole or not at all, also when the
// power goes off right after it.
func writeFile(file, content string) error {
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Chmod(0o444), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
