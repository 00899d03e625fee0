package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The stub of the UKI puts the credentials of the ESP here: those beside the
// UKI, and those of loader/credentials (systemd-stub(7)). A systemd in an initrd
// would hand them on; here nobody else does.
func stubCredentials() []string { return []string{"/.extra/credentials", "/.extra/global_credentials"} }

// handedOn is where the systemd of the root takes what an initrd has for it.
const handedOn = "/run/credentials/@initrd"

// mostCredential is the largest credential that systemd takes, in bytes.
const mostCredential = 1 << 20

// passCredentials hands those of the product on. The ESP is neither signed nor
// verified, and systemd believes credentials: with one it would run a unit or
// set a password that the image does not know. So only names of ours go on,
// which edge-setup reads, validates and shows. What comes by SMBIOS or fw_cfg
// systemd takes itself: whoever sets those owns the machine.
func passCredentials(c *console, from []string, to string) {
	for _, dir := range from {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // no such credentials
		}
		for _, e := range entries {
			if err := passCredential(filepath.Join(dir, e.Name()), to); err != nil {
				c.say(warn, "credential %s of the ESP is not taken: %v", e.Name(), err)
			}
		}
	}
}

func passCredential(file, to string) error {
	name, ok := strings.CutSuffix(filepath.Base(file), ".cred")
	if !ok || !isOurCredential(name) {
		return fmt.Errorf("only edge.NAME.cred is")
	}
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > mostCredential {
		return fmt.Errorf("it is no file of up to %d bytes", mostCredential)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	out := filepath.Join(to, name)
	if _, err := os.Lstat(out); err == nil {
		return fmt.Errorf("another one of that name was taken first")
	}
	return os.WriteFile(out, b, 0o400)
}

// isOurCredential: edge. and a name, of the characters that file names have
// everywhere.
func isOurCredential(name string) bool {
	const allowed = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_"
	rest, ok := strings.CutPrefix(name, "edge.")
	return ok && rest != "" && len(name) <= 255 && strings.Trim(rest, allowed) == "" && !slices.Contains(strings.Split(rest, "."), "")
}
