package xdp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// leastKernel is the oldest kernel that the data plane is made for, 6.1, as
// LINUX_VERSION_CODE.
const leastKernel = 6<<16 | 1<<8

// need is something that the kernel must know for the data plane to be loaded.
type need struct {
	what  string
	probe func() error
}

// needsOf reads in the object file what it needs. Attaching by bpf_link (5.9)
// cannot be tried without an interface, but is older than some of the helpers.
func needsOf(spec *ebpf.CollectionSpec) []need {
	types, flags := make(map[ebpf.MapType]bool), make(map[features.MapFlags]bool)
	for _, m := range spec.Maps {
		for ; m != nil; m = m.InnerMap {
			types[m.Type] = true
			for _, f := range []features.MapFlags{features.BPF_F_MMAPABLE, features.BPF_F_NO_PREALLOC, features.BPF_F_RDONLY_PROG} {
				flags[f] = flags[f] || m.Flags&uint32(f) != 0
			}
		}
	}
	helpers := make(map[asm.BuiltinFunc]bool)
	for _, p := range spec.Programs {
		for _, ins := range p.Instructions {
			if ins.IsBuiltinCall() {
				helpers[asm.BuiltinFunc(ins.Constant)] = true
			}
		}
	}
	needs := []need{{"instructions of version 3", features.HaveV3ISA}}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		needs = append(needs, need{"maps of type " + t.String(), func() error { return features.HaveMapType(t) }})
	}
	for _, f := range slices.Sorted(maps.Keys(flags)) {
		if flags[f] {
			needs = append(needs, need{fmt.Sprintf("map flag %#x", uint32(f)), func() error { return features.HaveMapFlag(f) }})
		}
	}
	for _, h := range slices.Sorted(maps.Keys(helpers)) {
		name := fmt.Sprintf("helper %s (%d)", h, uint32(h))
		needs = append(needs, need{name, func() error { return features.HaveProgramHelper(ebpf.XDP, h) }})
	}
	return needs
}

// checkKernel refuses a kernel that cannot run the data plane, with one message
// instead of what a verifier says.
func (l *loader) checkKernel() error {
	version, err := features.LinuxVersionCode()
	if err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	if version < leastKernel {
		l.o.Log.Warn("this kernel is older than what the data plane is made for", "kernel", versionText(version), "needed", versionText(leastKernel))
	}
	return judgeKernel(version, needsOf(l.spec))
}

// judgeKernel tries all needs. One that could not be tried is left to the load.
func judgeKernel(version uint32, needs []need) error {
	var lacks []string
	for _, n := range needs {
		if err := n.probe(); errors.Is(err, ebpf.ErrNotSupported) {
			lacks = append(lacks, n.what)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("this kernel, %s, cannot run the data plane: it lacks %s; install Linux %s or later",
		versionText(version), strings.Join(lacks, ", "), versionText(leastKernel))
}

// explainLoad says what a kernel that is too old may have to do with a refusal.
func explainLoad(err error) error {
	version, errVersion := features.LinuxVersionCode()
	if errVersion != nil || version >= leastKernel {
		return err
	}
	return fmt.Errorf("%w (this kernel is %s: install Linux %s or later)", err, versionText(version), versionText(leastKernel))
}

func versionText(code uint32) string {
	return fmt.Sprintf("%d.%d.%d", code>>16, code>>8&0xff, code&0xff)
}
