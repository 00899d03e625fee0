package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pidFile is the path of the file that tells edged's process probe which
// process to look at.
type pidFile string

// write writes our pid, unless it is there already: this process may have
// changed its user since, and not be allowed to.
func (p pidFile) write() error {
	if p.ours() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(string(p)), 0o755); err != nil {
		return fmt.Errorf("make folder of pid file: %w", err)
	}
	if err := os.WriteFile(string(p), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

func (p pidFile) ours() bool {
	b, err := os.ReadFile(string(p))
	return err == nil && strings.TrimSpace(string(b)) == strconv.Itoa(os.Getpid())
}

// remove takes the file away, or what is in it where the folder belongs to
// root. If neither works the pid of a dead process stays, which is as clear.
func (p pidFile) remove() {
	if p.ours() && os.Remove(string(p)) != nil {
		os.Truncate(string(p), 0)
	}
}
