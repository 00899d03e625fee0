package slot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// UKIFolder is where the ESP has its UKIs.
const UKIFolder = "EFI/Linux"

const (
	ukiPrefix = "edge_"
	ukiSuffix = ".efi"
)

// UKI is what the name of one on the ESP says.
type UKI struct {
	Version string
	// Counted says that the name has a boot counter: Left tries are left and Done
	// were made. Without one it is good: it was blessed, or came with the disk.
	Counted    bool
	Left, Done int
}

// ParseUKI reads the name of a file; ok is false for one that is none of ours.
// systemd-boot and Linux see letters of a FAT in either case, so it does too.
func ParseUKI(name string) (u UKI, ok bool) {
	if n := len(name); n < len(ukiPrefix)+len(ukiSuffix) ||
		!strings.EqualFold(name[:len(ukiPrefix)], ukiPrefix) || !strings.EqualFold(name[n-len(ukiSuffix):], ukiSuffix) {
		return UKI{}, false
	}
	u.Version = name[len(ukiPrefix) : len(name)-len(ukiSuffix)]
	if version, counter, counted := strings.Cut(u.Version, "+"); counted {
		left, done, hasDone := strings.Cut(counter, "-")
		u.Version, u.Counted = version, true
		if u.Left, ok = tries(left); !ok {
			return UKI{}, false
		}
		if u.Done, ok = tries(done); hasDone && !ok {
			return UKI{}, false
		}
	}
	return u, CheckVersion(u.Version) == nil
}

func tries(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil && n <= math.MaxInt32 && number(s) == s
}

// Name is the name of the file: edge_V.efi, edge_V+LEFT.efi or edge_V+LEFT-DONE.efi.
func (u UKI) Name() string {
	counter := ""
	if u.Counted {
		counter = fmt.Sprintf("+%d", u.Left)
		if u.Done > 0 {
			counter += fmt.Sprintf("-%d", u.Done)
		}
	}
	return ukiPrefix + u.Version + counter + ukiSuffix
}

// Spent says that systemd-boot takes it only if there is nothing else.
func (u UKI) Spent() bool { return u.Counted && u.Left == 0 }

// SetAside says that it was put behind the others by an order and has not been
// tried since: nobody has seen it fail.
func (u UKI) SetAside() bool { return u.Spent() && u.Done == 0 }

// CompareUKI orders as systemd-boot does, the one that it boots first: those with
// no tries left are last, then the newer version is first.
func CompareUKI(a, b UKI) int {
	if a.Spent() != b.Spent() {
		if a.Spent() {
			return 1
		}
		return -1
	}
	left := 0
	if a.Counted && b.Counted {
		left = cmp.Or(cmp.Compare(b.Left, a.Left), cmp.Compare(a.Done, b.Done))
	}
	return cmp.Or(Compare(b.Version, a.Version), left)
}

// Next is the UKI that the next boot takes; ok is false if there is none.
func Next(all []UKI) (u UKI, ok bool) {
	if len(all) == 0 {
		return UKI{}, false
	}
	return slices.MinFunc(all, CompareUKI), true
}

// Others are those that are not of a version.
func Others(all []UKI, version string) []UKI {
	return slices.DeleteFunc(slices.Clone(all), func(u UKI) bool { return u.Version == version })
}

// Copy says that the name is one that only Writer gives: systemd-boot counts a try
// before it makes it, so its names have one at least that is done.
func (u UKI) Copy() bool { return u.Counted && u.Done == 0 }

// Of returns the UKI of a version. Of two, a copy that Recount had not finished with
// does not count, and of two copies the one with more tries does. Any other two are an error: which of them counts is known to nobody
// (systemd#40192), and after a power cut in a rename they may share their clusters, so
// that removing one destroys the other.
func Of(all []UKI, version string) (u UKI, ok bool, err error) {
	for _, o := range all {
		switch {
		case o.Version != version || ok && o.Copy() && (!u.Copy() || o.Left < u.Left):
		case !ok || u.Copy():
			u, ok = o, true
		default:
			return UKI{}, false, fmt.Errorf("the EFI partition has both %s and %s, which may share their content since the power failed in a rename: "+
				"systemctl restart edge-resume removes one, if edge-esp has checked the partition", u.Name(), o.Name())
		}
	}
	return u, ok, nil
}
