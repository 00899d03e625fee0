package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge/test/lab"
)

// updateUnderTraffic goes to another version while a client asks all along. The other
// site takes over meanwhile.
func updateUnderTraffic(ctx context.Context, t *testing.T, l *lane) error {
	return l.withBox(ctx, func(b *box) error {
		ctx, cancel := within(ctx, 2*bootLimit)
		defer cancel()
		mark := b.Console.Mark()
		asking := b.ask(ctx)
		start := time.Now()
		if _, err := b.upgrade(ctx, l.overHTTPS(goodVersion)); err != nil {
			return err
		}
		t.Logf("%5.1f s  written, drained, rebooting", time.Since(start).Seconds())
		if _, err := b.mustBoot(ctx, mark, goodVersion, "b"); err != nil {
			return err
		}
		if err := errors.Join(b.announced(ctx), b.guest.await(ctx)); err != nil {
			return err
		}
		t.Logf("%5.1f s  announced by %s", time.Since(start).Seconds(), goodVersion)
		if err := b.updated(ctx, l); err != nil {
			return err
		}
		t.Logf("%5.1f s  it is good, and not drained", time.Since(start).Seconds())
		if err := b.serves(ctx); err != nil {
			return err
		}
		samples := asking.stop()
		t.Logf("traffic: %s; by site: %v", samples, samples.Sites())
		if failed := len(samples.Failed()); failed > mostFailed {
			return fmt.Errorf("%d requests failed, at most %d may: those that are under way when the other site takes over", failed, mostFailed)
		}
		if by := samples.Sites(); by["a"] == 0 || by["b"] == 0 {
			return fmt.Errorf("not both sites have answered: %v", by)
		}
		return l.afterUpdate(ctx, t, b)
	})
}

// askRate is in requests per second, mostFailed is how many may be lost: a connection
// that is open when the routers turn has its next packet at the other site.
const askRate, mostFailed = 5, 2

// asking is a load under way.
type asking struct {
	cancel context.CancelFunc
	done   chan lab.Samples
}

func (b *box) ask(ctx context.Context) *asking {
	ctx, cancel := context.WithCancel(ctx)
	a := &asking{cancel: cancel, done: make(chan lab.Samples, 1)}
	go func() {
		samples, _ := b.Clients[clientName].Send(ctx, lab.Load{URL: webURL, Rate: askRate, For: 10 * time.Minute, Timeout: 10 * time.Second})
		a.done <- samples
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
	out, err := b.runs(ctx, "edgectl status -o json")
	if err == nil && strings.Contains(out, "edgectl upgrade from") {
		err = fmt.Errorf("the drain of the upgrade is left: %s", out)
	}
	return err
}

// afterUpdate starts the box with both versions again, without the default UKI: the
// other one has to boot.
func (l *lane) afterUpdate(ctx context.Context, t *testing.T, b *box) error {
	if err := b.sync(ctx); err != nil {
		return err
	}
	b.Kill()
	esp := espOf(b.spec)
	if err := esp.Delete(ctx, "EFI/Linux/edge_"+goodVersion+".efi"); err != nil {
		return err
	}
	other, err := l.again(ctx, b.spec)
	if err != nil {
		return err
	}
	defer other.end()
	if _, err := other.mustBoot(ctx, 0, l.version, "a"); err != nil {
		return fmt.Errorf("without the UKI of %s: %w", goodVersion, err)
	}
	t.Logf("without the UKI of %s, %s boots", goodVersion, l.version)
	return nil
}
