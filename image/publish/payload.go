package main

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge/image/verity"
)

// manifest is what image/slot reads as its Manifest.
type manifest struct {
	Format   int       `json:"format"`
	Version  string    `json:"version"`
	Profile  string    `json:"profile"`
	Arch     string    `json:"arch"`
	Commit   string    `json:"commit"`
	Created  time.Time `json:"created"`
	RootHash string    `json:"roothash"`
	Files    []file    `json:"files"`
}

type file struct {
	Part         string `json:"part"`
	Name         string `json:"name"`
	Size         int64  `json:"size"`
	SHA256       string `json:"sha256"`
	PackedSize   int64  `json:"packed_size"`
	PackedSHA256 string `json:"packed_sha256"`
}

// payload is what a payload is made from.
type payload struct {
	manifest
	uki, root, verity string // files; those of the partitions may be longer than what counts
	key               key
}

func runPayload(args []string, stderr io.Writer) error {
	set, at := flags("payload", stderr)
	p := payload{manifest: manifest{Format: 1, Arch: "x86-64"}}
	set.StringVar(&p.Version, "version", "", "the version")
	set.StringVar(&p.Profile, "profile", "", "cloud or metal")
	set.StringVar(&p.Commit, "commit", "", "the commit it was built from")
	set.StringVar(&p.uki, "uki", "", "the signed UKI")
	set.StringVar(&p.root, "root", "", "the partition of the root")
	set.StringVar(&p.verity, "verity", "", "the partition of its hashes")
	k := set.String("key", "", "the key that signs")
	out := set.String("out", "", "the folder of the payload")
	if err := parse(set, args, "version", "profile", "uki", "root", "verity", "key", "out"); err != nil {
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
	if err := checkUKI(p.uki, p.Version, p.RootHash); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, part := range []struct {
		name, from, ending string
		size               int64 // 0: all of it
	}{
		{"verity", p.verity, "verity", hashes},
		{"root", p.root, "root", area.Bytes()},
		{"uki", p.uki, "efi", 0},
	} {
		f := file{Part: part.name, Name: fmt.Sprintf("edge_%s.%s.zst", p.Version, part.ending), Size: part.size}
		if err := f.pack(part.from, dir); err != nil {
			return fmt.Errorf("pack the %s: %w", part.name, err)
		}
		p.Files = append(p.Files, f)
	}
	text, err := json.MarshalIndent(p.manifest, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	signature, err := p.key.sign(text)
	if err != nil {
		return err
	}
	return writeAll(map[string][]byte{
		filepath.Join(dir, "manifest.json"):     text,
		filepath.Join(dir, "manifest.json.sig"): signature,
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

// checkUKI refuses a UKI whose command line boots another root or calls itself
// another version: the box would write it and never come up.
func checkUKI(name, version, roothash string) error {
	f, err := pe.Open(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".cmdline")
	if section == nil {
		return fmt.Errorf("%s has no command line: it is no UKI", name)
	}
	b, err := section.Data()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b = b[:min(uint32(len(b)), section.VirtualSize)]
	words := strings.Fields(string(bytes.TrimRight(b, "\x00")))
	for _, want := range []string{"roothash=" + roothash, "edge.version=" + version} {
		if !slices.Contains(words, want) {
			return fmt.Errorf("%s: its command line has no %s: %q", name, want, words)
		}
	}
	return nil
}

// pack compresses the first f.Size bytes of a file (all of it, if that is 0) into
// the folder, and fills in f. zstd's output does not depend on how many threads it
// has, only on whether it may have more than one.
func (f *file) pack(from, dir string) error {
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
