// Command pack writes the initrd of the image: process 1, the modules of one
// kernel that it may need, and the index of them, as one cpio archive.
//
// It owns the list of modules (modules.txt). The same program, modules and list
// give the same bytes. It never compiles anything and reads nothing of the
// machine that it runs on; xz and zstd have to be there if the modules, or the
// archive, are to be of these.
//
// Process: the build of the image.
//
//	pack -init out/initrd -modules ROOT/usr/lib/modules/VERSION -out out/initrd.cpio.zst
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/catchment-dev/edge/image/cpio"
	"github.com/catchment-dev/edge/image/kmod"
)

//go:embed modules.txt
var list string

func main() {
	var (
		init    = flag.String("init", "", "the initrd's program, static")
		modules = flag.String("modules", "", "the folder of one kernel's modules")
		out     = flag.String("out", "", "the archive; compressed by zstd if it ends in .zst")
	)
	flag.Parse()
	if *init == "" || *modules == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := pack(os.Stderr, *init, *modules, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// pack writes the archive to a name beside out and renames it: what is there is
// whole.
func pack(log io.Writer, init, modules, out string) error {
	archive, err := build(log, init, modules)
	if err != nil {
		return err
	}
	if strings.HasSuffix(out, ".zst") {
		if archive, err = compress(archive); err != nil {
			return err
		}
	}
	tmp := out + ".tmp"
	if err := os.WriteFile(tmp, archive, 0o644); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := os.Rename(tmp, out); err != nil {
		return errors.Join(fmt.Errorf("write archive: %w", err), os.Remove(tmp))
	}
	fmt.Fprintf(log, "%s: %d bytes\n", out, len(archive))
	return nil
}

func build(log io.Writer, init, modules string) ([]byte, error) {
	program, err := os.ReadFile(init)
	if err != nil {
		return nil, fmt.Errorf("read program: %w", err)
	}
	wanted, err := kmod.ParseList(list)
	if err != nil {
		return nil, fmt.Errorf("read modules.txt: %w", err)
	}
	tree, err := kmod.OpenTree(modules)
	if err != nil {
		return nil, err
	}
	index, lacking, err := tree.Collect(wanted)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "%s: %d modules; this kernel lacks: %s\n", filepath.Base(modules), len(index), strings.Join(lacking, " "))

	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	// Where process 1 mounts things: it makes no folder but those of the root.
	for _, dir := range []string{"dev", "proc", "sys", "sysroot"} {
		w.Dir(dir, 0o755)
	}
	w.File("init", 0o755, program)
	w.File("modules/index", 0o644, index.Encode())
	for _, m := range index {
		info, err := tree.Info(m.Name)
		if err != nil {
			return nil, err
		}
		w.File("modules/"+m.Name+".ko", 0o644, info.Binary)
	}
	if err := w.Close(); err != nil { // the writer keeps its first error
		return nil, err
	}
	return archive.Bytes(), nil
}

// compress is zstd with one thread: with more the bytes depend on their number.
func compress(b []byte) ([]byte, error) {
	cmd := exec.Command("zstd", "-q", "-c", "-19", "--single-thread")
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(b), &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("compress archive: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out, nil
}
