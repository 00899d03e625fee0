package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// HookLimit bounds one run of an operator's check.
const HookLimit = 30 * time.Second

// Hooks makes a check of each executable of a folder, in the order of their names.
// A folder that is not there has none. One that any user could write is a check that
// fails: it would be run as root.
func Hooks(dir string) ([]Check, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read hooks: %w", err)
	}
	var out []Check
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path) // through links: a configuration is a tree of them
		if err != nil {
			return nil, fmt.Errorf("read hooks: %w", err)
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		c := Check{Name: "hook:" + e.Name(), Limit: HookLimit, Run: func(ctx context.Context) error {
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				return nil // another configuration was applied meanwhile
			}
			return runHook(ctx, path)
		}}
		if info.Mode().Perm()&0o002 != 0 {
			c.Run = func(context.Context) error { return fmt.Errorf("%s may be written by anybody: chmod o-w it", path) }
		}
		out = append(out, c)
	}
	return out, nil
}

// runHook runs one with nothing on its input, and returns the last line that it
// said if it fails. What it has begun in the background ends with it, and at the
// latest when its time is over: it is run again and again. How it ended counts, and
// not that something goes on which holds its output.
func runHook(ctx context.Context, path string) error {
	cmd := exec.CommandContext(ctx, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	end := func() error {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		} else {
			return err
		}
	}
	cmd.Cancel = end
	cmd.WaitDelay = time.Second
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	said := &tail{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = said, said
	err := cmd.Start()
	if err == nil {
		err = cmd.Wait()
		end()
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil
	}
	text := bytes.TrimSpace(said.b)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) == 0 {
		return err
	}
	return fmt.Errorf("%s (%w)", strings.ToValidUTF8(string(text), "?"), err)
}

// tail keeps the last bytes that were written to it.
type tail struct {
	b    []byte
	most int
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*t.most {
		t.b = append([]byte(nil), t.b[len(t.b)-t.most:]...)
	}
	return len(p), nil
}
