package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"
)

// breaks goes to a version that is broken in a way: the box has to come back by
// itself, to say why, and to refuse the version from then on.
func breaks(f fault) func(context.Context, *testing.T, *lane) error {
	return func(ctx context.Context, t *testing.T, l *lane) error {
		return l.withStaged(ctx, func(b *box) error {
			ctx, cancel := within(ctx, 3*bootLimit)
			defer cancel()
			mark := b.Console.Mark()
			start := time.Now()
			if err := b.reboots(ctx, "upgrade --tries 1 --wait 2m "+from(f.version)); err != nil {
				return err
			}
			t.Logf("%5.1f s  written, drained, rebooting", time.Since(start).Seconds())
			mark, err := b.mustBoot(ctx, mark, f.version, "b")
			if err != nil {
				return err
			}
			t.Logf("%5.1f s  %s boots", time.Since(start).Seconds(), f.version)
			wait, stop := within(ctx, bootLimit)
			defer stop()
			m, _, err := b.Console.Await(wait, mark, verified)
			if err != nil {
				return err
			}
			if m[1] != l.version || m[2] != "a" {
				return fmt.Errorf("after %s, version %s of slot %s boots", f.version, m[1], m[2])
			}
			t.Logf("%5.1f s  %s boots again", time.Since(start).Seconds(), l.version)
			if err := errors.Join(b.announced(ctx), b.guest.await(ctx)); err != nil {
				return err
			}
			t.Logf("%5.1f s  announced by %s again", time.Since(start).Seconds(), l.version)
			return b.tellsOf(ctx, f)
		})
	}
}

// tellsOf looks whether the box says which version has failed, on which check, and
// whether it refuses it.
func (b *box) tellsOf(ctx context.Context, f fault) error {
	version, check := regexp.QuoteMeta(f.version), regexp.QuoteMeta(f.check)
	for _, c := range []struct{ command, want string }{
		{"cat /run/motd.d/edge", version + `[^\n]*check ` + check},
		{"cat /run/edge-image/metrics.prom", `(?m)^edge_boot_rollback_total\{from="` + version + `",reason="` + check + `"\} 1$`},
		{"journalctl -b --no-pager -o cat -u edge-health", version + `[^\n]*check ` + check},
		{"curl -s http://127.0.0.1:9180/metrics || python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://127.0.0.1:9180/metrics\").read().decode())'",
			`edge_boot_rollback_total\{from="` + version + `"`},
		{"edgectl status", version},
		{"edgectl slots", version + `.*failed`},
	} {
		if _, err := b.holds(ctx, c.command, regexp.MustCompile(c.want)); err != nil {
			return err
		}
	}
	if err := b.undrained(ctx); err != nil {
		return err
	}
	if err := b.mountPayloads(ctx); err != nil {
		return err
	}
	return b.refuses(ctx, "edgectl upgrade "+from(f.version), regexp.MustCompile(version+` is refused`))
}

// fullDisk has no room for an update, first in /var, then in the EFI partition: it is
// refused, nothing changes, and the box goes on announcing.
func fullDisk(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		ctx, cancel := within(ctx, 2*bootLimit)
		defer cancel()
		before, err := b.esp(ctx)
		if err != nil {
			return err
		}
		noRoom := regexp.MustCompile(`(?i)free|room|space`)
		for _, place := range []struct{ fill, empty string }{
			// All but 40 MB; and then what is left while it is fetched.
			{"fallocate -l $(( ($(df --output=avail -B1M /var | tail -1) - 40) * 1048576 )) /var/fill", "rm /var/fill"},
			{"dd if=/dev/zero of=/efi/fill bs=1M status=none; sync; test -s /efi/fill", "rm /efi/fill && sync"},
		} {
			if _, err := b.runs(ctx, place.fill); err != nil {
				return err
			}
			filled, err := b.esp(ctx)
			if err != nil {
				return err
			}
			if err := b.refuses(ctx, "edgectl upgrade --stage-only "+l.overHTTPS(goodVersion), noRoom); err != nil {
				return err
			}
			if after, err := b.esp(ctx); err != nil || after != filled {
				return fmt.Errorf("the EFI partition had %q and has %q, %w", filled, after, err)
			}
			if _, err := b.runs(ctx, place.empty); err != nil {
				return err
			}
			if err := errors.Join(b.announced(ctx), b.serves(ctx)); err != nil {
				return err
			}
		}
		if after, err := b.esp(ctx); err != nil || after != before {
			return fmt.Errorf("the EFI partition had %q and has %q, %w", before, after, err)
		}
		return nil
	})
}

// wrongSignatures are payloads that nobody may boot.
func wrongSignatures(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		if err := b.mountPayloads(ctx); err != nil {
			return err
		}
		before, err := b.esp(ctx)
		if err != nil {
			return err
		}
		for version, why := range map[string]string{crossVersion: `(?i)sign`, alterVersion: `(?i)sign`, tornVersion: `(?i)sum|sha256|manifest names`} {
			if err := b.refuses(ctx, "edgectl upgrade --stage-only "+from(version), regexp.MustCompile(why)); err != nil {
				return err
			}
		}
		if after, err := b.esp(ctx); err != nil || after != before {
			return fmt.Errorf("the EFI partition had %q and has %q, %w", before, after, err)
		}
		return b.announced(ctx)
	})
}
