package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// drainWhole drains one of the two boxes of a site to the end: the other gets the
// new flows at once, the VIPs go when nothing comes for them any more, and are
// back before the prefix is announced again. No request is lost.
func drainWhole(ctx context.Context, t *testing.T, w world) error {
	box := w.Lab.Boxes["a1"]
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan lab.Samples, 1)
	go func() {
		s, err := w.Lab.Clients["client-a"].Send(loadCtx, lab.Load{URL: story.URL, Rate: 40, For: 5 * time.Minute, Timeout: 10 * time.Second})
		if err != nil {
			t.Error(err)
		}
		sent <- s
	}()
	if out, err := box.Ctl(ctx, "drain", "--reason", "new disk"); err != nil {
		return fmt.Errorf("drain: %w: %s", err, out)
	}
	if err := w.rung(ctx, "a1", lab.Prefix4.String(), edge.Withdrawn); err != nil {
		return err
	}
	for _, p := range []netip.Prefix{lab.Prefix4, lab.Prefix6} { // BIRD and its kernel come behind
		if err := w.Lab.Routers["r-a"].Await(ctx, p, "a2"); err != nil {
			return err
		}
	}
	withdrawn := time.Now()
	if here, err := vipsOf(ctx, box); err != nil || len(here) == 0 {
		return fmt.Errorf("a1 has %v on lo while the flows that it has may still come: %v", here, err)
	}
	if err := unserved(ctx, box); err != nil {
		return err
	}
	w.Say("a1 has taken its VIPs off %.1f s after its withdrawal", time.Since(withdrawn).Seconds())
	gone := time.Now()
	if err := believedGone(ctx, w.Lab.Boxes["a2"]); err != nil {
		return err
	}
	if out, err := box.Ctl(ctx, "undrain"); err != nil {
		return fmt.Errorf("undrain: %w: %s", err, out)
	}
	if err := w.Settle(ctx); err != nil {
		return err
	}
	stop()
	s := <-sent
	w.Say("client-a meanwhile: %s, by box %v", s, s.Boxes())
	if len(s.Failed()) > 0 {
		t.Errorf("requests were lost: %s", s)
	}
	if n := s.Between(withdrawn, gone).Boxes()["a1"]; n > 0 {
		t.Errorf("a1 has got %d new requests after its withdrawal", n)
	}
	return servedFirst(ctx, box)
}

// vipsOf are the addresses of lo that are of our prefixes.
func vipsOf(ctx context.Context, box *lab.Box) ([]netip.Addr, error) {
	out, err := box.Run(ctx, "ip", "-json", "address", "show", "dev", "lo")
	if err != nil {
		return nil, err
	}
	var links []struct {
		Addrs []struct {
			Local netip.Addr `json:"local"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal(out, &links); err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	var vips []netip.Addr
	for _, l := range links {
		for _, a := range l.Addrs {
			if lab.Prefix4.Contains(a.Local) || lab.Prefix6.Contains(a.Local) {
				vips = append(vips, a.Local)
			}
		}
	}
	return vips, nil
}

// unserved waits until a box has given up its VIPs, the addresses and the tables.
func unserved(ctx context.Context, box *lab.Box) error {
	return story.Until(ctx, box.Name()+" serves no more", func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		for _, d := range st.Decisions {
			if !strings.Contains(string(d.Reason), "not served any more") {
				return fmt.Errorf("%s: %s", d.Prefix, d.Reason)
			}
		}
		if here, err := vipsOf(ctx, box); err != nil || len(here) > 0 {
			return fmt.Errorf("it has %v on lo: %w", here, err)
		}
		if n := len(st.Forwarder.Services); n > 0 {
			return fmt.Errorf("its forwarder has %d services", n)
		}
		return nil
	})
}

// believedGone waits until a box counts on the other no more.
func believedGone(ctx context.Context, box *lab.Box) error {
	return story.Until(ctx, box.Name()+" counts on a1 no more", func() error {
		st, err := box.Status(ctx)
		if err != nil {
			return err
		}
		for _, s := range st.Services {
			for _, b := range s.Backends {
				if b.ID == "a1" && (b.InRing || b.State != edge.Down) {
					return fmt.Errorf("a1 of service %s is %+v", s.ID, b)
				}
			}
		}
		return nil
	})
}

// servedFirst reads in the history that the VIPs came back before the prefix.
func servedFirst(ctx context.Context, box *lab.Box) error {
	var past edge.Events
	if err := box.Ask(ctx, lab.Control, "/v1/history", &past); err != nil {
		return err
	}
	var served, announced time.Time
	for _, e := range past.Events {
		switch {
		case e.Subject != lab.Prefix4.String():
		case e.Kind == "drain" && e.To == "served":
			served = e.Time
		case e.Kind == "prefix" && e.To == string(edge.Announced):
			announced = e.Time
		}
	}
	if served.IsZero() || !announced.After(served) {
		return errors.Join(errors.New("the history does not say that the VIPs were back before the prefix"), fmt.Errorf("served %s, announced %s", served, announced))
	}
	return nil
}
