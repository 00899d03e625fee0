package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func runScan(args []string, stderr io.Writer) error {
	set, _ := flags("scan", stderr)
	root := set.String("root", "", "the folder with the files of the root")
	esp := set.String("esp", "", "the folder with the files of the ESP")
	if err := parse(set, args, "root", "esp"); err != nil {
		return err
	}
	var found []string
	for dir, scan := range map[string]func(fs.FS) ([]string, error){*root: scanRoot, *esp: scanESP} {
		more, err := scan(os.DirFS(dir))
		if err != nil {
			return fmt.Errorf("scan %s: %w", dir, err)
		}
		found = append(found, more...)
	}
	slices.Sort(found)
	for _, line := range found {
		fmt.Fprintln(stderr, "publish: scan:", line)
	}
	if len(found) > 0 {
		return fmt.Errorf("the image has %d things that no two boxes may share", len(found))
	}
	return nil
}

// scanRoot lists what in a root is a secret, or is one box's own: on all boxes of
// a fleet it would be the same one. All of it is made on /var, at the first boot.
func scanRoot(root fs.FS) (found []string, err error) {
	report := func(name, what string) { found = append(found, "/"+name+": "+what) }
	files := 0
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		if what := badName(name); what != "" {
			report(name, what)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, what := range badContent(name, b) {
			report(name, what)
		}
		return nil
	})
	if err == nil && files < 1000 {
		err = fmt.Errorf("it has %d files: that is no root", files)
	}
	return found, err
}

// ownNames are paths, as patterns of path.Match, and what is wrong with them.
func ownNames() map[string]string {
	return map[string]string{
		"etc/ssh/ssh_host_*":            "a host key",
		"etc/hostname":                  "the name of one box",
		"etc/machine-info":              "the description of one box",
		"etc/passwd-":                   "what the accounts were before",
		"etc/shadow-":                   "what the passwords were before",
		"etc/gshadow-":                  "what the passwords were before",
		"usr/lib/credstore/*password*":  "a password",
		"usr/lib/credstore.encrypted/*": "a credential",
	}
}

// ownFolders are folders in which the root has nothing.
func ownFolders() map[string]string {
	return map[string]string{
		"root/":                            "a file of whoever built it",
		"home/":                            "a file of whoever built it",
		"var/":                             "no box sees it: /var is mounted over it",
		"etc/credstore/":                   "a credential",
		"etc/credstore.encrypted/":         "a credential",
		"etc/ssl/private/":                 "a private key",
		"etc/systemd/network/":             "the network of one box",
		"usr/local/share/ca-certificates/": "an authority that Debian does not have",
	}
}

func badName(name string) string {
	for pattern, what := range ownNames() {
		if ok, _ := path.Match(pattern, name); ok { // the patterns are well formed: tested
			return what
		}
	}
	for folder, what := range ownFolders() {
		if strings.HasPrefix(name, folder) {
			return what
		}
	}
	switch path.Base(name) {
	case "authorized_keys", "authorized_keys2":
		return "a key of somebody who may log in"
	case "id_rsa", "id_ecdsa", "id_ed25519":
		return "a private key"
	case ".bash_history", ".netrc", "known_hosts", ".git-credentials":
		return "somebody's own file"
	case "random-seed", "credential.secret", "node.key", "gossip.key", "ring.seed":
		return "a secret"
	}
	return ""
}

// privateKey is a private key in PEM or in OpenSSH's form, with some of its text:
// programs that read keys have the first line alone in them.
var privateKey = regexp.MustCompile(`-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----\r?\n(([A-Za-z-]+: .*)?\r?\n)*[A-Za-z0-9+/]{40}`)

func badContent(name string, b []byte) (found []string) {
	switch name {
	case "etc/machine-id":
		if len(b) > 0 {
			found = append(found, fmt.Sprintf("not empty: %.40q", b))
		}
	case "etc/shadow", "etc/gshadow":
		found = append(found, badPasswords(b, "*", "!", "!*", "!!")...)
	case "etc/passwd":
		found = append(found, badPasswords(b, "x")...)
	}
	if privateKey.Match(b) {
		found = append(found, "a private key")
	}
	return found
}

// badPasswords lists the accounts whose second field is none of these. An empty
// one lets everybody in.
func badPasswords(b []byte, good ...string) (found []string) {
	for line := range bytes.Lines(b) {
		if fields := strings.Split(strings.TrimSpace(string(line)), ":"); len(fields) < 2 {
			found = append(found, fmt.Sprintf("a line that is none: %.40q", line))
		} else if !slices.Contains(good, fields[1]) {
			found = append(found, "a password for "+fields[0])
		}
	}
	return found
}

// scanESP lists what on an ESP is a secret or one box's own.
func scanESP(esp fs.FS) (found []string, err error) {
	boot := false
	err = fs.WalkDir(esp, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		lower := strings.ToLower(name) // FAT knows no case
		boot = boot || lower == "efi/boot/bootx64.efi"
		switch {
		case strings.HasPrefix(lower, "loader/credentials/"):
			found = append(found, name+": a credential")
		case lower == "loader/random-seed":
			found = append(found, name+": the same random numbers for all")
		}
		b, err := fs.ReadFile(esp, name)
		if err == nil && privateKey.Match(b) {
			found = append(found, name+": a private key")
		}
		return err
	})
	if err == nil && !boot {
		err = errors.New("it has no EFI/BOOT/BOOTX64.EFI: that is no ESP")
	}
	return found, err
}
