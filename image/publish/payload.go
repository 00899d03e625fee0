package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/catchment-dev/edge/image/slot"
	"github.com/catchment-dev/edge/image/verity"
)

// payload is what a payload is made from.
type payload struct {
	slot.Manifest
	uki, root, verity string // files; those of the partitions may be longer than what counts
	key               key
	certificate       string // PEM; that of the key
	esp               int64  // size of the EFI partition of the disk image, in bytes; 0: there is none
}

func runPayload(args []string, stderr io.Writer) error {
	set, at := flags("payload", stderr)
	p := payload{Manifest: slot.Manifest{Format: slot.ManifestFormat, Arch: "x86-64"}}
	set.StringVar(&p.Version, "version", "", "the version")
	set.StringVar(&p.Profile, "profile", "", "cloud or metal")
	set.StringVar(&p.Commit, "commit", "", "the commit it was built from")
	set.StringVar(&p.uki, "uki", "", "the signed UKI")
	set.StringVar(&p.root, "root", "", "the partition of the root")
	set.StringVar(&p.verity, "verity", "", "the partition of its hashes")
	set.Int64Var(&p.esp, "esp", 0, "the size of the EFI partition of the disk image, in bytes: it must have room for three UKIs")
	k := set.String("key", "", "the key that signs")
	set.StringVar(&p.certificate, "cert", "", "its certificate, PEM")
	out := set.String("out", "", "the folder of the payload")
	if err := parse(set, args, "version", "profile", "uki", "root", "verity", "key", "cert", "out"); err != nil {
		return err
	}
	if err := slot.CheckVersion(p.Version); err != nil {
		return err
	}
	p.key, p.Created = key(*k), stamp(*at)
	if err := p.write(*out); err != nil {
		return fmt.Errorf("write payload of %s: %w", p.Version, err)
	}
	return nil
}

// write fills an empty folder. The manifest and its signature come last, so that a
// folder with them is whole.
func (p *payload) write(dir string) error {
	area, hashes, err := readVerity(p.verity)
	if err != nil {
		return err
	}
	p.RootHash = area.Root.String()
	if err := checkUKI(p.uki, &p.Manifest); err != nil {
		return err
	}
	if err := checkESP(p.uki, p.esp); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, part := range []struct {
		part         slot.Part
		from, ending string
		size         int64 // 0: all of it
	}{
		{slot.Verity, p.verity, "verity", hashes},
		{slot.Root, p.root, "root", area.Bytes()},
		{slot.Kernel, p.uki, "efi", 0},
	} {
		f := slot.File{Part: part.part, Name: fmt.Sprintf("edge_%s.%s.zst", p.Version, part.ending), Size: part.size}
		if err := pack(&f, part.from, dir); err != nil {
			return fmt.Errorf("pack the %s: %w", part.part, err)
		}
		p.Files = append(p.Files, f)
	}
	return p.sign(dir)
}

// sign writes the manifest and its signature, if a box would take them.
func (p *payload) sign(dir string) error {
	text, err := json.MarshalIndent(p.Manifest, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if _, err := slot.ParseManifest(text); err != nil {
		return err
	}
	signature, err := p.key.sign(text)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(p.certificate)
	if err != nil {
		return err
	}
	trusted, err := slot.ParseTrusted(pem)
	if err != nil {
		return fmt.Errorf("%s: %w", p.certificate, err)
	}
	if _, err := trusted.Verify(text, signature); err != nil {
		return fmt.Errorf("the certificate %s is not that of the key: %w", p.certificate, err)
	}
	return writeAll(map[string][]byte{
		filepath.Join(dir, slot.ManifestName):  text,
		filepath.Join(dir, slot.SignatureName): signature,
	})
}

// readVerity looks at a verity partition and says how many of its bytes count: the
// superblock's block and the tree, each level of which has a hash of 32 bytes for
// each block of the level below.
func readVerity(name string) (verity.Area, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return verity.Area{}, 0, err
	}
	defer func() { _ = f.Close() }()
	area, err := verity.Read(f)
	if err != nil {
		return verity.Area{}, 0, fmt.Errorf("%s: %w", name, err)
	}
	const perBlock = verity.BlockSize / sha256.Size
	blocks := int64(1)
	for level := int64(area.Blocks); level > 1; {
		level = (level + perBlock - 1) / perBlock
		blocks += level
	}
	return area, blocks * verity.BlockSize, nil
}

// checkUKI refuses a UKI that boots another root or calls itself another version:
// a box would refuse it too.
func checkUKI(name string, m *slot.Manifest) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := slot.CheckCommandLine(f, m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// checkESP refuses a UKI that the EFI partition of new disks is too small for: their
// boxes could not be upgraded some day.
func checkESP(uki string, esp int64) error {
	info, err := os.Stat(uki)
	if err != nil {
		return err
	}
	if least := slot.LeastESP(info.Size()); esp != 0 && esp < least {
		return fmt.Errorf("%s has %s, and the EFI partition %s: at least %s are needed, three times as much and 64 MiB", uki, slot.Size(info.Size()), slot.Size(esp), slot.Size(least))
	}
	return nil
}

// pack compresses the first f.Size bytes of a file (all of it, if that is 0) into
// the folder, and fills in f. zstd's output does not depend on how many threads it
// has, only on whether it may have more than one.
func pack(f *slot.File, from, dir string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if f.Size == 0 {
		info, err := in.Stat()
		if err != nil {
			return err
		}
		f.Size = info.Size()
	}
	out, err := os.Create(filepath.Join(dir, f.Name))
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()

	plain := &counter{to: sha256.New()}
	packed := &counter{to: sha256.New()}
	var complaint bytes.Buffer
	cmd := exec.Command("zstd", "-q", "-c", "-10", "-T2")
	cmd.Stdin = io.TeeReader(io.LimitReader(in, f.Size), plain)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, packed), &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("zstd: %w: %s", err, complaint.Bytes())
	}
	if plain.n != f.Size {
		return fmt.Errorf("%s has %d bytes, want %d", from, plain.n, f.Size)
	}
	f.SHA256, f.PackedSHA256, f.PackedSize = plain.sum(), packed.sum(), packed.n
	return errors.Join(out.Sync(), out.Close())
}

// counter hashes and counts what is written to it.
type counter struct {
	to interface {
		io.Writer
		Sum([]byte) []byte
	}
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.to.Write(b)
}

func (c *counter) sum() string { return hex.EncodeToString(c.to.Sum(nil)) }
