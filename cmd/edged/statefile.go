package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// readState reads a JSON file of the state folder into v; one that is not there
// leaves v as it is. what names it in errors.
func readState(dir, name, what string, v any) error {
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %s: %w; mend or remove the file", what, path, err)
	}
	return nil
}

// writeState replaces such a file.
func writeState(dir, name, what string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", what, err)
	}
	if err := replaceFile(filepath.Join(dir, name), append(b, '\n')); err != nil {
		return fmt.Errorf("keep %s: %w", what, err)
	}
	return nil
}
