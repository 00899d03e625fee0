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

// replaceFile writes beside the file, syncs it, renames, and syncs the folder:
// after a power cut either the old or the new content is there.
func replaceFile(path string, b []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	if err := writeSynced(path+".new", b); err != nil {
		os.Remove(path + ".new") // a disk that is full needs the room
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
