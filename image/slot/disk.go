package slot

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is that from which the system runs, as sysfs shows it. It is found by the
// root's device and not by names: another disk may have partitions of the same names.
type Disk struct {
	Running Slot
	devices map[string]string // paths of partitions by their GPT names
}

// FindDisk looks in sysfs (at /sys) and in /dev. device is the number, "MAJOR:MINOR",
// of what is mounted on /.
func FindDisk(sys, dev, device string) (*Disk, error) {
	if device == "" {
		return nil, errors.New("find disk: nothing is mounted on /")
	}
	lower, err := filepath.Glob(filepath.Join(sys, "dev/block", device, "slaves/*"))
	if err != nil {
		return nil, fmt.Errorf("find disk: %w", err)
	}
	d := &Disk{devices: map[string]string{}}
	for _, l := range lower {
		name := partitionLabel(l)
		if s, err := ParseSlot(strings.TrimPrefix(name, "edge-root-")); err != nil || name != s.RootName() {
			continue
		}
		d.Running, _ = ParseSlot(strings.TrimPrefix(name, "edge-root-"))
		real, err := filepath.EvalSymlinks(l)
		if err != nil {
			return nil, fmt.Errorf("find disk: %w", err)
		}
		siblings, err := filepath.Glob(filepath.Join(filepath.Dir(real), "*/partition"))
		if err != nil {
			return nil, fmt.Errorf("find disk: %w", err)
		}
		for _, s := range siblings {
			part := filepath.Dir(s)
			name := partitionLabel(part)
			if other := d.devices[name]; other != "" && name != "" {
				return nil, fmt.Errorf("find disk: %s and %s are both named %s", other, filepath.Base(part), name)
			}
			d.devices[name] = filepath.Join(dev, filepath.Base(part))
		}
	}
	if d.Running == "" {
		return nil, errors.New("the root of this system is not one of the slots of an appliance: edgectl upgrade and rollback are for the image")
	}
	return d, nil
}

// partitionLabel is the GPT name of a partition in sysfs, "" if it has none.
func partitionLabel(dir string) string {
	f, err := os.Open(filepath.Join(dir, "uevent"))
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "PARTNAME="); ok {
			return name
		}
	}
	return ""
}

// Device is the path of a partition of this disk.
func (d *Disk) Device(name string) (string, error) {
	path := d.devices[name]
	if path == "" {
		return "", fmt.Errorf("the disk has no partition %s", name)
	}
	return path, nil
}

// Partition opens one to be written. It refuses those of the slot that runs.
func (d *Disk) Partition(name string) (Volume, error) {
	if name == d.Running.RootName() || name == d.Running.VerityName() {
		return nil, fmt.Errorf("open %s: the system runs from it", name)
	}
	path, err := d.Device(name)
	if err != nil {
		return nil, err
	}
	// O_EXCL on a block device: not while anything has it mounted or mapped.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return &durable{f}, nil
}

// PartitionSize is in bytes.
func (d *Disk) PartitionSize(name string) (int64, error) {
	path, err := d.Device(name)
	if err != nil {
		return 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	n, err := f.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", name, err)
	}
	return n, nil
}

// durable is a file whose Close returns when all is on the disk.
type durable struct{ *os.File }

func (d *durable) Close() error {
	err := d.File.Sync()
	// What is read after this is to come from the disk and not from memory.
	unix.Fadvise(int(d.Fd()), 0, 0, unix.FADV_DONTNEED)
	return errors.Join(err, d.File.Close())
}

// Folder is UKIFolder on a mounted ESP. It implements ESP.
type Folder string

// List implements ESP.
func (f Folder) List() ([]ESPFile, error) {
	entries, err := os.ReadDir(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []ESPFile
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		begins, err := beginsAsProgram(filepath.Join(string(f), e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, ESPFile{e.Name(), info.Size(), begins && info.Size() >= leastUKI})
	}
	return out, nil
}

// leastUKI is less than any UKI has, in bytes, and more than Writer writes of one
// before it is none.
const leastUKI = 4096

// beginsAsProgram says whether a file begins as a program of EFI does: "MZ".
func beginsAsProgram(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var mz [2]byte
	n, _ := f.Read(mz[:]) // an empty one is none
	return n == 2 && string(mz[:]) == "MZ", nil
}

// Open implements ESP.
func (f Folder) Open(name string) (Volume, error) {
	if err := os.MkdirAll(string(f), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(string(f), name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return &synced{durable{file}, string(f)}, nil
}

// synced also waits for the folder, and for the whole FAT: fsync of a file on vfat
// does not write the entry that names it.
type synced struct {
	durable
	dir string
}

func (s *synced) Close() error { return errors.Join(s.durable.Close(), syncAll(s.dir)) }

// Remove implements ESP.
func (f Folder) Remove(name string) error {
	return errors.Join(os.Remove(filepath.Join(string(f), name)), syncAll(string(f)))
}

func syncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), unix.Syncfs(int(d.Fd())), d.Close())
}

// FreeSpace is what the file system at path has for root, in bytes.
func FreeSpace(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("ask for free space of %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}
