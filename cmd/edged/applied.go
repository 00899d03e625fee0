package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/catchment-dev/edge"
)

// appliedName is the file in state_dir with the last configuration that was
// applied whole. A new process whose file has lost a prefix finds its services
// there, and serves them until the guard lets the prefix go.
const appliedName = "applied.yaml"

func readApplied(stateDir string) (*edge.Config, error) {
	path := filepath.Join(stateDir, appliedName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read applied configuration: %w", err)
	}
	c, err := edge.Parse(path, b)
	if err != nil {
		return nil, fmt.Errorf("read applied configuration: %w", err)
	}
	return c, nil
}

// remember keeps the configuration in force, but not while something is leaving
// that is no longer in it. The file may have been edited since it was applied:
// then the one before is kept.
func (d *daemon) remember() {
	if len(d.leaving.prefixes) > 0 {
		return
	}
	path, want := d.path, d.base.Hash
	d.keeper.keepRead(appliedName, "the configuration in force", func() ([]byte, error) {
		b, err := os.ReadFile(path)
		sum := sha256.Sum256(b)
		if err != nil || hex.EncodeToString(sum[:]) != want {
			return nil, nil
		}
		return b, nil
	})
}
