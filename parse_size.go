package edge

import (
	"fmt"
	"strconv"
	"strings"
)

// size is a number of bytes from lo to hi, whole in one of the units.
func size(lo, hi int64) rule[int64] {
	takes := fmt.Sprintf("size %s to %s", bytesText(lo), bytesText(hi))
	return rule[int64]{takes: takes, parse: func(s string) (int64, error) {
		for i, unit := range sizeUnits() {
			digits, ok := strings.CutSuffix(s, unit)
			n, err := strconv.ParseUint(digits, 10, 63)
			if !ok || err != nil || len(digits) > 1 && digits[0] == '0' {
				continue
			}
			shift := 10 * (i + 1)
			// In this unit, since what is too large may not fit in bytes.
			if n > uint64(hi)>>shift || int64(n)<<shift < lo {
				return 0, fmt.Errorf("%s is not a %s", asWritten(s), takes)
			}
			return int64(n) << shift, nil
		}
		return 0, fmt.Errorf("%s is not a size, a whole number with a unit (KiB, MiB, GiB or TiB) like 512MiB or 1GiB", quote(s))
	}}
}

// sizeUnits are the units of a size, each 1024 of the one before.
func sizeUnits() []string { return []string{"KiB", "MiB", "GiB", "TiB"} }

// bytesText is a size as a person writes it: in the largest unit that is whole.
func bytesText(n int64) string {
	unit := ""
	for _, next := range sizeUnits() {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatInt(n, 10) + unit
}
