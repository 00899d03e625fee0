package setup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// State is what the store remembers beside the generations. Keys that another
// version has written are ignored.
type State struct {
	Format int `json:"format"`
	// Taken is the digest of what was last taken from a source of the box: the
	// same bytes are not taken again, whatever was applied since.
	Taken string `json:"taken,omitempty"`
	// Good has, of each version of the product, the generation that it was last
	// seen good with: confirmed by a person, or by a good boot.
	Good map[string]int `json:"good,omitempty"`
	// Recent are the versions of Good by when they were last seen good, the latest
	// at the end.
	Recent []string `json:"recent,omitempty"`
	// Reverted is the last change that was taken back.
	Reverted *Reverted `json:"reverted,omitempty"`
}

// Reverted tells of a change that was taken back, and why.
type Reverted struct {
	From   int       `json:"from"`
	To     int       `json:"to"`
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

// maxGood bounds State.Good: the two slots, and what may come back by a downgrade.
const maxGood = 4

// seenGood remembers that version was good with generation n now. What goes then is
// the version that was good the longest ago: never the one of the other slot, which
// is the last that was good before this one, whatever the order of their numbers.
func (st *State) seenGood(version string, n int) {
	order := slices.DeleteFunc(slices.Clone(st.Recent), func(v string) bool {
		_, known := st.Good[v]
		return v == version || !known
	})
	// Those of a file that a version without Recent has written come first.
	var without []string
	for v := range st.Good {
		if v != version && !slices.Contains(order, v) {
			without = append(without, v)
		}
	}
	slices.Sort(without)
	st.Good[version] = n
	st.Recent = append(append(without, order...), version)
	for len(st.Recent) > maxGood {
		delete(st.Good, st.Recent[0])
		st.Recent = st.Recent[1:]
	}
}

// Pending is a change that is not confirmed. It is on the disk before anything
// is applied, and as long as it is there the change can be taken back by
// whoever comes first: edge-confirm.service, a person, the next boot.
type Pending struct {
	Format int `json:"format"`
	// From and To are generations; From 0: there was none.
	From int `json:"from"`
	To   int `json:"to"`
	// BootID is the boot in which it was made: no other one keeps it.
	BootID string `json:"boot_id"`
	// Within is how long after the change it is taken back, Deadline when that is
	// by the clock of the wall.
	Within   time.Duration `json:"within_ns,omitempty"`
	Deadline time.Time     `json:"deadline,omitzero"`
	// Peers are the peers whose sessions were established, and which the new
	// configuration has as well; SSH the addresses on which sshd must answer.
	Peers []string `json:"peers,omitempty"`
	SSH   []string `json:"ssh,omitempty"`
	// Logins are connections of ssh that are to go on, "CLIENT:PORT SERVER:PORT"; Others
	// those that were there besides.
	Logins []string `json:"logins,omitempty"`
	Others []string `json:"others,omitempty"`
	// Edged says that edged answered before the change.
	Edged bool `json:"edged,omitempty"`
}

// trial is a generation that a boot has made of a new source, and that no good
// boot has confirmed yet. It waits for nobody: it only tells an older version of
// the product, which comes back from an upgrade, what it had before.
type trial struct {
	Format int `json:"format"`
	From   int `json:"from"`
	To     int `json:"to"`
	// Version is that which made it.
	Version string `json:"version"`
}

// PendingFile is there, in the folder of the store, while a change waits to be
// confirmed. edge-confirm.path waits for it.
const PendingFile = "pending.json"

// The other files of the store beside the generations.
const (
	stateFile = "state.json"
	trialFile = "trial.json"
)

// State reads what is remembered. What cannot be read is as if it was not there:
// at worst an old source is taken once more.
func (s *Store) State() State {
	var st State
	if readJSON(filepath.Join(s.o.Dir, stateFile), &st) != nil {
		st = State{}
	}
	if st.Good == nil {
		st.Good = map[string]int{}
	}
	return st
}

func (s *Store) setState(st State) error {
	st.Format = format
	s.o.step("write state")
	return writeJSON(filepath.Join(s.o.Dir, stateFile), st)
}

// Taken remembers the digest of what was taken from a source.
func (s *Store) Taken(digest string) error {
	st := s.State()
	if st.Taken == digest {
		return nil
	}
	st.Taken = digest
	return s.setState(st)
}

// Pending is the change that is not confirmed; nil: there is none.
func (s *Store) Pending() (*Pending, error) {
	var p Pending
	err := readJSON(filepath.Join(s.o.Dir, PendingFile), &p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read pending change: %w; a reboot forgets it, and so does who removes %s", err, filepath.Join(s.o.Dir, PendingFile))
	}
	return &p, nil
}

// check says why it is no change of ours. To take one for it that is not would leave
// the box without a configuration.
func (p *Pending) check() error {
	switch {
	case p.Format > format:
		return fmt.Errorf("its format is %d, of a newer version", p.Format)
	case p.Format < 1 || p.From < 0 || p.To < 1 || p.From == p.To:
		return fmt.Errorf("format %d, from %d to %d: it is no change", p.Format, p.From, p.To)
	}
	return nil
}

// SetPending must come before the first step of a change. After nil nothing is
// pending.
func (s *Store) SetPending(p *Pending) error {
	if p == nil {
		return s.forget(PendingFile)
	}
	s.o.step("write pending")
	q := *p
	q.Format = format
	return writeJSON(filepath.Join(s.o.Dir, PendingFile), q)
}

func (s *Store) forget(name string) error {
	s.o.step("forget " + name)
	if err := os.Remove(filepath.Join(s.o.Dir, name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("end a change: %w", err)
	}
	return syncDir(s.o.Dir)
}

func (s *Store) setTrial(t trial) error {
	t.Format, t.Version = format, s.o.Version
	s.o.step("write trial")
	return writeJSON(filepath.Join(s.o.Dir, trialFile), t)
}

// trial is nil if there is none that can be read.
func (s *Store) trial() *trial {
	var t trial
	if readJSON(filepath.Join(s.o.Dir, trialFile), &t) != nil || t.Format != format {
		return nil
	}
	return &t
}

// Confirm makes the current generation good for this version and ends what is
// pending. It returns the generation.
func (s *Store) Confirm() (int, error) {
	n, err := s.Current()
	if err != nil || n == 0 {
		return 0, err
	}
	st := s.State()
	if last := len(st.Recent) - 1; st.Good[s.o.Version] != n || last < 0 || st.Recent[last] != s.o.Version {
		st.seenGood(s.o.Version, n)
		if err := s.setState(st); err != nil {
			return 0, err
		}
	}
	return n, errors.Join(s.forget(trialFile), s.SetPending(nil))
}

// Good says whether generation n was confirmed under this version.
func (s *Store) Good(n int) bool { return s.State().Good[s.o.Version] == n }

// LastGood is the generation that this version was last seen good with; 0: none.
func (s *Store) LastGood() int { return s.State().Good[s.o.Version] }

// ConfirmBoot is Confirm for a boot that was judged good: a change that waits
// for a person goes on waiting.
func (s *Store) ConfirmBoot() error {
	p, err := s.Pending()
	if err != nil || p != nil {
		return err
	}
	_, err = s.Confirm()
	return err
}

// Revert goes back to the generation before a pending change, and remembers why.
// It may be run again after it was interrupted.
func (s *Store) Revert(p Pending, reason string) error {
	if err := s.Switch(p.From); err != nil {
		return err
	}
	return s.Reverted(p, reason)
}

// Reverted is the second half of Revert, for who has something to do between
// Switch and the end: as long as the change is pending, it is taken back again
// after a crash.
func (s *Store) Reverted(p Pending, reason string) error {
	st := s.State()
	st.Reverted = &Reverted{From: p.To, To: p.From, Reason: reason, Time: s.o.Now().UTC()}
	if err := s.setState(st); err != nil {
		return err
	}
	return s.SetPending(nil)
}

// maxState bounds a file of the store, in bytes.
const maxState = 1 << 20

func readJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not be waited for
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err == nil && len(b) > maxState {
		err = fmt.Errorf("%s: more than %d bytes", path, maxState)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	b, err := marshal(v)
	if err != nil {
		return err
	}
	return replace(path, b, 0o600)
}

func marshal(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// Tidy removes old generations, but none that somebody may go back to: what is
// pending, what a version of the product was good with, and those in keep.
func (s *Store) Tidy(keep ...int) error {
	for _, n := range s.State().Good {
		keep = append(keep, n)
	}
	p, err := s.Pending()
	if err != nil {
		return err
	}
	if p != nil {
		keep = append(keep, p.From, p.To)
	}
	if t := s.trial(); t != nil {
		keep = append(keep, t.From)
	}
	return s.tidy(keep...)
}
