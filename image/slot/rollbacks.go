package slot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Rollback is how often the box has come back from a version by itself. Unlike a
// Refused it is never taken back: it becomes a counter.
type Rollback struct {
	From  string `json:"from"`
	Check string `json:"check"` // as of Refused
	Times int    `json:"times"`
}

type rollbacksFile struct {
	Format    int        `json:"format"`
	Rollbacks []Rollback `json:"rollbacks"`
}

const rollbacksName = "rollbacks.json"

// Rollbacks are those that are kept, the last new one last.
func (s State) Rollbacks() ([]Rollback, error) {
	var f rollbacksFile
	_, err := s.read(rollbacksName, &f)
	return f.Rollbacks, err
}

// CountRollback counts one.
func (s State) CountRollback(from, check string) error {
	list, err := s.Rollbacks()
	if err != nil {
		return err
	}
	list = Counted(list, from, check)
	return s.write(rollbacksName, rollbacksFile{stateFormat, list[max(0, len(list)-maxRefused):]})
}

// Counted is a list with one more.
func Counted(list []Rollback, from, check string) []Rollback {
	out := append([]Rollback(nil), list...)
	for i := range out {
		if out[i].From == from && out[i].Check == check {
			out[i].Times++
			return out
		}
	}
	return append(out, Rollback{from, check, 1})
}

// maxNote bounds what Note writes, in bytes.
const maxNote = 64 << 10

// Note keeps a judgement in the room that Reserve has taken, without giving it up:
// that needs nothing of a disk that is full. A version under trial may have filled it,
// and goes on to: the room is for the version that the box falls back to. It is an
// error if no room is taken.
func (s State) Note(b Boot) error {
	text, err := json.Marshal(bootsFile{stateFormat, []Boot{b}})
	if err != nil {
		return fmt.Errorf("note judgement: %w", err)
	}
	if len(text) >= maxNote {
		return fmt.Errorf("note judgement: it has %d bytes, at most %d", len(text), maxNote-1)
	}
	f, err := os.OpenFile(filepath.Join(s.Dir, reserveName), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("note judgement: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() != reserveSize {
		err = fmt.Errorf("the reserve has %d bytes", info.Size())
	}
	if err == nil {
		_, err = f.WriteAt(append(text, 0), 0)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("note judgement: %w", err)
	}
	return nil
}

// Noted is the last judgement that Note has kept; nil: none, or one that is torn.
func (s State) Noted() *Boot {
	f, err := os.Open(filepath.Join(s.Dir, reserveName))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err != nil {
		return nil
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	var n bootsFile
	if decodeState(text, &n) != nil || len(n.Boots) != 1 {
		return nil
	}
	return &n.Boots[0]
}
