package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// renameSynced renames, and syncs the folder: after a power cut either name has
// its file.
func renameSynced(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replace writes a file beside path, syncs it and renames it.
func replace(path string, content []byte, mode os.FileMode) error {
	tmp := path + ".new"
	os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = renameSynced(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// replaceLike is replace with the owner and mode that the file has.
func replaceLike(path string, content []byte) error {
	mode, uid, gid := os.FileMode(0o644), -1, -1
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			uid, gid = int(st.Uid), int(st.Gid)
		}
	}
	if err := replace(path, content, mode); err != nil {
		return err
	}
	return os.Chown(path, uid, gid)
}
