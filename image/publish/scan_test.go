package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

const somePEM = "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQC7VJTUt9Us8cKj\n"

// root is a root of which nothing is wrong.
func root() fstest.MapFS {
	m := fstest.MapFS{
		"etc/machine-id":          {},
		"etc/shadow":              {Data: []byte("root:*:19000:0:99999:7:::\nedged:!*:19000::::::\n")},
		"etc/gshadow":             {Data: []byte("root:*::\nedge:!::\n")},
		"etc/passwd":              {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")},
		"etc/ssh/sshd_config":     {Data: []byte("HostKey /var/lib/ssh/ssh_host_ed25519_key\n")},
		"usr/bin/ssh-keygen":      {Data: []byte("\x00-----BEGIN OPENSSH PRIVATE KEY-----\n\x00-----END")},
		"usr/lib/credstore/a.loc": {},
	}
	for i := range 1000 {
		m[fmt.Sprintf("usr/share/file%d", i)] = &fstest.MapFile{}
	}
	return m
}

func TestScanRoot(t *testing.T) {
	if found, err := scanRoot(root()); err != nil || len(found) > 0 {
		t.Fatalf("nothing is wrong with it: %v, %v", found, err)
	}
	for name, text := range map[string]string{
		"etc/ssh/ssh_host_rsa_key":                 "",
		"etc/ssh/ssh_host_ed25519_key.pub":         "",
		"etc/machine-id":                           "f79bea9dafa54440a6299445c0070954\n",
		"etc/hostname":                             "box1\n",
		"etc/shadow":                               "root:$y$j9T$abc:19000:0:99999:7:::\n",
		"etc/gshadow":                              "root:::\n",
		"etc/passwd":                               "root::0:0:root:/root:/bin/bash\n",
		"etc/shadow-":                              "",
		"usr/share/some.pem":                       somePEM,
		"etc/ssl/private/snakeoil":                 "",
		"opt/dos.pem":                              strings.ReplaceAll(somePEM, "\n", "\r\n"),
		"opt/old.pem":                              strings.Replace(strings.Replace(somePEM, "PRIV", "RSA PRIV", 1), "\n", "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n", 1),
		"opt/id_ed25519":                           "",
		"opt/x/authorized_keys":                    "ssh-ed25519 AAAA",
		"root/.bash_history":                       "",
		"root/a/b/c/d":                             "",
		"home/somebody/x":                          "",
		"var/lib/systemd/random-seed":              "",
		"var/log/journal/a/b":                      "",
		"etc/credstore/edge.password":              "",
		"usr/lib/credstore/passwd.hashed-password": "",
		"usr/lib/edge/ring.seed":                   "",
		"etc/systemd/network/10-me.network":        "",
	} {
		m := root()
		m[name] = &fstest.MapFile{Data: []byte(text)}
		found, err := scanRoot(m)
		if err != nil || len(found) != 1 && name != "opt/id_ed25519" || len(found) == 0 || !strings.HasPrefix(found[0], "/"+name+": ") {
			t.Errorf("%s: found %q, %v", name, found, err)
		}
	}
	if _, err := scanRoot(fstest.MapFS{"etc/machine-id": {}}); err == nil {
		t.Error("an empty folder is taken for a root")
	}
}

func TestOwnNamesAreWellFormed(t *testing.T) {
	for pattern := range ownNames() {
		if _, err := path.Match(pattern, "x"); err != nil {
			t.Errorf("%s: %v", pattern, err)
		}
	}
	for folder := range ownFolders() {
		if !strings.HasSuffix(folder, "/") {
			t.Errorf("%s does not end in a slash", folder)
		}
	}
}

func TestScanESP(t *testing.T) {
	esp := fstest.MapFS{
		"EFI/BOOT/BOOTX64.EFI":     {},
		"EFI/Linux/edge_1.2.0.efi": {},
		"loader/keys/auto/db.auth": {},
		"loader/credentials":       {Mode: os.ModeDir | 0o755},
		"loader/loader.conf":       {},
	}
	if found, err := scanESP(esp); err != nil || len(found) > 0 {
		t.Fatalf("nothing is wrong with it: %v, %v", found, err)
	}
	for name, text := range map[string]string{
		"loader/credentials/edge.yaml.cred": "",
		"LOADER/RANDOM-SEED":                "",
		"EFI/db.key":                        somePEM,
	} {
		m := maps.Clone(esp)
		m[name] = &fstest.MapFile{Data: []byte(text)}
		if found, err := scanESP(m); err != nil || len(found) != 1 || !strings.HasPrefix(found[0], name+": ") {
			t.Errorf("%s: found %q, %v", name, found, err)
		}
	}
	if _, err := scanESP(fstest.MapFS{}); err == nil {
		t.Error("an empty folder is taken for an ESP")
	}
}

func TestScanVerb(t *testing.T) {
	r, e := t.TempDir(), t.TempDir()
	m := root()
	m["etc/hostname"] = &fstest.MapFile{Data: []byte("box1\n")}
	if err := os.CopyFS(r, m); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(e, fstest.MapFS{"EFI/BOOT/BOOTX64.EFI": {}}); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	err := run([]string{"scan", "-root", r, "-esp", e}, &said)
	if err == nil || !strings.Contains(said.String(), "/etc/hostname: the name of one box") {
		t.Errorf("%v: %s", err, said.String())
	}
	if err := os.Remove(filepath.Join(r, "etc/hostname")); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"scan", "-root", r, "-esp", e}, io.Discard); err != nil {
		t.Error(err)
	}
}
