package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/catchment-dev/edge"
)

// generationFile describes a generation, inside of its folder. It has the digest
// of secrets, so that root alone may read it.
const generationFile = "generation.json"

// format is that of the files of the store. A version of the product writes its
// own format into new generations only: an older one, after a rollback, finds
// its generations as it left them.
const format = 1

// keepGenerations is how many of the newest generations are kept, beside those in use.
const keepGenerations = 5

// Generation is one configuration in the store. It never changes.
type Generation struct {
	Format int `json:"format"`
	Number int `json:"number"`
	// Source is where it came from, for people.
	Source string `json:"source"`
	// Operator says that somebody applied it by hand.
	Operator bool   `json:"operator,omitempty"`
	Digest   string `json:"digest,omitempty"`
	// Version is that of the product that made it.
	Version string    `json:"version"`
	Created time.Time `json:"created"`
}

// Store keeps the generations of a box. Use it under Lock; one process at a time
// does. The zero Store is of no use: see OpenStore.
type Store struct {
	o StoreOptions
}

// StoreOptions are what a store needs to know.
type StoreOptions struct {
	// Dir is /var/lib/edge-config on a box.
	Dir string
	// Version is that of the running product.
	Version string
	// File, if not empty, is an edge.yaml in a folder that is not the store's: a
	// box that was not made from the image. A generation is then that file alone.
	File string
	// Owner returns the ids of a user and of a group ("" is 0); one that the box
	// does not have is root.
	Owner func(user, group string) (uid, gid int)
	Now   func() time.Time
	// step is called before each step that changes the disk; tests end the
	// process there.
	step func(what string)
}

// OpenStore makes the folder of the store if there is none.
func OpenStore(o StoreOptions) (*Store, error) {
	if o.step == nil {
		o.step = func(string) {}
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "gen"), 0o755); err != nil {
		return nil, fmt.Errorf("make store of configurations: %w", err)
	}
	return &Store{o}, nil
}

// Lock keeps other processes out of the store until unlock is called. It fails
// at once if one of them is in there.
func (s *Store) Lock() (unlock func(), err error) {
	f, err := s.openLock()
	if err != nil {
		return nil, fmt.Errorf("lock store of configurations: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, errors.New("another command is changing the configuration of this box: wait until it is done")
	}
	return func() { f.Close() }, nil
}

// openLock opens what is locked. A disk that is full, or that can only be read, is no
// reason not to go by what is on it.
func (s *Store) openLock() (*os.File, error) {
	path := filepath.Join(s.o.Dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		return f, nil
	}
	if f, readErr := os.Open(path); readErr == nil {
		return f, nil
	}
	if f, readErr := os.Open(s.o.Dir); readErr == nil {
		return f, nil
	}
	return nil, err
}

// Plain says that the box was not made from the image: see StoreOptions.File.
func (s *Store) Plain() bool { return s.o.File != "" }

// Found is the file of a box that was not made from the image, as somebody has
// left it; nil where there is none.
func (s *Store) Found() (Tree, error) {
	if !s.Plain() {
		return nil, nil
	}
	b, err := os.ReadFile(s.o.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration in force: %w", err)
	}
	return Tree{configFile: b}, nil
}

func (s *Store) dirOf(n int) string { return filepath.Join(s.o.Dir, "gen", strconv.Itoa(n)) }

// Current is the generation in force; 0: there is none.
func (s *Store) Current() (int, error) {
	to, err := os.Readlink(filepath.Join(s.o.Dir, "current"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read current generation: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(to, "gen/"))
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("read current generation: it points to %q", to)
	}
	return n, nil
}

// Generations are the numbers of all generations, the oldest first.
func (s *Store) Generations() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(s.o.Dir, "gen"))
	if err != nil {
		return nil, fmt.Errorf("list generations: %w", err)
	}
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Describe reads what is known of generation n.
func (s *Store) Describe(n int) (Generation, error) {
	g := Generation{}
	if err := readJSON(filepath.Join(s.dirOf(n), generationFile), &g); err != nil {
		return g, fmt.Errorf("read generation %d: %w", n, err)
	}
	return g, nil
}

// Load reads the files of generation n.
func (s *Store) Load(n int) (Tree, error) {
	t, problems, err := ReadTree(s.dirOf(n))
	if err == nil && len(problems) > 0 {
		err = problems
	}
	if err != nil {
		return nil, fmt.Errorf("read generation %d: %w", n, err)
	}
	return t, nil
}

// lost says that generation n cannot be read, or has no configuration: a disk that was
// repaired may have less than was written. Whether it is good is another question.
func (s *Store) lost(n int) bool {
	t, _, err := ReadTree(s.dirOf(n))
	return err != nil || t[configFile] == nil
}

// Add makes a new generation of t, which c is the edge.yaml of. It is whole on
// the disk, or not there at all; nothing uses it yet.
func (s *Store) Add(t Tree, c *edge.Config, g Generation) (int, error) {
	all, err := s.Generations()
	if err != nil {
		return 0, err
	}
	n := 1
	if len(all) > 0 {
		n = all[len(all)-1] + 1
	}
	// What was taken back, or was left by a process that was killed, must not fill the
	// disk. If it cannot be removed there may be room all the same.
	_ = s.Tidy()
	g.Format, g.Number, g.Digest, g.Version, g.Created = format, n, t.Digest(), s.o.Version, s.o.Now().UTC()
	s.o.step("begin generation")
	tmp, err := os.MkdirTemp(filepath.Join(s.o.Dir, "gen"), ".new-")
	if err == nil {
		if err = s.fill(tmp, t, c, g); err == nil {
			s.o.step("rename generation")
			err = renameSynced(tmp, s.dirOf(n))
		}
	}
	if err != nil {
		os.RemoveAll(tmp) // a full disk needs the room
		return 0, fmt.Errorf("write generation %d: %w", n, err)
	}
	return n, nil
}

// fill writes all of a generation into the folder dir, and syncs it.
func (s *Store) fill(dir string, t Tree, c *edge.Config, g Generation) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	by := readers(c, t)
	dirs := []string{dir}
	for _, name := range t.names() {
		s.o.step("write " + name)
		for _, d := range parents(name) {
			full := filepath.Join(dir, d)
			if err := os.Mkdir(full, 0o755); err == nil {
				dirs = append(dirs, full)
			} else if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if err := s.write(filepath.Join(dir, name), t[name], accessOf(name, c, by)); err != nil {
			return err
		}
		if err := s.keepTime(dir, name, t[name]); err != nil {
			return err
		}
	}
	b, err := marshal(g)
	if err == nil {
		err = s.write(filepath.Join(dir, generationFile), b, access{mode: 0o600})
	}
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, syncDir(d))
	}
	return err
}

// parents are the folders above name, the outermost first.
func parents(name string) (out []string) {
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		out = append([]string{d}, out...)
	}
	return out
}

// write makes a file that nobody may read before it has its owner.
func (s *Store) write(path string, content []byte, a access) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && os.Geteuid() == 0 {
		uid, gid := s.o.Owner(a.user, a.group)
		err = f.Chown(uid, gid)
	}
	if err == nil {
		err = f.Chmod(a.mode)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// keepTime gives a file of a new generation that has the bytes of the current
// one its time as well: edged takes a key of BGP with another time for another
// key, which ends the session.
func (s *Store) keepTime(dir, name string, content []byte) error {
	n, err := s.Current()
	if err != nil || n == 0 {
		return nil
	}
	was := filepath.Join(s.dirOf(n), name)
	info, err := os.Lstat(was)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return nil
	}
	if b, err := os.ReadFile(was); err != nil || string(b) != string(content) {
		return nil
	}
	return os.Chtimes(filepath.Join(dir, name), info.ModTime(), info.ModTime())
}

// Switch makes generation n the current one; 0: none.
func (s *Store) Switch(n int) error {
	if err := s.switchFile(n); err != nil {
		return err
	}
	link := filepath.Join(s.o.Dir, "current")
	s.o.step("switch")
	if n == 0 {
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("leave generation: %w", err)
		}
		return syncDir(s.o.Dir)
	}
	if _, err := os.Stat(s.dirOf(n)); err != nil {
		return fmt.Errorf("switch to generation %d: %w", n, err)
	}
	tmp := link + ".new"
	os.Remove(tmp) // of a process that was killed here
	err := os.Symlink(path.Join("gen", strconv.Itoa(n)), tmp)
	if err == nil {
		s.o.step("rename current")
		err = renameSynced(tmp, link)
	}
	if err != nil {
		return fmt.Errorf("switch to generation %d: %w", n, err)
	}
	return nil
}

// switchFile puts the edge.yaml of generation n where a box that was not made
// from the image has it. Its mode and owner stay. Where there was none before
// the first generation, there is none again.
func (s *Store) switchFile(n int) error {
	if !s.Plain() {
		return nil
	}
	if n == 0 {
		if err := os.Remove(s.o.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("leave generation: %w", err)
		}
		return nil
	}
	t, err := s.Load(n)
	if err != nil {
		return err
	}
	s.o.step("switch file")
	if err := replaceLike(s.o.File, t[configFile]); err != nil {
		return fmt.Errorf("switch to generation %d: %w", n, err)
	}
	return nil
}

// tidy removes what killed processes have left, and all generations but the
// newest, the current one and those in keep.
func (s *Store) tidy(keep ...int) error {
	now, err := s.Current()
	if err != nil {
		return err
	}
	all, err := s.Generations()
	if err != nil {
		return err
	}
	keep = append(keep, now)
	keep = append(keep, all[max(0, len(all)-keepGenerations):]...)
	entries, err := os.ReadDir(filepath.Join(s.o.Dir, "gen"))
	for _, e := range entries {
		n, notNumber := strconv.Atoi(e.Name())
		if notNumber == nil && slices.Contains(keep, n) {
			continue
		}
		s.o.step("remove " + e.Name())
		err = errors.Join(err, s.remove(e.Name()))
	}
	return err
}

// remove takes a generation away under a name that is nobody's, so that half of
// one is never left under its number.
func (s *Store) remove(name string) error {
	from := filepath.Join(s.o.Dir, "gen", name)
	if !strings.HasPrefix(name, ".") {
		to := filepath.Join(s.o.Dir, "gen", ".old-"+name)
		if err := renameSynced(from, to); err != nil {
			return fmt.Errorf("remove generation: %w", err)
		}
		from = to
	}
	if err := os.RemoveAll(from); err != nil {
		return fmt.Errorf("remove generation: %w", err)
	}
	return nil
}
