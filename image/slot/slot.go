// Package slot keeps the two copies of the system that an appliance has: it
// names, fetches, checks and writes them. It owns the manifest of a payload and
// its signature, the names of the UKIs on the ESP with their boot counters, the
// versions that are refused, and the writer of the slot that does not run. It
// never touches the slot that runs nor its UKI while it writes, never writes a
// partition table, and starts nothing: when to drain and to reboot is up to its
// caller. edgectl runs it, as root, and the builder's publisher its manifest.
package slot

import "fmt"

// Slot is one of the two places for a system on the disk.
type Slot string

// The slots. The zero Slot is none.
const (
	A Slot = "a"
	B Slot = "b"
)

// ParseSlot takes "a" or "b".
func ParseSlot(s string) (Slot, error) {
	if s := Slot(s); s == A || s == B {
		return s, nil
	}
	return "", fmt.Errorf("%q is no slot: a or b", s)
}

// Other is the slot that is written while s runs.
func (s Slot) Other() Slot {
	if s == A {
		return B
	}
	return A
}

// VerityName and RootName are the GPT names of the partitions of s.
func (s Slot) VerityName() string { return "edge-verity-" + string(s) }

// RootName is the name of the partition with the file system.
func (s Slot) RootName() string { return "edge-root-" + string(s) }

// ESPName is the GPT name of the EFI partition.
const ESPName = "edge-esp"

// Where things are on an appliance.
const (
	StateDir = "/var/lib/edge-image"       // what outlives a reboot
	RunDir   = "/run/edge-image"           // what does not
	KeyDir   = "/usr/lib/edge/update-keys" // certificates that payloads are signed for
	BootedAs = "/run/edge-initrd"          // what the initrd says of this boot
)
