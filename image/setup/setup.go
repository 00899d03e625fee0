// Package setup turns what an operator gives a box into its configuration: it
// finds the sources (systemd credentials, a volume labelled EDGECFG, NoCloud),
// judges all of them before anything uses them, keeps each good one as a
// generation in /var/lib/edge-config, and puts the current one in force; or
// brings the box up in rescue, where it can be reached and announces nothing.
//
// It never starts or stops a daemon, never opens a network connection, and never
// writes a secret into a log, a result or a message. edgectl runs it: once a
// boot as edge-setup.service, and for `edgectl config`.
package setup

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/catchment-dev/edge"
)

// The states of a box after its setup.
const (
	// OK: a configuration is in force. Errors then tell of a newer one that was
	// not taken.
	OK = "ok"
	// Rescue: there is no configuration that can be used.
	Rescue = "rescue"
	// Unconfigured: nobody has given one yet. The box is reached as in rescue.
	Unconfigured = "unconfigured"
)

// Result is what a setup has come to: /run/edge-setup/result.json.
type Result struct {
	Format int    `json:"format"`
	State  string `json:"state"`
	// Source is where the configuration in force came from, for people.
	Source     string `json:"source,omitempty"`
	Generation int    `json:"generation"`
	Version    string `json:"version"`
	// Errors are a line each, with place and remedy; Notes need nobody's hand.
	Errors []string `json:"errors"`
	Notes  []string `json:"notes,omitempty"`
}

// Options are the world of a setup.
type Options struct {
	// Store is nil if /var cannot be used; NoStore says why then.
	Store   *Store
	NoStore string
	// Credentials are folders of systemd credentials, the first counts most.
	Credentials []string
	Volumes     Volumes
	Place       Place
	Version     string
	BootID      string
}

// boot is one setup while it runs.
type boot struct {
	o      Options
	result Result
	// keys and password are what a box in rescue lets people in by.
	keys     []byte
	password string
}

// Boot does all of a setup: it settles what was pending, takes a source that is
// new, and puts the current generation in force, or rescue. It may be run again
// at any time and then changes nothing that is as it should be. The error says
// that not even rescue could be put in force.
func Boot(o Options) (Result, error) {
	b := &boot{o: o, result: Result{Format: format, Version: o.Version, Errors: []string{}}}
	volumes := o.Volumes
	if o.Store != nil {
		b.attempt("settle what was pending", b.settle)
		b.attempt("see whether volumes count", func() {
			if b.closed() {
				volumes = closed{volumes}
			}
		})
	}
	found := b.gather(volumes)
	if err := o.Place.remember(found); err != nil {
		b.note("%v", err)
	}
	b.result.Notes = append(b.result.Notes, found.notes...)
	if o.Store == nil {
		b.fail("the box has no disk for its configuration: %s", o.NoStore)
		return b.rescue(found)
	}
	t, ok := b.decide(found)
	if _, shut := volumes.(closed); shut && !ok && !found.ok {
		// No configuration can be used, so none forbids a volume.
		if found = b.gather(o.Volumes); found.ok {
			b.result.Notes = append(b.result.Notes, found.notes...)
			t, ok = b.decide(found)
		}
	}
	if !ok {
		return b.rescue(found)
	}
	b.result.Notes = append(b.result.Notes, Warnings(t)...)
	b.result.State = OK
	err := o.Place.good(t, &b.result)
	return b.result, err
}

// decide takes a source that holds anything, and returns the generation in force.
func (b *boot) decide(found source) (t Tree, ok bool) {
	if found.ok {
		b.attempt("take "+found.name, func() { b.take(found) })
	}
	b.attempt("judge the generation in force", func() { t, ok = b.current() })
	return t, ok
}

// gather reads the sources, and remembers by what people may log in.
func (b *boot) gather(volumes Volumes) (found source) {
	b.attempt("read the sources", func() {
		found = gather(b.o.Place.given(b.o.Credentials), volumes)
		b.letIn(found.tree)
	})
	return found
}

// closed says that the generation that is going to be in force forbids to look at
// volumes, and notes those that were left alone.
func (b *boot) closed() bool {
	s := b.o.Store
	cur, err := s.Current()
	if err != nil || cur == 0 {
		return false
	}
	c := s.usable(cur)
	if good := s.LastGood(); c == nil && good != 0 {
		c = s.usable(good) // see current
	}
	if c == nil || c.Local.ConfigVolumes != edge.VolumesInRescue {
		return false
	}
	for _, label := range []string{configLabel, noCloudLabel} {
		devices, err := b.o.Volumes.Find(label)
		if err == nil && len(devices) > 0 {
			b.note("volume %s on %s was not looked at: node.config_volumes is %s", label, strings.Join(devices, ", "), edge.VolumesInRescue)
		}
	}
	return true
}

func (b *boot) fail(format string, args ...any) {
	b.result.Errors = append(b.result.Errors, fmt.Sprintf(format, args...))
}

// attempt runs f, which reads what others have written. A fault of ours on the way is
// one more error: it must not leave the box neither configured nor in rescue.
func (b *boot) attempt(what string, f func()) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			b.fail("%s: a fault of this version: %v", what, p)
		default: // its text may be of a secret
			b.fail("%s: a fault of this version (%T)", what, p)
		}
	}()
	f()
}

func (b *boot) note(format string, args ...any) {
	b.result.Notes = append(b.result.Notes, fmt.Sprintf(format, args...))
}

// letIn remembers by what people may log in in rescue: the first that has
// something counts.
func (b *boot) letIn(t Tree) {
	if len(b.keys) == 0 {
		b.keys, _ = checkKeys(t[keysFile])
	}
	if b.password == "" {
		b.password, _ = checkPassword(t[passwordFile])
	}
}

// settle ends what an earlier boot has left open. A change that nobody had
// confirmed when the box went down is taken back, and so is one that was made by
// a version that was never good, where one is back that was: it belongs to an
// upgrade that failed. One that an earlier boot of this version has made stays.
func (b *boot) settle() {
	s := b.o.Store
	p, err := s.Pending()
	if err != nil { // half a file is no reason to stay down
		b.note("%v: it is forgotten", err)
		p, err = nil, s.SetPending(nil)
		// Nobody has confirmed what it was about.
		if cur, curErr := s.Current(); curErr == nil && s.LastGood() != 0 && s.LastGood() != cur {
			p = &Pending{From: s.LastGood(), To: cur}
		}
	}
	if err == nil && p != nil && p.BootID != b.o.BootID {
		err = b.takeBack(*p, "the box was restarted before anybody had confirmed it")
	}
	good := s.State().Good
	if t := s.trial(); err == nil && t != nil && t.Version != b.o.Version && good[t.Version] == 0 && t.From != 0 && good[b.o.Version] == t.From {
		why := fmt.Sprintf("version %s had made it, which was rolled back to %s", t.Version, b.o.Version)
		if err = b.takeBack(Pending{From: t.From, To: t.To}, why); err == nil {
			err = s.forget(trialFile)
		}
	}
	if err != nil {
		b.fail("%v", err)
	}
}

func (b *boot) takeBack(p Pending, why string) error {
	b.note("generation %d was taken back: %s", p.To, why)
	return b.o.Store.Revert(p, why)
}

// take makes a generation of a source that is new and good.
func (b *boot) take(found source) {
	s := b.o.Store
	cur := b.held()
	digest := found.tree.Digest()
	if st := s.State(); len(found.problems) == 0 && st.Taken == digest && cur != 0 {
		return
	}
	if g, err := s.Describe(cur); len(found.problems) == 0 && cur != 0 && err == nil && g.Digest == digest {
		b.taken(digest) // the box went down between the two
		return
	}
	c, problems := Check(found.tree)
	problems = slices.Concat(found.problems, problems)
	if len(problems) > 0 {
		for _, line := range problems.Lines() {
			b.fail("%s: %s", found.name, line)
		}
		return
	}
	if err := b.adopt(found, c, cur); err != nil {
		b.fail("%v", err)
		return
	}
	b.taken(digest)
}

// held is the generation in force; 0 if there is none, or if the disk has lost it and
// the one with which this version was good before: then the source is what is left.
func (b *boot) held() int {
	s := b.o.Store
	cur, err := s.Current()
	if err != nil {
		b.note("%v", err)
		return 0
	}
	if good := s.State().Good[b.o.Version]; cur == 0 || !s.lost(cur) || good != 0 && !s.lost(good) {
		return cur
	}
	b.note("generation %d is not on the disk any more", cur)
	return 0
}

// adopt makes the source the current generation. Until a good boot has confirmed
// it, an older version that comes back goes on with what it had.
func (b *boot) adopt(found source, c *edge.Config, cur int) error {
	s := b.o.Store
	n, err := s.Add(found.tree, c, Generation{Source: found.name})
	if err != nil {
		return err
	}
	if cur != 0 {
		if err := s.setTrial(trial{From: cur, To: n}); err != nil {
			return err
		}
	}
	if err := s.Switch(n); err != nil {
		return err
	}
	b.note("generation %d was made from %s", n, found.name)
	return s.Tidy(cur)
}

func (b *boot) taken(digest string) {
	if err := b.o.Store.Taken(digest); err != nil {
		b.fail("%v", err)
	}
}

// usable is the configuration of generation n; nil if this version cannot use it.
func (s *Store) usable(n int) *edge.Config {
	t, err := s.Load(n)
	if err != nil {
		return nil
	}
	c, problems := Check(t)
	if len(problems) > 0 {
		return nil
	}
	return c
}

// current loads and judges the current generation. If this version cannot use
// it, that with which it was good before is taken. A version that was never good
// with any is not helped so: its boot is to fail, and the version before to come
// back with the generation that it left.
func (b *boot) current() (Tree, bool) {
	s := b.o.Store
	n, err := s.Current()
	if err != nil {
		b.fail("%v", err)
	}
	if n == 0 {
		return nil, false
	}
	t, bad := b.judge(n)
	if bad == nil {
		return t, true
	}
	for _, line := range bad.Lines() {
		b.fail("generation %d: %s", n, line)
	}
	b.letIn(t)
	good := s.State().Good[b.o.Version]
	if good == 0 || good == n {
		return nil, false
	}
	t, bad = b.judge(good)
	if bad != nil {
		return nil, false
	}
	if err := s.Switch(good); err != nil {
		b.fail("%v", err)
		return nil, false
	}
	b.fail("generation %d is in force in its place, with which this version was good before", good)
	return t, true
}

// judge loads generation n, which is the one of the result then.
func (b *boot) judge(n int) (Tree, Problems) {
	t, err := b.o.Store.Load(n)
	if err != nil {
		return t, Problems{{Message: err.Error()}}
	}
	if _, problems := Check(t); len(problems) > 0 {
		return t, problems
	}
	g, err := b.o.Store.Describe(n)
	if err != nil {
		b.note("%v", err)
	}
	b.result.Generation, b.result.Source = n, g.Source
	return t, nil
}

// rescue puts a box in force that can be reached and does nothing else.
func (b *boot) rescue(found source) (Result, error) {
	b.result.State = Rescue
	if len(b.result.Errors) == 0 && !found.ok {
		b.result.State = Unconfigured
	}
	return b.result, errors.Join(b.o.Place.admit(b.keys, b.password), b.o.Place.rescue(b.keys, b.password, b.result))
}

// String is the result in one line, for the log.
func (r Result) String() string {
	out := "configuration: " + r.State
	if r.Generation > 0 {
		out += fmt.Sprintf(", generation %d from %s", r.Generation, r.Source)
	}
	if len(r.Errors) > 0 {
		out += "; " + strings.Join(r.Errors, "; ")
	}
	return out
}
