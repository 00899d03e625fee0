package lab

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"

	"golang.org/x/sys/unix"
)

//go:embed templates
var templates embed.FS

// frrDir is where Debian's FRR has its daemons.
const frrDir = "/usr/lib/frr"

// Router is a host that runs BIRD, or zebra, staticd, bgpd and, if wanted, bfdd
// of FRR.
type Router struct {
	*Host
	plan *routerPlan
	dir  string

	mu        sync.Mutex
	processes []*Process
}

// newRouter makes the host; start starts its daemons, once it has links.
func newRouter(p *routerPlan, dir string) (*Router, error) {
	h, err := newHost(p.Name)
	if err != nil {
		return nil, err
	}
	r := &Router{Host: h, plan: p, dir: filepath.Join(dir, p.Name)}
	err = errors.Join(
		os.Mkdir(r.dir, 0o755),
		h.Sysctl("ipv4/ip_forward", "1"),
		h.Sysctl("ipv6/conf/all/forwarding", "1"),
		r.render(),
	)
	if err == nil && p.Kind == FRR {
		err = r.prepareFRR()
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("make router %s: %w", p.Name, err)
	}
	return r, nil
}

// Kind is the routing software.
func (r *Router) Kind() RouterKind { return r.plan.Kind }

// daemons are the processes of a router, in the order they start in.
func (r *Router) daemons() []string {
	if r.plan.Kind == BIRD {
		return []string{"bird"}
	}
	if r.plan.BFD {
		return []string{"zebra", "staticd", "bfdd", "bgpd"}
	}
	return []string{"zebra", "staticd", "bgpd"}
}

// render writes the configuration of every daemon.
func (r *Router) render() error {
	for _, d := range r.daemons() {
		text, err := render(d+".conf", r.plan)
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.file(d+".conf"), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write configuration of %s: %w", d, err)
		}
	}
	return nil
}

// render fills one of the templates.
func render(name string, data any) (string, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return "", fmt.Errorf("parse template: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", fmt.Errorf("fill template %s: %w", name, err)
	}
	return b.String(), nil
}

func (r *Router) file(name string) string { return filepath.Join(r.dir, name) }

// prepareFRR gives FRR empty folders of its own at the paths that it has
// compiled in: it runs as the user frr, and leaves files there when killed.
func (r *Router) prepareFRR() error {
	uid, gid, err := ownerOf("frr")
	if err != nil {
		return err
	}
	for _, at := range []string{"/run", "/var/tmp"} {
		if err := r.mount("tmpfs", at); err != nil {
			return err
		}
	}
	return r.Do(func() error {
		return errors.Join(os.Mkdir("/run/frr", 0o755), os.Chown("/run/frr", uid, gid))
	})
}

// Start starts the router's daemons. It is called by New; again after Kill.
func (r *Router) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plan.Kind == BIRD {
		return r.run("bird", "bird", "-f", "-c", r.file("bird.conf"), "-s", r.file("bird.ctl"))
	}
	if err := r.forget(); err != nil {
		return err
	}
	for _, d := range r.daemons() {
		// -P 0: no TCP port for the terminal, the unix socket is enough.
		if err := r.run(d, filepath.Join(frrDir, d), "-f", r.file(d+".conf"), "-P", "0", "--log", "stdout"); err != nil {
			return err
		}
		if d != "zebra" {
			continue
		}
		if err := r.awaitZebra(ctx); err != nil {
			return err
		}
	}
	return nil
}

// forget removes the sockets that killed FRR daemons left.
func (r *Router) forget() error {
	return r.Do(func() error {
		for _, name := range []string{"zserv.api", "zebra.vty", "staticd.vty", "bgpd.vty", "bfdd.vty", "bfdd.sock"} {
			if err := os.Remove("/run/frr/" + name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove old socket: %w", err)
			}
		}
		return nil
	})
}

// awaitZebra waits for zebra's socket: a daemon that finds none waits for
// seconds before it tries again.
func (r *Router) awaitZebra(ctx context.Context) error {
	return Until(ctx, "zebra of "+r.name+" listens", func() error {
		return r.Do(func() error {
			_, err := os.Stat("/run/frr/zserv.api")
			return err
		})
	})
}

func (r *Router) run(daemon, path string, args ...string) error {
	log, err := os.OpenFile(r.file(daemon+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", daemon, err)
	}
	defer log.Close()
	p, err := r.start(log, path, args...)
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	return nil
}

// Kill ends all of the router's daemons with SIGKILL. Its kernel goes on
// forwarding by what they left.
func (r *Router) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.processes {
		p.Signal(unix.SIGKILL)
	}
	for _, p := range r.processes {
		<-p.Done()
	}
	r.processes = nil
}

// Ask runs a command of the router's own shell, such as "show protocols" in
// BIRD or "show bgp summary" in FRR.
func (r *Router) Ask(ctx context.Context, command string) (string, error) {
	name, args := "vtysh", []string{"-c", command}
	if r.plan.Kind == BIRD {
		name, args = "birdc", append([]string{"-s", r.file("bird.ctl")}, strings.Fields(command)...)
	}
	out, err := r.Run(ctx, name, args...)
	return string(out), err
}

// logs are the files that tell why a router does not do its work.
func (r *Router) logs() []string {
	var files []string
	for _, d := range r.daemons() {
		files = append(files, r.file(d+".log"))
	}
	return files
}

// FlushRoutes removes what the router's daemons have put into its kernel, as a
// reboot does; Kill leaves it there. While they run they put it back.
func (r *Router) FlushRoutes() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := r.nl.RouteList(nil, family)
		if err != nil {
			return fmt.Errorf("read routes of %s: %w", r.name, err)
		}
		for _, route := range routes {
			// The kernel's own, and those of New, are made by kernel and boot.
			if route.Protocol == unix.RTPROT_KERNEL || route.Protocol == unix.RTPROT_BOOT || route.Protocol == unix.RTPROT_UNSPEC {
				continue
			}
			if err := r.nl.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove route %s of %s: %w", route.Dst, r.name, err)
			}
		}
	}
	return nil
}

// Holds asks the router's BGP, not its kernel, whether it has a path for the
// prefix from a box.
func (r *Router) Holds(ctx context.Context, prefix netip.Prefix, box string) (bool, error) {
	i := slices.IndexFunc(r.plan.Boxes, func(n neighbor) bool { return n.Name == box })
	if i < 0 {
		return false, fmt.Errorf("ask %s for the path from %s: no such box at this router", r.name, box)
	}
	if r.plan.Kind == BIRD {
		out, err := r.Ask(ctx, fmt.Sprintf("show route %s protocol 'box-%s'", prefix, box))
		if strings.Contains(out, "Network not found") {
			err = nil // birdc takes it for a failure
		}
		return strings.Contains(out, "box-"+box), err
	}
	family := "ipv4"
	if prefix.Addr().Is6() {
		family = "ipv6"
	}
	out, err := r.Ask(ctx, fmt.Sprintf("show bgp %s unicast %s", family, prefix))
	return strings.Contains(out, fmt.Sprintf("from %s ", r.plan.Boxes[i].Peer)), err
}
