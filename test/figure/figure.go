// Package figure is what a benchmark or a simulation has measured, as a file of
// out/bench has it.
//
// It owns the format of those files and nothing else; the commands and tests below
// test use it.
package figure

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Figure is one measured value.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Against names what Ratio is to: another figure, a peer, or the aim. Empty:
	// nothing.
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
}

// Write makes the file, and its folder if that is not there.
func Write(path string, all []Figure) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encode figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of figures: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write figures: %w", err)
	}
	return nil
}

// Read reads such a file.
func Read(path string) ([]Figure, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read figures: %w", err)
	}
	var all []Figure
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read figures: %s: %w", path, err)
	}
	return all, nil
}
