package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// exitCode is that of an edgectl that said no; 0: it did not.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// drainAndWait drains a box that may leave: edgectl returns when nothing of it is on
// the air any more, and nothing is served.
func (s *siege) drainAndWait(ctx context.Context, b *lab.Box) error {
	start := time.Now()
	out, err := b.Ctl(ctx, "drain", "--wait", "2m", "--reason", "new disk")
	if err != nil {
		return fmt.Errorf("drain --wait: %w: %s", err, out)
	}
	now, err := s.session(ctx, b)
	if err != nil {
		return err
	}
	st, err := b.Status(ctx)
	if err != nil {
		return err
	}
	here, err := vipsOf(ctx, b)
	if err != nil {
		return err
	}
	s.Say("%s: drain --wait is back after %.1f s: %s", b.Name(), time.Since(start).Seconds(), strings.TrimSpace(out))
	if !now.Established || now.Paths > 0 || len(here) > 0 || len(st.Forwarder.Services) > 0 {
		return fmt.Errorf("drain --wait of %s is back, but its session is %+v, lo has %v, the forwarder %d services", b.Name(), now, here, len(st.Forwarder.Services))
	}
	return nil
}

// force: c1 is drained, so that b1 may not leave. Its operator is told so, is not
// taken for serious without a reason, and then does it anyhow: of which every box
// tells, and of which there is an end.
func (s *siege) force(ctx context.Context) error {
	box := s.Lab.Boxes["b1"]
	before, err := s.session(ctx, box)
	if err != nil {
		return err
	}
	const reason = "it eats packets, see INC-7"
	_, err = box.Ctl(ctx, "drain", "--wait", "12s", "--reason", "power")
	if exitCode(err) != 1 || !strings.Contains(err.Error(), "not drained within 12s") || !strings.Contains(err.Error(), "1 of 2 other sites promised to stay") || !strings.Contains(err.Error(), "c1: ") {
		return fmt.Errorf("drain --wait: %w; want exit code 1 and why not", err)
	}
	s.Say("refused: %v", err)
	if err := s.stays(ctx, box, before); err != nil {
		return err
	}
	_, err = box.Ctl(ctx, "drain", "--force")
	if exitCode(err) != 2 || !strings.Contains(err.Error(), "--reason TEXT is needed") {
		return fmt.Errorf("drain --force without a reason: %w; want exit code 2", err)
	}
	if err := s.stays(ctx, box, before); err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "drain", lab.Prefix4.String(), "--force", "--reason", reason); err != nil {
		return fmt.Errorf("drain --force: %w: %s", err, out)
	}
	if err := s.holds(ctx, box, 1); err != nil {
		return err
	}
	for _, b := range s.boxes() {
		if err := s.onRecord(ctx, b, reason); err != nil {
			return err
		}
	}
	// The last site serves all.
	a, err := s.Lab.Clients["client-b"].Get(ctx, story.URL, lab.Way{})
	if err != nil || a.Site != "a" {
		return fmt.Errorf("client-b is served by %+v, %w", a, err)
	}
	return s.forceTooMany(ctx, box)
}

// onRecord wants a box to tell what was forced out at b1: in its history, its log,
// its alarms; b1 itself in its decisions too.
func (s *siege) onRecord(ctx context.Context, b *lab.Box, reason string) error {
	return story.Until(ctx, b.Name()+" tells that b1 was forced out", func() error {
		var past edge.Events
		if err := b.Ask(ctx, lab.Control, "/v1/history", &past); err != nil {
			return err
		}
		if !slices.ContainsFunc(past.Events, func(e edge.Event) bool {
			return e.Kind == "force" && strings.Contains(e.Subject, lab.Prefix4.String()) && strings.Contains(e.Evidence, reason)
		}) {
			return errors.New("its history does not")
		}
		st, err := b.Status(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Alarms, func(a string) bool {
			return strings.HasPrefix(a, lab.Prefix4.String()+" was forced off the air at b1")
		}) {
			return fmt.Errorf("its alarms do not: %v", st.Alarms)
		}
		if n, err := metric(ctx, b, "edge_alarms"); err != nil || n == "0" {
			return fmt.Errorf("the metric of its alarms is %q, %w", n, err)
		}
		log, err := os.ReadFile(b.Daemon(lab.Control).LogPath())
		if err != nil || !strings.Contains(string(log), "kind=force") || !strings.Contains(string(log), reason) {
			return fmt.Errorf("its log does not, %w", err)
		}
		if b.Name() != "b1" {
			return nil
		}
		out, err := b.Ctl(ctx, "guard", "decisions")
		if err != nil || !strings.Contains(out, "forced: "+reason) {
			return fmt.Errorf("edgectl guard decisions does not, %w: %s", err, out)
		}
		return nil
	})
}

// forceTooMany gives b1 ten prefixes more, and forces all out: of the twelve one has
// been, nine more may be, and two stay and wait for a permit.
func (s *siege) forceTooMany(ctx context.Context, b *lab.Box) error {
	yaml, err := b.Config()
	if err != nil {
		return err
	}
	last := fmt.Sprintf("    - {prefix: \"%s\", min_sites: 2}\n", lab.Prefix6)
	more := last
	var added []netip.Prefix
	for i := range edge.FreeLeaves {
		added = append(added, netip.MustParsePrefix(fmt.Sprintf("2001:db8:2%02d::/48", i)))
		more += fmt.Sprintf("    - {prefix: \"%s\", min_sites: 2}\n", added[i])
	}
	if !strings.Contains(yaml, last) {
		return errors.New("the configuration has no such line")
	}
	if err := b.Configure(strings.Replace(yaml, last, more, 1)); err != nil {
		return err
	}
	if out, err := b.Ctl(ctx, "undrain"); err != nil {
		return fmt.Errorf("undrain: %w: %s", err, out)
	}
	if out, err := b.Ctl(ctx, "reload"); err != nil {
		return fmt.Errorf("reload: %w: %s", err, out)
	}
	onAir := func(want int) error {
		return story.Until(ctx, fmt.Sprintf("b1 has %d prefixes on the air", want), func() error {
			st, err := b.Status(ctx)
			n := 0
			for _, d := range st.Decisions {
				if d.Rung.OnAir() {
					n++
				}
			}
			if err == nil && n != want {
				err = fmt.Errorf("it has %d: %+v", n, st.Decisions)
			}
			return err
		})
	}
	if err := onAir(edge.FreeLeaves + 1); err != nil { // all but the one that is drained
		return err
	}
	_, err = b.Ctl(ctx, "drain", "--force", "--reason", "all of it")
	if exitCode(err) != 1 || !strings.Contains(err.Error(), fmt.Sprintf("%d prefixes have been forced out within 10m0s, which is all that may; the next at ", edge.FreeLeaves)) {
		return fmt.Errorf("drain --force of too many: %w; want exit code 1 and the limit", err)
	}
	s.Say("refused: %v", err)
	if err := onAir(2); err != nil {
		return err
	}
	return s.holds(ctx, b, 0)
}
