package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// updateUnderTraffic goes to another version and back while a client asks all along.
// The other site takes over meanwhile.
func updateUnderTraffic(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		ctx, cancel := within(ctx, 4*bootLimit)
		defer cancel()
		watch := newPathWatch(b.Routers[routerName], boxName, turnsEvery)
		defer watch.stop()
		asking := askOf(ctx, b.Clients[clientName])
		if err := l.goes(ctx, t, b, "upgrade --wait 2m "+l.overHTTPS(goodVersion), goodVersion, "b"); err != nil {
			return err
		}
		if err := b.updated(ctx, l); err != nil {
			return err
		}
		t.Log("it is good, and not drained")
		if err := b.serves(ctx); err != nil {
			return err
		}
		if err := l.goes(ctx, t, b, "rollback --wait 2m", l.version, "a"); err != nil {
			return err
		}
		if err := errors.Join(b.wentBack(ctx), b.sound(ctx, t), b.sameAs(ctx, l.well, 3)); err != nil {
			return err
		}
		samples := asking.stop()
		t.Logf("traffic: %s; by site: %v", samples, samples.Sites())
		if err := excused(samples, turns(watch.stop())); err != nil {
			return err
		}
		if by := samples.Sites(); by["a"] == 0 || by["b"] == 0 {
			return fmt.Errorf("not both sites have answered: %v", by)
		}
		return l.withoutDefault(ctx, t, b)
	})
}

// goes has the box go to a version, and waits until that announces.
func (l *lane) goes(ctx context.Context, t *testing.T, b *box, order, version, slot string) error {
	mark, start := b.Console.Mark(), time.Now()
	if err := b.reboots(ctx, order); err != nil {
		return err
	}
	t.Logf("%5.1f s  written, drained, rebooting", time.Since(start).Seconds())
	if _, err := b.mustBoot(ctx, mark, version, slot); err != nil {
		return err
	}
	if err := errors.Join(b.announced(ctx), b.guest.await(ctx)); err != nil {
		return err
	}
	t.Logf("%5.1f s  announced by %s", time.Since(start).Seconds(), version)
	return nil
}

// wentBack waits until a rollback is over: the version that was left is refused, and the
// node is not drained.
func (b *box) wentBack(ctx context.Context) error {
	if _, err := b.holds(ctx, "cat /run/edge-image/metrics.prom", regexp.MustCompile(`(?m)^edge_boot_good 1$`)); err != nil {
		return err
	}
	if err := b.mountPayloads(ctx); err != nil {
		return err
	}
	if err := b.refuses(ctx, "edgectl upgrade "+from(goodVersion), regexp.MustCompile(regexp.QuoteMeta(goodVersion)+` is refused`)); err != nil {
		return err
	}
	return b.undrained(ctx)
}

// undrained looks whether a drain of an upgrade or a rollback is left.
func (b *box) undrained(ctx context.Context) error {
	out, err := b.runs(ctx, "edgectl status -o json")
	if err == nil && regexp.MustCompile(`edgectl (upgrade|rollback)`).MatchString(out) {
		err = fmt.Errorf("a drain is left: %s", out)
	}
	return err
}

// askRate is in requests per second, mostFailed what part of them may be lost at all.
const askRate, mostFailed = 5, 0.02

// turnsEvery is how often the router is asked for the path of the box.
const turnsEvery = 250 * time.Millisecond

// turns leaves out how the path was when the watch began.
func turns(seen []seenPath) []seenPath { return seen[min(1, len(seen)):] }

// excused wants each request that failed to have been under way when the routers
// turned: a connection that is open then has its next packet at the other site, which
// does not know it. The slower a machine answers, the more there are.
func excused(samples lab.Samples, turns []seenPath) error {
	failed := samples.Failed()
	if most := mostFailed * float64(len(samples)); float64(len(failed)) > most {
		return fmt.Errorf("%d requests failed, more than %.0f", len(failed), most)
	}
	for _, f := range failed {
		if !slices.ContainsFunc(turns, func(turn seenPath) bool {
			return turn.at.After(f.At) && turn.at.Before(f.At.Add(f.Took+2*turnsEvery))
		}) {
			return fmt.Errorf("the request of %s failed after %.1f s, and no router had turned: %w", f.At.Format("15:04:05.000"), f.Took.Seconds(), f.Err)
		}
	}
	return nil
}

// asking is a load under way.
type asking struct {
	cancel context.CancelFunc
	done   chan lab.Samples
}

func askOf(ctx context.Context, client *lab.Client) *asking {
	ctx, cancel := context.WithCancel(ctx)
	a := &asking{cancel: cancel, done: make(chan lab.Samples, 1)}
	go func() {
		var all lab.Samples
		for ctx.Err() == nil {
			samples, err := client.Send(ctx, lab.Load{URL: webURL, Rate: askRate, For: 10 * time.Minute, Timeout: 10 * time.Second})
			if all = append(all, samples...); err != nil {
				break // who reads the samples finds too few
			}
		}
		a.done <- all
	}()
	return a
}

func (a *asking) stop() lab.Samples {
	a.cancel()
	return <-a.done
}

// updated waits until the update is over: blessed, written down as good, undrained.
func (b *box) updated(ctx context.Context, l *lane) error {
	if _, err := b.holds(ctx, "cat /var/lib/edge-image/upgrade.json", regexp.MustCompile(`"stage": ?"good"`)); err != nil {
		return err
	}
	if _, err := b.holds(ctx, "ls /efi/EFI/Linux | sort | tr '\\n' ' '", regexp.MustCompile(
		`^`+regexp.QuoteMeta("edge_"+l.version+".efi")+`\s+`+regexp.QuoteMeta("edge_"+goodVersion+".efi")+`$`)); err != nil {
		return err
	}
	return b.undrained(ctx)
}

// withoutDefault starts the box, which has both versions, without the UKI that it would
// boot: the other one has to boot.
func (l *lane) withoutDefault(ctx context.Context, t *testing.T, b *box) error {
	if err := b.sync(ctx); err != nil {
		return err
	}
	b.Kill()
	esp := espOf(b.spec)
	if err := esp.Delete(ctx, "EFI/Linux/edge_"+l.version+".efi"); err != nil {
		return err
	}
	other, err := l.again(ctx, b.spec)
	if err != nil {
		return err
	}
	defer other.end()
	if _, err := other.mustBoot(ctx, 0, goodVersion, "b"); err != nil {
		return fmt.Errorf("without the UKI of %s: %w", l.version, err)
	}
	t.Logf("without the UKI of %s, %s boots", l.version, goodVersion)
	return nil
}
