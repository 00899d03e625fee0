package verity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a device that the kernel checks.
type Device struct {
	Name   string // in /dev/mapper; up to 127 bytes
	Data   string // MAJOR:MINOR of the data
	Hashes string // MAJOR:MINOR of the hash area
	Super  Superblock
	Root   Hash // the trusted one
}

// sectors of the device mapper are of 512 bytes, whatever the disk's are.
const mapperSector = 512

// Activate makes the device, read-only, and gives its number N: it is
// /dev/dm-N. control is /dev/mapper/control, opened for reading and writing. On
// an error there is no device.
func (d Device) Activate(control *os.File) (number uint32, err error) {
	if len(d.Name) == 0 || len(d.Name) >= len(unix.DmIoctl{}.Name) {
		return 0, fmt.Errorf("make verity device: the name %q is of no use", d.Name)
	}
	head := d.header()
	if err := mapper(control, unix.DM_DEV_CREATE, &head, nil); err != nil {
		return 0, fmt.Errorf("make verity device %s: %w", d.Name, err)
	}
	number = unix.Minor(head.Dev)
	defer func() {
		if err != nil {
			remove := d.header()
			err = errors.Join(err, mapper(control, unix.DM_DEV_REMOVE, &remove, nil))
		}
	}()
	load := d.header()
	load.Flags, load.Target_count = unix.DM_READONLY_FLAG, 1
	if err := mapper(control, unix.DM_TABLE_LOAD, &load, d.target()); err != nil {
		return 0, fmt.Errorf("load verity table of %s: %w", d.Name, err)
	}
	// To suspend without the flag of it is to resume: the table is live.
	live := d.header()
	if err := mapper(control, unix.DM_DEV_SUSPEND, &live, nil); err != nil {
		return 0, fmt.Errorf("start verity device %s: %w", d.Name, err)
	}
	return number, nil
}

// header is the struct dm_ioctl of a call about this device. The UUID is in the
// form of cryptsetup, so that its tools and systemd know what it is.
func (d Device) header() unix.DmIoctl {
	h := unix.DmIoctl{Version: [3]uint32{4, 0, 0}, Data_start: uint32(unsafe.Sizeof(unix.DmIoctl{}))}
	copy(h.Name[:], d.Name)
	copy(h.Uuid[:len(h.Uuid)-1], fmt.Sprintf("CRYPT-VERITY-%x-%s", d.Super.UUID, d.Name))
	return h
}

// target is the struct dm_target_spec with its parameters behind it, padded to
// eight bytes.
func (d Device) target() []byte {
	spec := unix.DmTargetSpec{Length: d.Super.Blocks * (BlockSize / mapperSector)}
	copy(spec.Target_type[:], "verity")
	params := append([]byte(d.Super.table(d.Root, d.Data, d.Hashes)), 0)
	params = append(params, make([]byte, -len(params)&7)...)
	spec.Next = uint32(unsafe.Sizeof(spec)) + uint32(len(params))
	return append(asBytes(&spec), params...)
}

// mapper does one call; what the kernel answers is in head.
func mapper(control *os.File, request uint, head *unix.DmIoctl, payload []byte) error {
	if request != unix.DM_DEV_CREATE {
		clear(head.Uuid[:]) // a device is named by one of the two, not by both
	}
	head.Data_size = head.Data_start + uint32(len(payload))
	buf := append(asBytes(head), payload...)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), uintptr(request), uintptr(unsafe.Pointer(&buf[0])))
	if errno != 0 {
		return errno
	}
	return binary.Read(bytes.NewReader(buf), binary.NativeEndian, head)
}

// asBytes is a copy of a struct as the kernel sees it: these have no padding
// but the one that they name.
func asBytes[T unix.DmIoctl | unix.DmTargetSpec](v *T) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))...)
}
