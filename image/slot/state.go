package slot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stateFormat is that of every file of the state folder. A version that needs
// another one writes this one until it is good: else the version that it falls back
// to could not read what became of it.
const stateFormat = 1

// State is the folder of what outlives a reboot. Its files are root's to read: they have
// lines of the journal. What a newer version has written is never changed, nor read by
// guesses: ErrNewer says so.
type State struct{ Dir string }

// ErrNewer says that a file was written by a newer version.
var ErrNewer = errors.New("a newer version has written it; it is left alone: to do without what it says, move it away")

// Stage is how far an upgrade is.
type Stage string

// The stages. Each is written before what it names begins, so that whoever finds
// it knows what may have happened.
const (
	Writing   Stage = "writing"   // the slot may be half written
	Staged    Stage = "staged"    // the slot is whole; once its UKI is there, the next boot takes it
	Rebooting Stage = "rebooting" // a reboot was ordered for it
	Good      Stage = "good"      // it was booted, judged and blessed
	Failed    Stage = "failed"    // it was booted, and the box has come back from it
	Cancelled Stage = "cancelled" // it was taken back before it was booted
)

// Upgrade is upgrade.json: the last one that was begun.
type Upgrade struct {
	Format  int    `json:"format"`
	Stage   Stage  `json:"stage"`
	Version string `json:"version"`
	Slot    Slot   `json:"slot"`
	From    string `json:"from"`
	// Manifest is the sum (hex SHA-256) of the payload's; "" for a rollback.
	Manifest string    `json:"manifest,omitempty"`
	Source   string    `json:"source,omitempty"`
	Tries    int       `json:"tries"`
	By       string    `json:"by"`
	Since    time.Time `json:"since"`
	Changed  time.Time `json:"changed"`
	// Drain is the reason of the drain that the upgrade has ordered, by which it is
	// known again; "": it has ordered none, and none is to be taken back.
	Drain string `json:"drain,omitempty"`
	// Older says that it goes to an older version, so that the one before has to be
	// set aside to have it booted.
	Older bool `json:"older,omitempty"`
	// Configured says that the version before had a configuration: one that sees none
	// has lost it.
	Configured bool `json:"configured"`
	// Payload is what was staged, so that it can be checked again.
	Payload *Manifest `json:"payload,omitempty"`
}

// OnTrial says that the version is to be booted, or was and is not judged yet.
func (u *Upgrade) OnTrial() bool {
	return u != nil && (u.Stage == Staged || u.Stage == Rebooting)
}

// Refused is a version that is not taken again unless forced.
type Refused struct {
	Version string    `json:"version"`
	When    time.Time `json:"when"`
	// Check is the name of the check that failed, "boot" if it never came to be
	// checked, "operator" if it was rolled back by hand. Reason says it in words.
	Check   string `json:"check"`
	Reason  string `json:"reason"`
	Journal string `json:"journal,omitempty"` // the last lines of its last boot
	Times   int    `json:"times"`             // how often it has failed
}

// The causes that are no checks.
const (
	ByOperator = "operator"
	NeverUp    = "boot"
)

// Boot is the judgement of one boot.
type Boot struct {
	ID      string    `json:"boot_id"`
	Version string    `json:"version"`
	Slot    Slot      `json:"slot"`
	Time    time.Time `json:"time"`
	// Trial is Since of the upgrade whose version was under trial, by which they are
	// known to belong together, whatever the clock did; zero: none was.
	Trial time.Time `json:"trial,omitzero"`
	Good  bool      `json:"good"`
	// Failed are the checks that failed, by name, with their reasons.
	Failed []Failure `json:"failed,omitempty"`
}

// Failure is a check that failed.
type Failure struct {
	Check  string `json:"check"`
	Reason string `json:"reason"`
}

type refusedFile struct {
	Format  int       `json:"format"`
	Refused []Refused `json:"refused"`
}

type bootsFile struct {
	Format int    `json:"format"`
	Boots  []Boot `json:"boots"`
}

// The files of the folder.
const (
	upgradeFile = "upgrade.json"
	refusedName = "refused.json"
	bootsName   = "boots.json"
)

// Most that is kept.
const (
	maxRefused = 20
	maxBoots   = 50
	maxState   = 1 << 20 // bytes of one file
)

// Upgrade is the last one that was begun; nil: none was.
func (s State) Upgrade() (*Upgrade, error) {
	u := &Upgrade{}
	if there, err := s.read(upgradeFile, u); err != nil || !there {
		return nil, err
	}
	return u, nil
}

// SetUpgrade keeps u; its Format and Changed are set.
func (s State) SetUpgrade(u *Upgrade, now time.Time) error {
	u.Format, u.Changed = stateFormat, now.UTC()
	return s.write(upgradeFile, u)
}

// Refused are the versions that are not taken again, the last one last.
func (s State) Refused() ([]Refused, error) {
	var f refusedFile
	_, err := s.read(refusedName, &f)
	return f.Refused, err
}

// Refuse adds a version, or counts that it has failed again.
func (s State) Refuse(r Refused) error {
	list, err := s.Refused()
	if err != nil {
		return err
	}
	r.Times, r.When = 1, r.When.UTC()
	r.Reason, r.Journal = bounded(r.Reason), bounded(r.Journal)
	keep := make([]Refused, 0, len(list)+1)
	for _, o := range list {
		if o.Version == r.Version {
			r.Times = o.Times + 1
			continue
		}
		keep = append(keep, o)
	}
	keep = append(keep, r)
	return s.write(refusedName, fit(keep, maxRefused, func(l []Refused) any { return refusedFile{stateFormat, l} }))
}

// bounded cuts what programs have said.
func bounded(text string) string {
	const most = 16 << 10
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "?")
}

// Forgive takes a version out of the refused: it was good after all.
func (s State) Forgive(version string) error {
	list, err := s.Refused()
	if err != nil {
		return err
	}
	var keep []Refused
	for _, o := range list {
		if o.Version != version {
			keep = append(keep, o)
		}
	}
	if len(keep) == len(list) {
		return nil
	}
	return s.write(refusedName, refusedFile{stateFormat, keep})
}

// RefusedOf is the entry of a version; nil: it is not refused.
func RefusedOf(list []Refused, version string) *Refused {
	for i := range list {
		if list[i].Version == version {
			return &list[i]
		}
	}
	return nil
}

// Boots are the judgements that are kept, the last one last.
func (s State) Boots() ([]Boot, error) {
	var f bootsFile
	_, err := s.read(bootsName, &f)
	return f.Boots, err
}

// AddBoot keeps a judgement; a later one of the same boot replaces it.
func (s State) AddBoot(b Boot) error {
	list, err := s.Boots()
	if err != nil {
		return err
	}
	if n := len(list); n > 0 && list[n-1].ID == b.ID {
		list = list[:n-1]
	}
	list = append(list, b)
	return s.write(bootsName, fit(list, maxBoots, func(l []Boot) any { return bootsFile{stateFormat, l} }))
}

// read decodes a file; one that is not there leaves v as it is.
func (s State) read(name string, v any) (there bool, err error) {
	path := filepath.Join(s.Dir, name)
	b, err := readState(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read state: %w", err)
	}
	if err := decodeState(b, v); err != nil {
		return false, fmt.Errorf("read state: %s: %w", path, err)
	}
	return true, nil
}

// readState reads a file as far as one of ours is long, and a byte more.
func readState(path string) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxState+1))
}

func decodeState(b []byte, v any) error {
	if len(b) > maxState {
		return fmt.Errorf("more than %d bytes: this is none of ours; remove the file", maxState)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fmt.Errorf("%w; remove the file", err)
	}
	if head.Format > stateFormat {
		return fmt.Errorf("format %d: %w", head.Format, ErrNewer)
	}
	if head.Format < 1 {
		return fmt.Errorf("format %d: this is none of ours; remove the file", head.Format)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w; remove the file", err)
	}
	return nil
}

// write replaces a file: beside it, synced, renamed, the folder synced. One that a
// newer version has written is left alone.
func (s State) write(name string, v any) error {
	path := filepath.Join(s.Dir, name)
	if b, err := readState(path); err == nil {
		var skip json.RawMessage
		if err := decodeState(b, &skip); errors.Is(err, ErrNewer) {
			return fmt.Errorf("write state: %s: %w", path, err)
		}
	}
	b, err := encodeState(v)
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	err = replaceFile(path, b, 0o600)
	if errors.Is(err, unix.ENOSPC) && s.Release() == nil {
		err = replaceFile(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// encodeState is v as it is kept: never more than is read again. errTooLarge says
// that it would be.
func encodeState(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil && len(b) >= maxState {
		err = errTooLarge
	}
	return append(b, '\n'), err
}

var errTooLarge = fmt.Errorf("it has more than %d bytes", maxState)

// fit leaves out the oldest of list until all of it can be kept: reasons come from
// programs of the operator, and may be long and many.
func fit[T any](list []T, most int, file func([]T) any) any {
	list = list[max(0, len(list)-most):]
	for len(list) > 1 {
		if _, err := encodeState(file(list)); !errors.Is(err, errTooLarge) {
			break
		}
		list = list[1:]
	}
	return file(list)
}

// reserveSize is what Reserve keeps, in bytes.
const (
	reserveSize = 4 << 20
	reserveName = "reserve"
)

// Reserve takes some room on the disk, so that there is some once a version has
// filled it: to say why that failed, and for the daemons of the one before to keep
// that they are back. It does nothing if the room is taken.
func (s State) Reserve() error {
	path := filepath.Join(s.Dir, reserveName)
	if info, err := os.Stat(path); err == nil && info.Size() == reserveSize {
		return nil
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("reserve room: %w", err)
	}
	if err := ReplaceFile(path, make([]byte, reserveSize)); err != nil {
		return fmt.Errorf("reserve room: %w", err)
	}
	return nil
}

// Release gives that room back, and what was fetched.
func (s State) Release() error {
	return errors.Join(os.RemoveAll(s.FetchDir()), os.RemoveAll(filepath.Join(s.Dir, reserveName)), syncFolder(s.Dir))
}

// FetchDir is where packed files of a payload are kept.
func (s State) FetchDir() string { return filepath.Join(s.Dir, "fetch") }

// ReplaceFile has a file with other bytes, or as it was: also after a power cut.
// Everybody may read it.
func ReplaceFile(path string, b []byte) error { return replaceFile(path, b, 0o644) }

func replaceFile(path string, b []byte, mode os.FileMode) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	err = f.Chmod(mode) // one that a power cut has left has another
	if err == nil {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp)) // a disk that is full needs the room
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
