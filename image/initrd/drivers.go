package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge/image/kmod"
)

// drivers are the modules of the initrd and which of them are loaded.
type drivers struct {
	c      *console
	index  kmod.Index
	loaded map[string]bool // or not to be loaded
}

func openDrivers(c *console) (*drivers, error) {
	b, err := os.ReadFile("/modules/index")
	if err != nil {
		return nil, fmt.Errorf("read module index: %w", err)
	}
	index, err := kmod.Decode(b)
	if err != nil {
		return nil, err
	}
	return &drivers{c: c, index: index, loaded: map[string]bool{}}, nil
}

// load loads the modules that are wanted and what they need, each once. One
// that does not load is said and left: what it was for says later that it is
// missing, and most refuse because the machine has not what they drive.
func (d *drivers) load(wanted func(kmod.Module) bool) {
	for _, name := range d.index.Select(wanted) {
		if d.loaded[name] {
			continue
		}
		d.loaded[name] = true
		err := loadModule("/modules/" + name + ".ko")
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			d.c.say(warn, "load module %s: %v", name, err)
		}
	}
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// asked says which modules the devices of the machine ask for. A driver that is
// loaded makes devices of its own (a bus, disks on it): so it is asked again.
func (d *drivers) asked() func(kmod.Module) bool {
	ids := map[string]bool{}
	// The devices of all busses, and the CPU's own features.
	for _, pattern := range []string{"/sys/bus/*/devices/*/modalias", "/sys/devices/system/cpu/modalias"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, file := range files {
			if b, err := os.ReadFile(file); err == nil {
				ids[strings.TrimSpace(string(b))] = true
			}
		}
	}
	return func(m kmod.Module) bool {
		if d.loaded[m.Name] {
			return false
		}
		for id := range ids {
			if m.Drives(id) {
				return true
			}
		}
		return false
	}
}
