package slot

import "fmt"

// Room is what the disk has, in bytes.
type Room struct {
	ESPFree      int64
	Verity, Root int64 // sizes of the partitions of the slot that is to be written
}

// espSpare is what is left free of the ESP.
const espSpare = 1 << 20

// Fits says why a payload does not fit; nil: it does. It is asked before anything
// is changed. That the other UKI is removed first is not counted on: the room has
// to be there for three, so that it does not run out unseen (talos#12551).
func (r Room) Fits(m *Manifest) error {
	for _, c := range []struct {
		what       string
		have, need int64
		remedy     string
	}{
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
