package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/bgp/bfd"
	"github.com/catchment-dev/edge/bgp/relay"
	"github.com/catchment-dev/edge/bgp/rpki"
	"github.com/catchment-dev/edge/bgp/watch"
)

// aides are what runs beside the sessions: BFD, the RPKI client and the watch.
// Each is started when the first intent asks for it. Trouble with one of them
// is logged and shown, and costs no session.
type aides struct {
	log   *slog.Logger
	ctx   context.Context // of Run: what is started ends with it
	bfd   *bfd.Engine
	rpki  *rpki.Client
	watch *watch.Watcher
	links atomic.Pointer[relay.Hub] // whose sessions BFD ends; nil: none

	alarm chan struct{} // a path has failed; size 1
	mu    sync.Mutex
	fails map[netip.Addr]string // peer to reason
	up    map[netip.Addr]bool   // the paths that BFD has seen up, guarded by mu

	running map[string]context.CancelFunc
	done    sync.WaitGroup
	// failed are the aides that could not be set or have ended, and why.
	failed map[string]string
	// lookouts are asked by the relay's goroutines.
	lookouts atomic.Pointer[lookouts]
}

func (a *aides) init(s *Speaker) {
	a.log = s.log
	a.alarm, a.fails, a.up = make(chan struct{}, 1), map[netip.Addr]string{}, map[netip.Addr]bool{}
	a.running, a.failed = map[string]context.CancelFunc{}, map[string]string{}
	a.bfd = bfd.New(bfd.Options{Log: s.log, OnChange: a.pathChanged})
	a.rpki = rpki.New(rpki.Options{Log: s.log, OnChange: s.kick})
	a.watch = watch.New(watch.Options{Log: s.log})
}

// start runs an aide once.
func (a *aides) start(name string, run func(context.Context) error) {
	if a.running[name] != nil {
		return
	}
	ctx, stop := context.WithCancel(a.ctx)
	a.running[name] = stop
	a.done.Go(func() {
		if err := run(ctx); err != nil {
			a.log.Error("an aide of the speaker has ended", "name", name, "err", err)
		}
	})
}

// close ends them all. BFD says good-bye on its way out.
func (a *aides) close() {
	for _, stop := range a.running {
		stop()
	}
	a.done.Wait()
}

// set makes them follow the intent.
func (a *aides) set(in *edge.Intent) {
	s := in.Speaker
	if list := bfdOf(in); len(list) > 0 || a.running["bfd"] != nil {
		a.start("bfd alarm", a.endSessions)
		a.start("bfd", a.bfd.Run)
		a.note("bfd", a.bfd.Set(list))
	}
	if s.RPKI.File != "" || len(s.RPKI.Servers) > 0 || a.running["rpki"] != nil {
		a.start("rpki", a.rpki.Run)
		a.note("rpki", a.rpki.Set(rpkiOf(s)))
	}
	a.look(in)
}

// note keeps why an aide cannot be as it should; nil: it can.
func (a *aides) note(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && a.failed[name] != text {
		a.log.Error("set "+name, "err", err)
	}
	a.failed[name] = text
}

// bfdOf are the BFD sessions that the intent wants. That the node rests is said
// only once nothing is announced any more: BIRD and FRR drop all routes at that
// word (measured), and nobody has given leave for that.
func bfdOf(in *edge.Intent) (list []bfd.Config) {
	s := in.Speaker
	resting := s.Resting && len(in.Announcements) == 0
	for _, p := range s.Peers {
		if p.BFD == nil {
			continue
		}
		list = append(list, bfd.Config{
			Peer: p.Addr, Local: p.LocalAddr, Interface: p.Interface, Multihop: farAway(p), MinTTL: leastTTL(p),
			MinTx: p.BFD.MinTx, MinRx: p.BFD.MinRx, Multiplier: p.BFD.Multiplier, AdminDown: resting,
		})
	}
	return list
}

// farAway says that BFD with the peer is that of several hops (RFC 5883).
func farAway(p edge.Peer) bool { return p.Multihop > 0 || p.TTLSecurity > 1 }

// leastTTL is what TTL security asks of BFD as well; 0: nothing.
func leastTTL(p edge.Peer) uint8 {
	if p.TTLSecurity > 1 {
		return uint8(256 - p.TTLSecurity)
	}
	return 0
}

func rpkiOf(s edge.Speaker) rpki.Config {
	c := rpki.Config{File: s.RPKI.File}
	for _, a := range s.RPKI.Servers {
		c.Servers = append(c.Servers, a.String())
	}
	return c
}

// pathChanged is called by the thread of BFD and must not block it.
func (a *aides) pathChanged(st bfd.Status) {
	a.mu.Lock()
	was := a.up[st.Peer]
	a.up[st.Peer] = st.State == bfd.Up
	// Only what was up can fail: on its way back BFD is down and init once more,
	// and a session that is there by then must not be ended again.
	fails := was && st.Failed()
	if fails {
		a.fails[st.Peer] = "BFD: " + st.Diag.String()
	}
	a.mu.Unlock()
	if !fails {
		return
	}
	select {
	case a.alarm <- struct{}{}:
	default:
	}
}

// endSessions ends the sessions whose path has failed, beside Run: that may be
// busy with a thousand prefixes.
func (a *aides) endSessions(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.alarm:
		}
		a.mu.Lock()
		fails := a.fails
		a.fails = map[netip.Addr]string{}
		a.mu.Unlock()
		if h := a.links.Load(); h != nil {
			for addr, why := range fails {
				h.Down(addr, why)
			}
		}
	}
}

// bfdStates are the states of BFD by peer.
func (a *aides) bfdStates() map[netip.Addr]*edge.BFDState {
	out := map[netip.Addr]*edge.BFDState{}
	if a.running["bfd"] == nil {
		return out
	}
	for _, st := range a.bfd.States() {
		s := &edge.BFDState{
			State: st.State.String(), Remote: st.RemoteState.String(), Since: st.Since, LastErr: st.LastErr,
			Detect: st.Detect, Flaps: st.Flaps,
		}
		if st.Diag != bfd.DiagNone {
			s.Diag = st.Diag.String()
		}
		if st.RemoteDiag != bfd.DiagNone {
			s.RemoteDiag = st.RemoteDiag.String()
		}
		out[st.Peer] = s
	}
	return out
}
