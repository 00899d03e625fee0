package setup

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The bounds of a configuration, in files and bytes: a blocklist of some hundred
// thousand prefixes fits, a disk image that was copied by mistake does not.
const (
	maxFiles = 512
	maxFile  = 8 << 20
	maxTree  = 32 << 20
	maxDepth = 4
	// maxLooked bounds what is looked at, also of what is not taken.
	maxLooked = 4 * maxFiles
)

// Root is where the daemons find the configuration: edge.yaml names its files
// below it.
const Root = "/etc/edge"

// Tree is a configuration as files: the path of each below its root, and its
// bytes. Only what partOf takes is in it. Nobody changes the bytes.
type Tree map[string][]byte

// Problem is one thing that is wrong with a configuration, for the operator.
// It never holds the content of a secret.
type Problem struct {
	// File is a path of the tree or the name of a source. Line and Column count
	// from 1; 0: they are not known.
	File         string
	Line, Column int
	// Message says what is wrong, Remedy what to do about it (empty: the message
	// says it).
	Message, Remedy string
}

// Error returns "FILE:LINE:COLUMN: MESSAGE; REMEDY" in one line.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return strings.ReplaceAll(b.String(), "\n", " ")
}

// Problems are everything that is wrong with a configuration.
type Problems []Problem

// Error returns one line for each problem.
func (ps Problems) Error() string { return strings.Join(ps.Lines(), "\n") }

// Lines are the problems, one a line. Of a file of garbage the first are enough.
func (ps Problems) Lines() []string {
	const most = 100
	var out []string
	for i, p := range ps {
		if i == most {
			return append(out, fmt.Sprintf("and %d more problems", len(ps)-most))
		}
		out = append(out, p.Error())
	}
	return out
}

// at adds a problem with a file as a whole.
func (ps *Problems) at(file, remedy, format string, args ...any) {
	*ps = append(*ps, Problem{File: file, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

// goodName is what a file may be called. Its length is looked at apart, as with the
// other patterns of this package: one that counts is as long as its count, and each
// start of a process compiles it.
var goodName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._@+-]*$`)

// longestName is in bytes.
const longestName = 128

// parts is the remedy for a file that has no place in a configuration.
const parts = "expected edge.yaml, network/*.network|netdev|link, authorized_keys, hostname, password, secrets/*, health.d/* and units/*.d/*.conf"

// ignored says that a name is what an operating system or a person leaves on a
// volume without meaning anything by it.
func ignored(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	switch base := path.Base(name); {
	case strings.HasPrefix(base, "."), strings.HasPrefix(top, "."):
		return true
	case strings.EqualFold(top, "System Volume Information"), strings.EqualFold(top, "$RECYCLE.BIN"), top == "lost+found":
		return true
	case strings.HasPrefix(strings.ToUpper(name), "README"), name == generationFile:
		return true
	}
	return false
}

// partOf says what is wrong with name as the path of a file in a tree; empty if
// nothing is.
func partOf(name string) string {
	dir, base := path.Split(name)
	for _, one := range strings.Split(name, "/") {
		if len(one) > longestName || !goodName.MatchString(one) {
			return "its name has characters other than a-z, A-Z, 0-9 and ._@+-, or begins with one of those"
		}
	}
	switch {
	case dir == "" && slices.Contains([]string{configFile, keysFile, hostnameFile, passwordFile}, base):
	case dir == "network/" && slices.Contains([]string{".network", ".netdev", ".link"}, path.Ext(base)):
	case dir == "health.d/":
	case strings.HasPrefix(dir, unitsDir+"/") && strings.Count(name, "/") == 2 && path.Ext(base) == ".conf":
	case strings.HasPrefix(dir, "secrets/") && strings.Count(name, "/") < maxDepth:
	default:
		return "it is not a part of a configuration"
	}
	return ""
}

// The files of a tree that have a fixed name.
const (
	configFile   = "edge.yaml"
	keysFile     = "authorized_keys"
	hostnameFile = "hostname"
	passwordFile = "password"
)

// names are the paths of t in order.
func (t Tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// under are the paths of t in a folder, in order.
func (t Tree) under(dir string) []string {
	return slices.DeleteFunc(t.names(), func(n string) bool { return !strings.HasPrefix(n, dir+"/") })
}

// Digest identifies the bytes of t (hex SHA-256). Keep it where secrets may be
// kept: a weak password could be guessed from it.
func (t Tree) Digest() string {
	h := sha256.New()
	for _, name := range t.names() {
		for _, part := range [][]byte{[]byte(name), t[name]} {
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
			h.Write(part)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// builder takes files into a tree, and notes what it does not take.
type builder struct {
	tree     Tree
	problems Problems
	size     int64
	looked   int // entries of folders
	full     bool
}

func newBuilder() *builder { return &builder{tree: Tree{}} }

// room says whether a file of this name and size is taken; if not, why is noted.
func (b *builder) room(name string, size int64) bool {
	if why := partOf(name); why != "" {
		b.problems.at(clip(name), parts, "%s", why)
		return false
	}
	_, twice := b.tree[name]
	switch {
	case b.full:
		return false
	case twice:
		b.problems.at(name, "", "it is given twice")
	case size > maxFile:
		b.problems.at(name, "", "it has more than %d MiB", maxFile>>20)
	case len(b.tree) == maxFiles || b.size+size > maxTree:
		b.full = true
		b.problems.at(name, "remove what is not needed", "the configuration has more than %d files or %d MiB", maxFiles, maxTree>>20)
	default:
		return true
	}
	return false
}

// put takes a file.
func (b *builder) put(name string, content []byte) {
	if b.room(name, int64(len(content))) {
		b.tree[name] = content
		b.size += int64(len(content))
	}
}

// clip bounds a name that comes from outside, for a message.
func clip(name string) string {
	if len(name) > 200 {
		name = name[:200] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, name)
}

// ReadTree reads the configuration in the folder dir: of a volume, of a
// generation, or one that an operator has made. Links are refused, and so is
// everything that is neither a file nor a folder. The error says that the folder
// could not be read; what is wrong with its content are the problems.
func ReadTree(dir string) (Tree, Problems, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open configuration: %w", err)
	}
	defer root.Close()
	b := newBuilder()
	if err := b.walk(root, "", 0); err != nil {
		return nil, nil, err
	}
	return b.tree, b.problems, nil
}

func (b *builder) walk(root *os.Root, dir string, depth int) error {
	d, err := root.Open(cmp.Or(dir, "."))
	if err != nil {
		return fmt.Errorf("read folder: %w", err)
	}
	defer d.Close()
	// One over the limit shows that there are too many.
	entries, err := d.ReadDir(2*maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read folder: %w", err)
	}
	if len(entries) > 2*maxFiles {
		b.problems.at(cmp.Or(dir, "."), "", "the folder has more than %d entries", 2*maxFiles)
		return nil
	}
	slices.SortFunc(entries, func(x, y fs.DirEntry) int { return cmp.Compare(x.Name(), y.Name()) })
	for _, e := range entries {
		if err := b.entry(root, path.Join(dir, e.Name()), depth); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) entry(root *os.Root, name string, depth int) error {
	if ignored(name) || b.full {
		return nil
	}
	if b.looked++; b.looked > maxLooked {
		b.full = true // a disk of something else, under our label, would take the whole boot
		b.problems.at(clip(name), parts, "here the reading ended: there are more than %d files and folders", maxLooked)
		return nil
	}
	info, err := root.Lstat(name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", clip(name), err)
	}
	switch {
	case info.IsDir() && depth+1 >= maxDepth:
		b.problems.at(clip(name), parts, "the folder is too deep")
	case info.IsDir():
		return b.walk(root, name, depth+1)
	case !info.Mode().IsRegular():
		b.problems.at(clip(name), "put the file itself there", "it is a %s, not a file", kindOf(info.Mode()))
	case b.room(name, info.Size()):
		content, err := readRegular(root, name, info)
		if err != nil {
			return err
		}
		b.put(name, content)
	}
	return nil
}

// readRegular reads the file that info is of, and no other that was put in its
// place meanwhile.
func readRegular(root *os.Root, name string, info fs.FileInfo) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return nil, fmt.Errorf("read %s: it was replaced while it was read", name)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return content, nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}
