package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf16"

	"github.com/catchment-dev/edge/image/slot"
)

// EFIVars is where Linux shows the variables of the firmware.
const EFIVars = "/sys/firmware/efi/efivars"

// loaderGUID is the vendor of the variables of the Boot Loader Interface.
const loaderGUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// The variables that systemd-boot sets (systemd.io/BOOT_LOADER_INTERFACE).
const (
	bootCountPath = "LoaderBootCountPath"
	entrySelected = "LoaderEntrySelected"
)

// ParseEFIString reads a file of efivarfs that holds a text: 4 bytes of attributes,
// then UTF-16LE that ends with a 0, or with the file.
func ParseEFIString(b []byte) (string, error) {
	if len(b) < 4 {
		return "", fmt.Errorf("%d bytes, at least the 4 of the attributes are needed", len(b))
	}
	if b = b[4:]; len(b)%2 != 0 {
		return "", errors.New("an odd number of bytes is no UTF-16")
	}
	units := make([]uint16, 0, len(b)/2)
	for ; len(b) > 0; b = b[2:] {
		u := binary.LittleEndian.Uint16(b)
		if u == 0 {
			if len(bytes.Trim(b, "\x00")) > 0 {
				return "", errors.New("something follows the end of the text")
			}
			break
		}
		units = append(units, u)
	}
	return string(utf16.Decode(units)), nil
}

// readLoader reads a variable; "" if it is not set, or there are none.
func readLoader(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name+"-"+loaderGUID))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	s, err := ParseEFIString(b)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return s, nil
}

// Booted is what the boot loader says of this boot.
type Booted struct {
	// Counter is the UKI that was booted under a boot counter; nil: it had none.
	Counter *slot.UKI
	// Entry is the name that the loader selected it by; "" if it does not say.
	Entry string
}

// ReadBooted asks the variables in dir.
func ReadBooted(dir string) (Booted, error) {
	var b Booted
	path, err := readLoader(dir, bootCountPath)
	if err != nil {
		return b, err
	}
	if b.Entry, err = readLoader(dir, entrySelected); err != nil {
		return b, err
	}
	if path == "" {
		return b, nil
	}
	// \EFI\Linux\edge_1.2.0+2-1.efi
	name := path[strings.LastIndexAny(path, `\/`)+1:]
	u, ok := slot.ParseUKI(name)
	if !ok {
		return b, fmt.Errorf("read %s: %.100q is no UKI of ours", bootCountPath, path)
	}
	if u.Counted {
		b.Counter = &u
	}
	return b, nil
}
