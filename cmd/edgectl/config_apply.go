package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/setup"
	"github.com/catchment-dev/edge/image/setup/confirm"
)

// apply brings about an order whole, or leaves the box as it was.
func (c *configs) apply(ctx context.Context, in applyOrder) (out changed, err error) {
	unlock, err := c.store.Lock()
	if err != nil {
		return out, err
	}
	defer unlock()
	p, err := c.store.Pending()
	switch {
	case err != nil:
		return out, err
	case p != nil:
		return out, fmt.Errorf("generation %d waits to be confirmed: edgectl config confirm or revert first", p.To)
	}
	from, err := c.inForce()
	if err != nil {
		return out, err
	}
	m := move{from: from, to: state{source: in.source, tree: in.tree}}
	out.Notes = in.notes
	if !in.whole {
		out.Notes = append(out.Notes, m.keepParts()...)
	}
	var problems setup.Problems
	if m.to.config, problems = c.check(m.to.tree); len(problems) > 0 {
		return out, problems
	}
	if in.boot {
		// Before the change: if it has to be taken back, the next boot must not
		// make it again.
		if err := c.store.Taken(in.tree.Digest()); err != nil {
			return out, err
		}
	}
	if from.number != 0 && m.to.tree.Digest() == from.tree.Digest() {
		m.to = from
		notes, err := c.live.Apply(ctx, m)
		return changed{from.number, append(notes, "it was in force already"), time.Time{}}, err
	}
	m.to.number, err = c.store.Add(m.to.tree, m.to.config, setup.Generation{Source: in.source, Operator: true})
	if err != nil {
		return out, err
	}
	return c.change(ctx, m, in.within, out)
}

// change goes to a generation that is in the store, with a way back.
func (c *configs) change(ctx context.Context, m move, within time.Duration, out changed) (changed, error) {
	out.Generation = m.to.number
	p := setup.Pending{From: m.from.number, To: m.to.number, BootID: c.bootID, Within: within}
	if within > 0 {
		p.Deadline = c.now().Add(within)
		out.Confirm = p.Deadline
		out.Notes = append(out.Notes, c.watched(ctx, m, &p)...)
		// The way back is on the disk, and somebody walks it, before the first step.
		err := c.store.SetPending(&p)
		if err == nil {
			err = c.live.Guard(ctx)
		}
		if err != nil {
			return out, errors.Join(fmt.Errorf("%w; nothing was applied", err), c.store.SetPending(nil))
		}
	}
	if err := c.store.Switch(m.to.number); err != nil {
		// Half of it may be done. While that cannot be undone it goes on waiting.
		if backErr := c.store.Switch(m.from.number); backErr != nil {
			return out, fmt.Errorf("%w; and the way back failed: %v", err, backErr)
		}
		return out, errors.Join(err, c.store.SetPending(nil))
	}
	notes, err := c.live.Apply(ctx, m)
	out.Notes = append(out.Notes, notes...)
	if err != nil {
		return out, c.failed(ctx, m, p, err)
	}
	if within > 0 {
		return out, nil
	}
	if _, err := c.store.Confirm(); err != nil {
		return out, err
	}
	return out, c.store.Tidy(m.from.number)
}

// failed takes back a change that could not be brought about.
func (c *configs) failed(ctx context.Context, m move, p setup.Pending, why error) error {
	notes, err := c.goBack(ctx, m, p, line(why.Error()))
	if err != nil {
		return fmt.Errorf("apply generation %d: %w; and the way back failed: %v", m.to.number, why, err)
	}
	at := fmt.Sprintf("generation %d is in force again", m.from.number)
	if m.from.number == 0 {
		at = "the box is in rescue again"
	}
	return fmt.Errorf("apply generation %d: %w\n%s%s", m.to.number, why, at, bullets(notes))
}

func bullets(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	return "\n  " + strings.Join(notes, "\n  ")
}

// goBack is the whole way back. The change stays pending until it is done, so
// that one that is killed on the way is done again.
func (c *configs) goBack(ctx context.Context, m move, p setup.Pending, reason string) ([]string, error) {
	if err := c.store.Switch(m.from.number); err != nil {
		return nil, err
	}
	notes, err := c.live.Apply(ctx, m.back())
	if err != nil {
		return notes, err
	}
	return notes, c.store.Reverted(p, reason)
}

// inForce is the current generation. On a box that was not made from the image
// somebody may have edited the file: then that becomes a generation first, so
// that there is a way back to it.
func (c *configs) inForce() (state, error) {
	// What is broken must not stand in the way of a good one: on a box in rescue this
	// is the way out.
	n, err := c.store.Current()
	if err != nil {
		n = 0
	}
	s, err := c.generation(n)
	if err != nil {
		s = state{number: n}
	}
	found, err := c.store.Found()
	if err != nil || found == nil || found.Digest() == s.tree.Digest() {
		return s, err
	}
	s = state{source: "found", tree: found}
	s.config, _ = setup.CheckConfig(found)
	if s.number, err = c.store.Add(found, s.config, setup.Generation{Source: s.source, Operator: true}); err != nil {
		return state{}, err
	}
	return s, c.store.Switch(s.number)
}

// generation loads one; one that is broken has no config.
func (c *configs) generation(n int) (state, error) {
	if n == 0 {
		return state{}, nil
	}
	t, err := c.store.Load(n)
	if err != nil {
		return state{}, err
	}
	s := state{number: n, tree: t}
	s.config, _ = setup.CheckConfig(t)
	if g, err := c.store.Describe(n); err == nil {
		s.source = g.Source
	}
	return s, nil
}

// check judges a configuration as far as it is ours on this box.
func (c *configs) check(t setup.Tree) (*edge.Config, setup.Problems) {
	if !c.store.Plain() {
		return setup.Check(t)
	}
	cfg, problems := setup.CheckConfig(t)
	for name := range t {
		if name != "edge.yaml" {
			problems = append(problems, setup.Problem{File: name, Message: "this box was not made from the image: only edge.yaml is applied", Remedy: "put the file in its place yourself"})
		}
	}
	return cfg, problems
}

// partOf is the part of a configuration that a file belongs to.
func partOf(name string) string {
	part, _, folder := strings.Cut(name, "/")
	if folder {
		part += "/"
	}
	return part
}

// keepParts takes over from the generation in force what the new configuration
// does not have at all. It says what that was.
func (m *move) keepParts() []string {
	has, kept := map[string]bool{}, map[string]bool{}
	for name := range m.to.tree {
		has[partOf(name)] = true
	}
	m.to.tree = maps.Clone(m.to.tree)
	for name, content := range m.from.tree {
		if part := partOf(name); !has[part] {
			m.to.tree[name], kept[part] = content, true
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("kept from generation %d: %s", m.from.number, strings.Join(slices.Sorted(maps.Keys(kept)), ", "))}
}

// watched fills in what p is to be judged by: what there is now, and is to be
// there after the change as well.
func (c *configs) watched(ctx context.Context, m move, p *setup.Pending) (notes []string) {
	in := c.logins()
	facts := c.live.Look(ctx, confirm.Rules{SSH: in.at, Logins: in.watched, Others: in.others})
	p.Edged = facts.Edged
	for _, id := range facts.Established {
		if slices.ContainsFunc(m.to.config.Local.Speaker.Peers, func(q edge.Peer) bool { return string(q.ID) == id }) {
			p.Peers = append(p.Peers, id)
		}
	}
	for _, at := range facts.SSH {
		if leaves(m, at) {
			notes = append(notes, fmt.Sprintf("%s is not in the new configuration: log in by another address to confirm", at))
			continue
		}
		p.SSH = append(p.SSH, at)
	}
	for _, name := range facts.Open {
		// One that hangs already is lost by nothing that is done now.
		l, ok := connOf(name)
		if ok && slices.Contains(p.SSH, l.local.String()) && !slices.Contains(facts.Stuck, name) && !slices.Contains(facts.NoRoute, name) {
			p.Logins, p.Others = append(p.Logins, name), in.others
		}
	}
	if len(p.SSH) == 0 {
		notes = append(notes, "nobody is logged in by ssh on an address that stays: sshd is not watched")
	}
	return notes
}

// leaves says that the network files had an address and are to have it no more:
// then it is no loss.
func leaves(m move, at string) bool {
	addr, err := netip.ParseAddrPort(at)
	return err == nil && hasAddress(m.from.tree, addr.Addr()) && !hasAddress(m.to.tree, addr.Addr())
}

func hasAddress(t setup.Tree, a netip.Addr) bool {
	for name, content := range t {
		if !strings.HasSuffix(name, ".network") {
			continue
		}
		for text := range strings.Lines(string(content)) {
			key, value, _ := strings.Cut(text, "=")
			p, err := netip.ParsePrefix(strings.TrimSpace(value))
			if err == nil && strings.TrimSpace(key) == "Address" && p.Addr() == a {
				return true
			}
		}
	}
	return false
}

// confirm keeps the change that is pending. It returns the generation in force.
func (c *configs) confirm() (int, error) {
	unlock, err := c.store.Lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	p, err := c.store.Pending()
	if err != nil {
		return 0, err
	}
	now, err := c.store.Current()
	if err != nil {
		return 0, err
	}
	r := c.store.State().Reverted
	switch {
	case p != nil && p.To != now:
		return 0, fmt.Errorf("generation %d is being taken back: edgectl config show says why", p.To)
	case p == nil && r != nil && r.To == now:
		return 0, fmt.Errorf("nothing waits to be confirmed: generation %d was taken back at %s: %s", r.From, r.Time.Format(time.DateTime), r.Reason)
	case now == 0:
		return 0, errors.New("there is no configuration to confirm")
	}
	n, err := c.store.Confirm()
	if err == nil {
		err = c.store.Tidy()
	}
	return n, err
}

// revert takes back the change that is pending, or goes to generation to.
func (c *configs) revert(ctx context.Context, to int, by string) (out changed, err error) {
	unlock, err := c.store.Lock()
	if err != nil {
		return out, err
	}
	defer unlock()
	p, err := c.store.Pending()
	if err != nil {
		return out, err
	}
	if p != nil {
		if to != 0 && to != p.From {
			return out, fmt.Errorf("generation %d waits to be confirmed: edgectl config confirm or revert first", p.To)
		}
		return c.takeBack(ctx, *p, "by "+by)
	}
	from, err := c.inForce()
	switch {
	case err != nil:
		return out, err
	case to == 0:
		return out, errors.New("nothing waits to be confirmed: name a generation; edgectl config show lists them")
	case to == from.number:
		return out, fmt.Errorf("generation %d is in force already", to)
	}
	m := move{from: from}
	if m.to, err = c.generation(to); err != nil {
		return out, err
	}
	var problems setup.Problems
	if m.to.config, problems = c.check(m.to.tree); len(problems) > 0 {
		return out, problems
	}
	return c.change(ctx, m, 0, out)
}

// takeBack goes back from a pending change. The lock is held.
func (c *configs) takeBack(ctx context.Context, p setup.Pending, reason string) (out changed, err error) {
	var m move
	if m.from, err = c.generation(p.From); err != nil {
		return out, err
	}
	if m.to, err = c.generation(p.To); err != nil {
		m.to = state{number: p.To} // that one is not needed any more
	}
	out.Generation = p.From
	out.Notes, err = c.goBack(ctx, m, p, reason)
	return out, err
}
