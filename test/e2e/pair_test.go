package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/story"
)

// pair is the lab of two boxes behind one router, with downloads through them.
type pair struct {
	story.Teller
	t         *testing.T
	downloads []*lab.Download
}

// begin starts the downloads, and wants them to use both boxes and all servers.
func (p *pair) begin(ctx context.Context) error {
	p.downloads = nil
	for i := range downloads {
		d, err := p.Lab.Clients["client-a"].Download(ctx, i%2 == 1)
		if err != nil {
			return err
		}
		p.downloads = append(p.downloads, d)
	}
	if err := p.goOn(ctx, nil); err != nil {
		return err
	}
	home, err := p.homes(ctx)
	if err != nil {
		return err
	}
	boxes, servers := map[string]int{}, map[string]int{}
	for _, d := range p.downloads {
		boxes[home[d.Source].Name()]++
		servers[d.Server]++
	}
	p.Say("%d downloads, half over IPv4 and half over IPv6, by box %v, by server %v", downloads, boxes, servers)
	if len(boxes) != 2 || len(servers) != len(p.Lab.Servers) {
		return errors.New("a box or a server has none")
	}
	return nil
}

// end has the servers end all downloads: what has not broken is whole.
func (p *pair) end() error {
	for _, s := range p.Lab.Servers {
		s.Finish()
	}
	whole, broken := 0, 0
	sum := int64(0)
	for _, d := range p.downloads {
		select {
		case <-d.Done():
		case <-time.After(time.Minute):
			return fmt.Errorf("a download from %s does not end", d.Server)
		}
		if sum += d.Read(); d.Err() == nil {
			whole++
		} else {
			broken++
		}
	}
	p.Say("ended: %d downloads whole, %d broken, %.1f MB", whole, broken, float64(sum)/1e6)
	return nil
}

// goOn waits until every download has read more, and those in lost have broken.
func (p *pair) goOn(ctx context.Context, lost map[netip.AddrPort]bool) error {
	var from []int64
	for _, d := range p.downloads {
		from = append(from, d.Read())
	}
	return story.Until(ctx, "all downloads have gone on", func() error {
		for i, d := range p.downloads {
			if ended(d) {
				continue
			}
			if lost[d.Source] {
				return fmt.Errorf("the one of %s from %s has not broken, after %d bytes", d.Source, d.Server, d.Read())
			}
			if more := d.Read() - from[i]; more < progress {
				return fmt.Errorf("the one of %s from %s has read %d bytes more", d.Source, d.Server, more)
			}
		}
		return nil
	})
}

func ended(d *lab.Download) bool {
	select {
	case <-d.Done():
		return true
	default:
		return false
	}
}

// homes tells through which box each download goes, by its source.
func (p *pair) homes(ctx context.Context) (map[netip.AddrPort]*lab.Box, error) {
	home := map[netip.AddrPort]*lab.Box{}
	err := story.Until(ctx, "each download goes through one box", func() error {
		clear(home)
		left := map[netip.AddrPort]time.Duration{}
		for _, name := range []string{"a1", "a2"} {
			flows, err := flowsOf(ctx, p.Lab.Boxes[name])
			if err != nil {
				return err
			}
			for _, d := range p.downloads {
				f, ok := flows[d.Source]
				if !ok || ended(d) {
					continue
				}
				// Where a flow has been, the time that is left runs out.
				diff := f.Left - left[d.Source]
				if home[d.Source] != nil && diff.Abs() < 3*time.Second {
					return fmt.Errorf("%s has just been at both", d.Source)
				}
				if diff > 0 {
					home[d.Source], left[d.Source] = p.Lab.Boxes[name], f.Left
				}
			}
		}
		for _, d := range p.downloads {
			if home[d.Source] == nil && !ended(d) {
				return fmt.Errorf("no box knows %s", d.Source)
			}
		}
		return nil
	})
	return home, err
}

// flowsOf are the flows that a box remembers, by source.
func flowsOf(ctx context.Context, b *lab.Box) (map[netip.AddrPort]edge.FlowEntry, error) {
	out := map[netip.AddrPort]edge.FlowEntry{}
	for _, service := range []string{"download", "download6"} {
		var list struct{ Flows []edge.FlowEntry }
		if err := b.Ask(ctx, lab.Control, "/v1/flows?limit=10000&service="+service, &list); err != nil {
			return nil, err
		}
		for _, f := range list.Flows {
			if old, twice := out[f.Src]; !twice || old.Half {
				out[f.Src] = f
			}
		}
	}
	return out, nil
}

// backendOf is where a box would send a download.
func (p *pair) backendOf(ctx context.Context, b *lab.Box, d *lab.Download) (string, error) {
	what := fmt.Sprintf("tcp %s %s", d.Source, d.Target)
	var e edge.Explanation
	if err := b.Ask(ctx, lab.Control, "/v1/explain?"+url.Values{"what": {what}}.Encode(), &e); err != nil {
		return "", err
	}
	for _, line := range e.Lines {
		if rest, ok := strings.CutPrefix(line, "backend "); ok {
			name, _, _ := strings.Cut(rest, ":")
			return name, nil
		}
	}
	return "", fmt.Errorf("explain %s on %s names no backend: %q", what, b.Name(), e.Lines)
}

// inRing waits until both boxes have a server in the rings of both services, or
// in none.
func (p *pair) inRing(ctx context.Context, server string, want bool) error {
	for _, b := range p.Lab.Boxes {
		err := story.Until(ctx, fmt.Sprintf("%s in the rings of %s: %t", server, b.Name(), want), func() error {
			st, err := b.Status(ctx)
			if err != nil {
				return err
			}
			found := 0
			for _, s := range st.Services {
				for _, k := range s.Backends {
					if string(k.ID) != server {
						continue
					}
					if found++; k.InRing != want || k.State != edge.Up {
						return fmt.Errorf("in that of %s: %t, and %s: %s", s.ID, k.InRing, k.State, k.Reason)
					}
				}
			}
			if found != 2 {
				return fmt.Errorf("%d services have it", found)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// busiest is the server with the most downloads through a box.
func (p *pair) busiest(home map[netip.AddrPort]*lab.Box, b *lab.Box) string {
	n := map[string]int{}
	for _, d := range p.downloads {
		if home[d.Source] == b {
			n[d.Server]++
		}
	}
	var names []string
	for name := range p.Lab.Servers {
		names = append(names, name)
	}
	return slices.MaxFunc(names, func(a, b string) int { return n[a] - n[b] })
}

// accounts wants every packet of a box counted out once, and says what was
// dropped; and that the servers took their packets out of tunnels.
func (p *pair) accounts(ctx context.Context, b *lab.Box) {
	f, err := balanced(ctx, b)
	if err != nil {
		p.t.Error(err)
	}
	for _, v := range f.Verdicts {
		if v.Action == "drop" && v.Count > 0 {
			p.Say("%s dropped %d packets: %s", b.Name(), v.Count, v.Reason)
		}
	}
	p.Say("%s's forwarder: received %d, and counted out as many", b.Name(), f.Received)
	for name, s := range p.Lab.Servers {
		st, err := s.Forwarder()
		if err != nil {
			p.t.Error(err)
		}
		i := slices.IndexFunc(st.Verdicts, func(v edge.VerdictCount) bool { return v.Action == "pass" && v.Reason == "decap" })
		if i < 0 || st.Verdicts[i].Count == 0 {
			p.t.Errorf("%s took nothing out of a tunnel: %+v", name, st.Verdicts)
		}
	}
}
