package vm

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The firmware of Debian's package ovmf. The secure one needs SMM, so that the
// system cannot write its variables behind its back.
const (
	firmwareCode       = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	firmwareSecureCode = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	// FirmwareVars are variables as they leave the factory: no key is enrolled, the
	// firmware is in setup mode.
	FirmwareVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// DefaultCPU is all that qemu can do, but for what costs an emulated system time and a
// real one none. A fifth level of page tables is walked in software. Where a processor
// says that strings of bytes are copied fast (ERMS, FSRM), the kernel and the C library
// copy each page byte by byte: a third of the work of a boot. With SVM the modules of KVM
// are loaded.
const DefaultCPU = "max,la57=off,erms=off,fsrm=off,svm=off"

// Spec says what a machine is made of.
type Spec struct {
	// Dir has the machine's sockets and its log. It exists, and its path is short.
	Dir string
	// Disk is a raw image, which the machine writes.
	Disk string
	// SectorSize is that of the disk as the machine sees it: 512 or 4096; 0 is 512.
	SectorSize int
	// Vars are the firmware's variables, a copy of FirmwareVars, which the machine writes.
	Vars string
	// SecureBoot takes the firmware that checks signatures once it has keys.
	SecureBoot bool
	// Program is qemu; empty: qemu-system-x86_64 of the path.
	Program string
	// CPU is the model and its features as qemu's -cpu takes them; empty: DefaultCPU.
	CPU string
	// CPUs, 1 to 8; 0 is 2.
	CPUs int
	// MemoryMiB; 0 is 1536.
	MemoryMiB int
	// TAP is the far end of the network card; nil: it has none. See NewTAP.
	TAP *os.File
	// MAC is the card's address.
	MAC string
	// MTU is what the card says that its network takes; 0 is 1500.
	MTU int
	// Volumes are further disks, raw images that the machine may only read.
	Volumes []string
	// Credentials are systemd's, handed over as SMBIOS strings (type 11).
	Credentials map[string]string
	// FirmwareCredentials are the same by fw_cfg: values are files.
	FirmwareCredentials map[string]string
	// Clock is what the real-time clock shows at the start; the zero time is now.
	Clock time.Time
	// Incoming has the machine wait for a saved state: see Restore.
	Incoming bool
}

// args is the command line of qemu, without its name. The TAP is descriptor 3.
func (s Spec) args() []string {
	code, machine := firmwareCode, "q35"
	if s.SecureBoot {
		code, machine = firmwareSecureCode, "q35,smm=on"
	}
	a := []string{
		"-nodefaults", "-no-user-config",
		"-accel", "tcg,thread=multi", "-machine", machine,
		"-cpu", cmp.Or(s.CPU, DefaultCPU),
		"-smp", strconv.Itoa(cmp.Or(s.CPUs, 2)), "-m", strconv.Itoa(cmp.Or(s.MemoryMiB, 1536)),
		"-global", "driver=cfi.pflash01,property=secure,value=" + onOff(s.SecureBoot),
		"-drive", "if=pflash,unit=0,format=raw,readonly=on,file=" + escape(code),
		"-drive", "if=pflash,unit=1,format=raw,file=" + escape(s.Vars),
		"-display", "none", "-monitor", "none",
		"-chardev", "stdio,id=serial,signal=off", "-serial", "chardev:serial",
		"-qmp", "unix:" + escape(s.controlSocket()) + ",server=on,wait=off",
		"-device", "virtio-rng-pci,addr=0x3",
	}
	a = append(a, s.disks()...)
	if s.TAP != nil {
		// No ROM: the firmware would ask the network for a system, for minutes.
		a = append(a, "-netdev", "tap,id=uplink,fd=3", "-device",
			fmt.Sprintf("virtio-net-pci,netdev=uplink,addr=0x5,romfile=,mac=%s,host_mtu=%d", s.MAC, cmp.Or(s.MTU, 1500)))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Credentials)) {
		value := base64.StdEncoding.EncodeToString([]byte(s.Credentials[name]))
		a = append(a, "-smbios", "type=11,value="+escape("io.systemd.credential.binary:"+name+"="+value))
	}
	for _, name := range slices.Sorted(maps.Keys(s.FirmwareCredentials)) {
		a = append(a, "-fw_cfg", "name=opt/io.systemd.credentials/"+name+",file="+escape(s.FirmwareCredentials[name]))
	}
	if !s.Clock.IsZero() {
		a = append(a, "-rtc", "base="+s.Clock.UTC().Format("2006-01-02T15:04:05"))
	}
	if s.Incoming {
		a = append(a, "-incoming", "defer")
	}
	return a
}

// disks are the machine's own and its volumes. What the machine has flushed need not be
// on the host's disk: the host does not crash, and qemu that is killed loses nothing.
func (s Spec) disks() []string {
	size := strconv.Itoa(cmp.Or(s.SectorSize, 512))
	a := []string{
		"-drive", "if=none,id=disk,format=raw,cache=unsafe,discard=unmap,file=" + escape(s.Disk),
		"-device", "virtio-blk-pci,drive=disk,addr=0x4,bootindex=0,logical_block_size=" + size + ",physical_block_size=" + size,
	}
	for i, v := range s.Volumes {
		id := fmt.Sprintf("volume%d", i)
		a = append(a, "-drive", "if=none,id="+id+",format=raw,readonly=on,file="+escape(v), "-device", "virtio-blk-pci,drive="+id)
	}
	return a
}

func (s Spec) controlSocket() string { return s.Dir + "/qmp" }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// escape doubles the commas, which else end a value of qemu.
func escape(v string) string { return strings.ReplaceAll(v, ",", ",,") }
