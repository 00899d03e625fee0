package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/image/setup"
)

// runningBox is the liveConfig of a box with systemd.
type runningBox struct {
	o     *options
	place setup.Place
	// plain says that the box was not made from the image: its network, users and
	// firewall are not ours.
	plain bool
	// version is that of the image, for what is shown.
	version string
	// run runs a program of the system and returns what it said.
	run func(ctx context.Context, name string, args ...string) (string, error)
}

// The units of the daemons, in the order in which they are started.
func daemonUnits() []string { return []string{"edged.service", "edgeproxy.service", "edgebgp.service"} }

// settleWithin is how long a daemon has to go by what it was told.
const settleWithin = time.Minute

// Apply implements liveConfig.
func (b *runningBox) Apply(ctx context.Context, m move) (notes []string, err error) {
	if b.plain {
		return b.daemons(ctx, m)
	}
	r := setup.Result{Version: b.version, Generation: m.to.number, Source: m.to.source}
	if m.to.number == 0 {
		r.Errors = []string{"the configuration was taken back, and there is none before it"}
		err = b.place.Rescue(r)
	} else {
		r, err = b.place.Good(m.to.tree, r)
		notes = append(r.Errors, setup.Warnings(m.to.tree)...)
	}
	if err == nil {
		var more []string
		more, err = b.units(ctx, m)
		notes = append(notes, more...)
	}
	if err != nil {
		return notes, err
	}
	more, err := b.network(ctx, m)
	if notes = append(notes, more...); err != nil {
		return notes, err
	}
	// Before edged is told, what is to be let in is let in. Not "start": that would be
	// content with a run that has begun before, and has read what was before.
	if _, err := b.run(ctx, "systemctl", "restart", "edge-firewall.service"); err != nil {
		return notes, fmt.Errorf("host firewall: %w", err)
	}
	notes = append(notes, b.tune(ctx, m)...)
	more, err = b.daemons(ctx, m)
	return append(notes, more...), err
}

// tune sets the uplinks, before edged comes to them. What cannot be set makes
// edged slower and does not stop it.
func (b *runningBox) tune(ctx context.Context, m move) []string {
	if m.to.config == nil || m.from.config != nil && slices.Equal(m.from.config.Local.Forwarder.Interfaces, m.to.config.Local.Forwarder.Interfaces) {
		return nil
	}
	if _, err := b.run(ctx, "systemctl", "restart", "edge-tune.service"); err != nil {
		return []string{line(err.Error())}
	}
	return []string{"the uplinks were set anew"}
}

// units asks systemd whether it takes the settings of units. One that it refuses goes on
// as it is, and is not started at the next boot: with sshd nobody would come in any more.
// What was in force once is gone back to whatever it says.
func (b *runningBox) units(ctx context.Context, m move) (notes []string, err error) {
	for _, unit := range setup.ChangedUnits(m.from.tree, m.to.tree) {
		state, err := b.run(ctx, "systemctl", "show", "-P", "LoadState", unit)
		if state = strings.TrimSpace(state); err != nil || state != "bad-setting" && state != "error" {
			continue
		}
		why := fmt.Errorf("systemd refuses %s with these settings, and would not start it at the next boot: systemctl status %s says why", unit, unit)
		if m.to.number > m.from.number {
			return notes, why
		}
		notes = append(notes, why.Error())
	}
	return notes, nil
}

// network has networkd read its files again if they are others.
func (b *runningBox) network(ctx context.Context, m move) (notes []string, err error) {
	of := func(t setup.Tree) setup.Tree {
		t = maps.Clone(t)
		maps.DeleteFunc(t, func(name string, _ []byte) bool { return !strings.HasPrefix(name, "network/") })
		return t
	}
	was, now := of(m.from.tree), of(m.to.tree)
	if was.Digest() == now.Digest() && m.from.number != 0 && m.to.number != 0 {
		return nil, nil
	}
	if _, err := b.run(ctx, "networkctl", "reload"); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if path.Ext(name) != ".network" && string(was[name]) != string(now[name]) {
			notes = append(notes, name+" counts from the next boot on")
		}
	}
	return append(notes, "the network was set anew"), nil
}

// daemons has edged, and by it the others, go by the configuration.
func (b *runningBox) daemons(ctx context.Context, m move) (notes []string, err error) {
	switch {
	case m.to.config == nil && b.plain:
		return []string{"there is no configuration any more: the daemons go on with the one they have"}, nil
	case m.to.config == nil:
		units := daemonUnits()
		slices.Reverse(units) // edgebgp first: it withdraws
		if _, err := b.run(ctx, "systemctl", append([]string{"stop"}, units...)...); err != nil {
			return nil, fmt.Errorf("stop daemons: %w", err)
		}
		// What they still served until now need not be let in any more.
		if _, err := b.run(ctx, "systemctl", "restart", "edge-firewall.service"); err != nil {
			return nil, fmt.Errorf("host firewall: %w", err)
		}
		return []string{"the daemons were stopped"}, nil
	case m.from.config == nil && !b.plain:
		return b.start(ctx, m.to.config, "start", daemonUnits()...)
	}
	if notes, err = b.reload(ctx, m.to.config); err != nil {
		return notes, err
	}
	units := setup.ChangedUnits(m.from.tree, m.to.tree)
	if b.plain {
		units = nil
	}
	notes = append(notes, unitNotes(units)...)
	again := seed(m.from) != seed(m.to)
	if again {
		notes = append(notes, "the seed of the ring is another: every node needs the same")
	}
	if slices.Contains(units, "edgeproxy.service") {
		if _, err := b.run(ctx, "systemctl", "restart", "edgeproxy.service"); err != nil {
			return notes, fmt.Errorf("restart edgeproxy: %w", err)
		}
		notes = append(notes, "edgeproxy was restarted")
	}
	if again || slices.Contains(units, "edged.service") {
		more, err := b.start(ctx, m.to.config, "restart", "edged.service")
		return append(notes, more...), err
	}
	return notes, nil
}

// unitNotes say of units that have other settings what was done about it. Restarting
// edgebgp withdraws: it is left to people, and the others have done what they are for.
func unitNotes(units []string) (notes []string) {
	for _, unit := range units {
		switch unit {
		case "edged.service", "edgeproxy.service":
		case "edgebgp.service":
			notes = append(notes, "the settings of edgebgp.service count from its next start: systemctl restart edgebgp, which withdraws before it ends")
		case "edge-leave.service", "edge-tune.service":
			notes = append(notes, "the settings of "+unit+" count from its next start")
		default:
			notes = append(notes, unit+" was started again")
		}
	}
	return notes
}

// seed is the content of the ring's seed, which edged reads at its start only.
func seed(s state) string {
	if s.config == nil {
		return ""
	}
	return string(s.tree[strings.TrimPrefix(s.config.Fleet.RingSeedFile, setup.Root+"/")])
}

// What edged and edgeproxy say when only a new process can make a change. A test
// looks for the words where they are written.
const (
	wantsEdged = "needs a restart of edged"
	wantsProxy = "needs a restart of edgeproxy"
)

// reload is edgectl reload, with a restart of what cannot do without one.
func (b *runningBox) reload(ctx context.Context, c *edge.Config) (notes []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	restarted := false
	for {
		var out struct {
			Changes []string `json:"changes"`
		}
		err := b.o.call(ctx, "POST", "/v1/reload", nil, &out)
		no := refusal{}
		switch {
		case err == nil:
			return append(notes, out.Changes...), nil
		case !errors.As(err, &no):
			return b.silent(ctx, c, err)
		case strings.Contains(no.Error(), wantsEdged):
			more, err := b.start(ctx, c, "restart", "edged.service")
			return append(append(notes, line(no.Error())), more...), err
		case strings.Contains(no.Error(), wantsProxy) && !restarted:
			restarted = true
			if _, err := b.run(ctx, "systemctl", "restart", "edgeproxy.service"); err != nil {
				return notes, fmt.Errorf("restart edgeproxy: %w", err)
			}
			notes = append(notes, "edgeproxy was restarted: "+line(no.Error()))
		case !passing(no.Error()) && !restarted:
			return notes, fmt.Errorf("edged refuses the configuration: %w", no)
		}
		if !pause(ctx, time.Second) {
			return notes, fmt.Errorf("edged refuses the configuration: %w", no)
		}
	}
}

// passing says that a refusal is of the moment: edged or edgebgp has just started.
func passing(text string) bool {
	return strings.Contains(text, "try again in a moment") || strings.Contains(text, "has not yet said") || strings.Contains(text, "reload again")
}

// silent is an edged that does not answer: on the image it is to run. Elsewhere
// somebody may have stopped it, and it reads the file when it is started.
func (b *runningBox) silent(ctx context.Context, c *edge.Config, why error) ([]string, error) {
	if b.plain {
		return []string{line(why.Error()), "it reads the configuration when it is started"}, nil
	}
	return b.start(ctx, c, "restart", "edged.service")
}

// start starts or restarts units and waits until edged goes by c.
func (b *runningBox) start(ctx context.Context, c *edge.Config, verb string, units ...string) ([]string, error) {
	if _, err := b.run(ctx, "systemctl", append([]string{verb}, units...)...); err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, strings.Join(units, ", "), err)
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for {
		st, err := b.status(ctx)
		if err == nil && st.ConfigHash == c.Hash {
			return []string{fmt.Sprintf("%s: %sed; nothing was withdrawn by it", strings.Join(units, ", "), verb)}, nil
		}
		if !pause(ctx, 250*time.Millisecond) {
			return nil, fmt.Errorf("edged was %sed and does not go by the configuration within %s: journalctl -u edged says why", verb, settleWithin)
		}
	}
}

// status asks edged, which answers at once or is in trouble.
func (b *runningBox) status(ctx context.Context) (st edge.SystemStatus, err error) {
	quick := *b.o
	quick.timeout = min(quick.timeout, 900*time.Millisecond)
	err = quick.call(ctx, "GET", "/v1/status", nil, &st)
	return st, err
}

// pause waits; false: there is no time left for it.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
