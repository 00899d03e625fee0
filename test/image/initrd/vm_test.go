package initrd_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// vm is a machine that boots the initrd once, without firmware: what the
// firmware and systemd-boot do is the business of other tests.
type vm struct {
	disks   []string // files
	sector  int      // bytes, of all disks
	cmdline string
}

// bootDeadline is generous: under emulation, with other tests beside it, a boot
// takes 5 to 30 seconds.
const bootDeadline = 3 * time.Minute

// boot runs the machine until it resets and gives what was on its console. The
// kernel's own word for a panic, and init's for the end, both reset it.
func (m vm) boot(t *testing.T, initrd string) string {
	t.Helper()
	args := []string{
		// The hardware's own virtualisation is broken on some kinds of machine
		// for stock kernels: never rely on it.
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "256",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		// no_timer_check: the kernel gives its clock a moment to tick, which on a busy
		// machine an emulated one does not have.
		"-kernel", kernel(t), "-initrd", initrd, "-append", "console=ttyS0 panic=1 no_timer_check " + m.cmdline,
	}
	for i, disk := range m.disks {
		args = append(args, "-drive", fmt.Sprintf("if=none,id=d%d,format=raw,cache=unsafe,file=%s", i, disk),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=d%d,logical_block_size=%d,physical_block_size=%d", i, m.sector, m.sector))
	}
	ctx, cancel := context.WithTimeout(t.Context(), bootDeadline)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("qemu: %v\n%s", err, out.String())
	}
	t.Logf("booted and reset in %.1f s", time.Since(start).Seconds())
	return strings.ReplaceAll(out.String(), "\r", "")
}

// installed is a folder of a package that test/install.sh has only unpacked.
const installed = "/usr/local/lib/catchment-test/linux-image-cloud-amd64"

func kernel(t *testing.T) string { return only(t, installed+"/boot/vmlinuz-*") }

// only is the one file of a pattern.
func only(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %d files, want one (sh test/install.sh test): %v", pattern, len(files), err)
	}
	return files[0]
}

func run(t *testing.T, in, name string, arg ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, arg...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// want says what is missing of what has to be on a console.
func want(t *testing.T, console string, texts ...string) {
	t.Helper()
	missing := false
	for _, text := range texts {
		if !strings.Contains(console, text) {
			t.Errorf("not on the console: %q", text)
			missing = true
		}
	}
	if missing {
		t.Logf("the console:\n%s", console)
	}
}

// value is what stands on the console behind a word of the init.
func value(t *testing.T, console, key string) string {
	t.Helper()
	_, rest, ok := strings.Cut(console, "init: "+key+" ")
	if !ok {
		t.Fatalf("init did not say %q:\n%s", key, console)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return line
}
