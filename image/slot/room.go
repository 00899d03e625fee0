package slot

import (
	"fmt"
	"math"
)

// Room is what the disk has, in bytes.
type Room struct {
	ESP          int64 // size of the EFI partition; 0: not known
	ESPFree      int64
	Verity, Root int64 // sizes of the partitions of the slot that is to be written
}

// LeastESP is how large the EFI partition of a disk has to be for UKIs of that size,
// in bytes: for three of them, since the next versions will be larger, and the rest.
func LeastESP(uki int64) int64 { return 3*uki + 64<<20 }

// espSpare is what is left free of the ESP.
const espSpare = 1 << 20

// Fits says why a payload does not fit; nil: it does. It is asked before anything
// is changed. That the other UKI is removed first is not counted on: the room has
// to be there for three, so that it does not run out unseen (talos#12551).
func (r Room) Fits(m *Manifest) error {
	esp := r.ESP
	if esp == 0 {
		esp = math.MaxInt64
	}
	for _, c := range []struct {
		what       string
		have, need int64
		remedy     string
	}{
		{"the EFI partition has", esp, LeastESP(m.File(Kernel).Size), "this disk was made for smaller systems: install anew"},
		{"the EFI partition has free", r.ESPFree, m.File(Kernel).Size + espSpare, "remove files that are not the system's from it (mounted at /efi)"},
		{"the verity partition has", r.Verity, m.File(Verity).Size, "this disk was made for smaller systems: install anew"},
		{"the root partition has", r.Root, m.File(Root).Size, "this disk was made for smaller systems: install anew"},
	} {
		if c.have < c.need {
			return fmt.Errorf("%s %s, and version %s needs %s: %s", c.what, Size(c.have), m.Version, Size(c.need), c.remedy)
		}
	}
	return nil
}
