package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// System is what of a box is not a file of /run.
type System interface {
	// Hostname sets the name of the running box.
	Hostname(name string) error
	// Shadow has file (shadow(5)) stand in place of /etc/shadow, which cannot be
	// written on the image.
	Shadow(file string) error
	// ReloadUnits has systemd read its units again, then start those of start, and those
	// of again again that run, without waiting for them.
	ReloadUnits(start []string, again ...string) error
}

// Place is where a configuration is put in force: files below /run, which are
// gone with the boot.
type Place struct {
	// Run is /run on a box, Etc /etc, Sys /sys.
	Run, Etc, Sys string
	// Terminal is the console at which somebody asks for the change, such as ttyS0;
	// "": none.
	Terminal string
	System   System
	// Owner is that of StoreOptions.
	Owner func(user, group string) (uid, gid int)
}

// The files below Run.
const (
	ownDir     = "edge-setup"
	networkDir = "systemd/network"
	issueFile  = "issue.d/edge-setup.issue"
	placedFile = ownDir + "/network-files"
	unitList   = ownDir + "/unit-files"
	bootedFile = ownDir + "/esp-credentials"
	shadowFile = ownDir + "/shadow"
	okFile     = ownDir + "/ok"
	resultFile = ownDir + "/result.json"
	rescueFile = "00-edge-rescue.network"
	// By what people may log in in rescue: a change that is taken back leads there again.
	admittedKeys     = ownDir + "/rescue-keys"
	admittedPassword = ownDir + "/rescue-password"
)

// Good puts the files of a generation in force and says so in r. What cannot be
// done, and is no reason to announce nothing, is an error of r.
func (p Place) Good(t Tree, r Result) (Result, error) {
	r.Format, r.State = format, OK
	if r.Errors == nil {
		r.Errors = []string{}
	}
	err := p.good(t, &r)
	return r, err
}

func (p Place) good(t Tree, r *Result) error {
	network := Tree{}
	for _, name := range t.under("network") {
		network[path.Base(name)] = t[name]
	}
	keys, _ := checkKeys(t[keysFile])
	password, _ := checkPassword(t[passwordFile])
	err := errors.Join(p.network(network), p.keys(keys))
	soft := []error{p.shadow(password), p.login(false), p.units(t)}
	if name, bad := checkHostname(t[hostnameFile]); len(bad) == 0 {
		soft = append(soft, p.System.Hostname(name))
	}
	for _, e := range soft {
		if e != nil {
			r.Errors = append(r.Errors, e.Error())
		}
	}
	text := ""
	if len(r.Errors) > 0 {
		text = issue(*r, password != "", nil)
	}
	if err = errors.Join(err, p.say(text, *r)); err != nil {
		return err
	}
	return p.file(okFile, nil, access{mode: 0o644})
}

// Rescue puts the files of a box without a configuration in force again. Who could log
// in when this boot came to rescue can do so now, and nobody else.
func (p Place) Rescue(r Result) error {
	r.Format, r.State = format, Rescue
	// What cannot be read was not written: there was none.
	keys, _ := os.ReadFile(filepath.Join(p.Run, admittedKeys))
	password, _ := os.ReadFile(filepath.Join(p.Run, admittedPassword))
	return p.rescue(keys, string(password), r)
}

// admit remembers by what people may log in in rescue, for Rescue.
func (p Place) admit(keys []byte, password string) (err error) {
	for name, content := range map[string][]byte{admittedKeys: keys, admittedPassword: []byte(password)} {
		if len(content) == 0 {
			err = errors.Join(err, p.remove(name))
			continue
		}
		err = errors.Join(err, p.file(name, content, access{mode: 0o600}))
	}
	return err
}

// rescue does as much as can be done: whatever fails, the rest may let somebody in.
func (p Place) rescue(keys []byte, password string, r Result) error {
	err := p.remove(okFile) // first: it is what keeps the daemons from starting
	err = errors.Join(err, p.network(Tree{rescueFile: []byte(rescueNetwork)}), p.keys(keys), p.shadow(password))
	return errors.Join(err, p.units(nil), p.login(password == ""), p.say(issue(r, password != "", nics(p.Sys)), r))
}

// keys are those by which people may log in by ssh; empty: nobody.
func (p Place) keys(keys []byte) error {
	name := path.Join(ownDir, keysFile)
	if len(keys) == 0 {
		return p.remove(name)
	}
	return p.file(name, keys, access{mode: 0o600})
}

// network has the files of t in systemd-networkd's folder, and none that an
// earlier configuration had put there. Files of others stay.
func (p Place) network(t Tree) error {
	before, err := os.ReadFile(filepath.Join(p.Run, placedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("place network files: %w", err)
	}
	had := strings.Fields(string(before))
	all := slices.Compact(slices.Sorted(slices.Values(append(t.names(), had...))))
	// The list is written first, so that it never lacks a file that is there.
	err = p.file(placedFile, []byte(strings.Join(all, "\n")), access{mode: 0o644})
	if err != nil {
		return err
	}
	for _, name := range all {
		if _, ok := t[name]; !ok {
			err = errors.Join(err, p.remove(path.Join(networkDir, name)))
			continue
		}
		err = errors.Join(err, p.file(path.Join(networkDir, name), t[name], accessOf("network/"+name, nil, nil)))
	}
	if err != nil {
		return err
	}
	return p.file(placedFile, []byte(strings.Join(t.names(), "\n")), access{mode: 0o644})
}

// shadow gives root a password, or takes it away. A box that never had one keeps
// the file of the image.
func (p Place) shadow(hash string) error {
	_, err := os.Stat(filepath.Join(p.Run, shadowFile))
	if hash == "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(p.Etc, "shadow"))
	if err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	if hash == "" {
		hash = "*"
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if fields := strings.Split(line, ":"); fields[0] == "root" && len(fields) > 2 {
			fields[1] = hash
			line = strings.Join(fields, ":")
		}
		out.WriteString(line)
	}
	if was, err := os.ReadFile(filepath.Join(p.Run, shadowFile)); err == nil && string(was) == out.String() {
		return nil
	}
	if err := p.file(shadowFile, []byte(out.String()), access{"", "shadow", 0o640}); err != nil {
		return err
	}
	if err := p.System.Shadow(filepath.Join(p.Run, shadowFile)); err != nil {
		return errors.Join(err, p.remove(shadowFile)) // the next setup tries it again
	}
	return nil
}

// say tells what was done: to the console, and to the other programs.
func (p Place) say(text string, r Result) error {
	err := p.issueTo(text)
	b, jsonErr := marshal(r)
	return errors.Join(err, jsonErr, p.file(resultFile, b, access{mode: 0o644}))
}

// Issue is what the console shows; empty if all is well.
func (p Place) Issue() string {
	b, _ := os.ReadFile(filepath.Join(p.Run, issueFile))
	return string(b)
}

// file writes a file below Run, if it is not there with that content already.
func (p Place) file(name string, content []byte, a access) error {
	full := filepath.Join(p.Run, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return fmt.Errorf("place %s: %w", name, err)
	}
	tmp := full + ".new"
	os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("place %s: %w", name, err)
	}
	_, err = f.Write(content)
	if err == nil && os.Geteuid() == 0 {
		uid, gid := p.Owner(a.user, a.group)
		err = f.Chown(uid, gid)
	}
	if err = errors.Join(err, f.Chmod(a.mode), f.Close()); err == nil {
		err = p.swap(tmp, full, content)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("place %s: %w", name, err)
	}
	return nil
}

// swap renames tmp to full; what is the same stays as it is, with its time: what
// networkd reads again counts as changed.
func (p Place) swap(tmp, full string, content []byte) error {
	old, err := os.ReadFile(full)
	a, aErr := os.Stat(full)
	b, bErr := os.Stat(tmp)
	if err == nil && aErr == nil && bErr == nil && string(old) == string(content) && a.Mode() == b.Mode() {
		return os.Remove(tmp)
	}
	return os.Rename(tmp, full)
}

func (p Place) remove(name string) error {
	err := os.Remove(filepath.Join(p.Run, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
