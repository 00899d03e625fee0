package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// dirParent and dirPrefix make the lab's folder. Not os.TempDir: paths of
	// unix sockets must be short.
	dirParent, dirPrefix = "/tmp", "catchment-lab-"
	// convergeLimit is how long the routers may take until all of them know
	// all networks.
	convergeLimit = 2 * time.Minute
)

// Lab is a small internet. Its maps are filled by New and not changed after.
type Lab struct {
	Topology Topology
	Routers  map[string]*Router
	Boxes    map[string]*Box
	Regions  map[string]*Region
	Servers  map[string]*Server
	Clients  map[string]*Client
	// Cores are the links between routers, by both "r-a--r-b" and "r-b--r-a".
	Cores map[string]*Core
	// Links are those of boxes, regions, servers, clients and the shared host, by host.
	Links map[string]Link
	// Shared is the origin that every box depends on; nil if there is none.
	Shared *Origin

	dir     string
	plan    *plan
	janitor *janitor
	secrets *secrets
	hosts   []*Host
	stubs   []interface{ Close() error }
	cores   []*Core

	relays     errgroup.Group
	stopRelays context.CancelFunc
	mu         sync.Mutex
	group      string // control group of the systems; empty: there was none
	close      sync.Once
	closeErr   error
}

// New builds the lab and waits until the routers have converged. Boxes have
// their folders and links but run nothing: see Box.Start. On an error nothing
// is left.
func New(ctx context.Context, t Topology) (*Lab, error) {
	if err := errors.Join(Preflight(), t.check()); err != nil {
		return nil, err
	}
	l := &Lab{
		Topology: t, plan: newPlan(&t), stopRelays: func() {},
		Routers: map[string]*Router{}, Boxes: map[string]*Box{}, Regions: map[string]*Region{},
		Servers: map[string]*Server{}, Clients: map[string]*Client{}, Cores: map[string]*Core{}, Links: map[string]Link{},
	}
	if err := l.build(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context) (err error) {
	if l.janitor, err = startJanitor(); err != nil {
		return err
	}
	if err := l.makeDir(); err != nil {
		return err
	}
	if l.secrets, err = newSecrets(filepath.Join(l.dir, "secrets"), l.plan); err != nil {
		return err
	}
	for _, step := range []func() error{l.makeRouters, l.makeCores, l.makeEdge} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, r := range l.Routers {
		if err := r.Start(ctx); err != nil {
			return err
		}
	}
	return l.converge(ctx)
}

// makeDir makes the lab's folder, once the janitor knows of it. FRR, which is
// not root, reads there. The file "pid" tells a person whose it is.
func (l *Lab) makeDir() error {
	l.dir = filepath.Join(dirParent, dirPrefix+randomHex(5))
	if err := l.janitor.tell("dir "+l.dir, -1); err != nil {
		return err
	}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return fmt.Errorf("make folder of the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "pid"), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return fmt.Errorf("write pid of the lab: %w", err)
	}
	return nil
}

// Start starts the daemons of every box, from the folder of Build.
func (l *Lab) Start(bin string) error {
	for _, name := range l.Topology.boxes() {
		if err := l.Boxes[name].Start(bin); err != nil {
			return err
		}
	}
	return nil
}

// keep remembers a host, here and at the janitor, before anything runs in it.
func (l *Lab) keep(h *Host) error {
	l.hosts = append(l.hosts, h)
	return l.janitor.tell("ns", h.ns)
}

func (l *Lab) makeRouters() error {
	for _, spec := range l.Topology.Routers {
		r, err := newRouter(l.plan.routers[spec.Name], l.dir)
		if err != nil {
			return err
		}
		l.Routers[spec.Name] = r
		if err := l.keep(r.Host); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) makeCores() error {
	ctx, cancel := context.WithCancel(context.Background())
	l.stopRelays = cancel
	for _, p := range l.plan.cores {
		c, err := newCore(coreSpec{
			a: l.Routers[p.a].Host, b: l.Routers[p.b].Host, addrA: p.addrA, addrB: p.addrB,
			delay: p.delay, mtu: boxMTU,
		})
		if err != nil {
			return err
		}
		l.cores = append(l.cores, c)
		l.Cores[p.a+"--"+p.b], l.Cores[p.b+"--"+p.a] = c, c
		l.relays.Go(func() error { return c.run(ctx) })
	}
	return nil
}

// makeEdge makes all hosts that are not routers, and their links.
func (l *Lab) makeEdge() error {
	for _, a := range l.plan.attachments {
		h, err := newHost(a.host)
		if err != nil {
			return err
		}
		if err := l.keep(h); err != nil {
			return err
		}
		router := l.Routers[a.router]
		link, err := newVeth(vethSpec{router: router.Host, other: h, mtu: a.mtu, near: a.near, far: a.far})
		if err != nil {
			return err
		}
		l.Links[a.host] = link
		if err := l.furnish(h, a); err != nil {
			return err
		}
	}
	return nil
}

// furnish makes of a host what the topology says that it is.
func (l *Lab) furnish(h *Host, a attachment) (err error) {
	for _, b := range l.plan.boxes {
		if b.Name == h.name {
			return l.furnishBox(h, b)
		}
	}
	for _, r := range l.Topology.Regions {
		if r.Name == h.name {
			l.Regions[r.Name], err = newRegion(h, a.far, l.siteOf())
			return err
		}
	}
	for _, s := range l.Topology.Servers {
		if s.Name == h.name {
			return l.furnishServer(h, a)
		}
	}
	for _, c := range l.Topology.Clients {
		if c.Name == h.name {
			l.Clients[c.Name] = &Client{Host: h, trust: l.secrets.pool}
			return nil
		}
	}
	shared, err := newRegion(h, a.far, l.siteOf())
	if err == nil {
		l.Shared = shared.Origins[0]
	}
	return err
}

// siteOf maps each address of a box to the box, so that an origin can tell who
// asked.
func (l *Lab) siteOf() map[string]servedBy {
	m := map[string]servedBy{}
	for _, b := range l.plan.boxes {
		m[b.Addr4.String()] = servedBy{b.Name, b.Site}
		m[b.Addr6.String()] = servedBy{b.Name, b.Site}
	}
	return m
}

// converge waits until every router has every network in its kernel.
func (l *Lab) converge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, convergeLimit)
	defer cancel()
	for _, r := range l.Routers {
		for _, owner := range l.plan.routers {
			for _, n := range owner.Networks {
				err := Until(ctx, fmt.Sprintf("%s knows %s of %s", r.name, n, owner.Name), func() error {
					got, err := r.Route(n)
					if err == nil && len(got.Via) == 0 {
						err = errors.New("no route")
					}
					return err
				})
				if err != nil {
					return fmt.Errorf("%w\n%s", err, l.Logs(20))
				}
			}
		}
	}
	return nil
}

// Dir is the lab's folder; it goes with Close.
func (l *Lab) Dir() string { return l.dir }

// CAPath is the PEM file of the CA that signed the boxes' certificates, for
// programs that run inside a client.
func (l *Lab) CAPath() string { return l.secrets.cert("ca") }

// Logs returns the last lines of the logs of all routers and daemons.
func (l *Lab) Logs(lines int) string {
	var b strings.Builder
	for _, r := range l.Topology.Routers {
		if router := l.Routers[r.Name]; router != nil {
			for _, f := range router.logs() {
				fmt.Fprintf(&b, "--- %s\n%s", f, tail(f, lines))
			}
		}
	}
	for _, name := range l.Topology.boxes() {
		if box := l.Boxes[name]; box != nil {
			b.WriteString(box.Logs(lines))
		}
	}
	return b.String()
}

// Close ends everything: daemons, routers, origins, links, namespaces, the
// folder, the janitor. It may be called more than once. It returns the first
// call's error: what could not be removed, or a relay that had failed.
func (l *Lab) Close() error {
	l.close.Do(func() { l.closeErr = l.tearDown() })
	return l.closeErr
}

func (l *Lab) tearDown() error {
	var errs []error
	for _, b := range l.Boxes {
		b.close()
	}
	for _, r := range l.Regions {
		r.close()
	}
	for _, s := range l.Servers {
		errs = append(errs, s.close())
	}
	if l.Shared != nil {
		l.Shared.region.close()
	}
	var inodes []uint64
	for _, h := range l.hosts {
		inodes = append(inodes, h.inode)
	}
	errs = append(errs, sweep(inodes), removeGroup(l.group))
	for _, s := range l.stubs {
		errs = append(errs, s.Close())
	}
	l.stopRelays()
	errs = append(errs, l.relays.Wait())
	for _, c := range l.cores {
		c.close()
	}
	for _, h := range l.hosts {
		h.close()
	}
	if l.dir != "" {
		errs = append(errs, removeDir(l.dir))
	}
	if l.janitor != nil {
		errs = append(errs, l.janitor.dismiss())
	}
	return errors.Join(errs...)
}
