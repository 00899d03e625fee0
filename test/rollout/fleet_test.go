package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/catchment-dev/edge/test/lab"
	"github.com/catchment-dev/edge/test/operator"
	"github.com/catchment-dev/edge/test/story"
)

// scale is how large a fleet is: the nodes of each site, its floor, and how many sites
// may leave at a time by an order.
type scale struct {
	nodes          []int
	floor, planned int
}

// nine and three are the long and the short form. Of three sites one may be away, of
// five two.
func nine() scale  { return scale{nodes: []int{2, 2, 2, 2, 1}, floor: 3, planned: 2} }
func three() scale { return scale{nodes: []int{1, 1, 1}, floor: 2, planned: 1} }

// operatorName is the host of the operator; it is no client, but attached like one.
const operatorName = "operator"

// topology has a router at each site, BIRD and FRR in turn, in a ring, and a client and
// at the first two a region beside each.
func (s scale) topology() lab.Topology {
	t := lab.Topology{MinSites: s.floor, ProbeEvery: 2 * time.Second}
	name := func(i int) string { return string(rune('a' + i)) }
	for i, n := range s.nodes {
		site, router := name(i), "r-"+name(i)
		t.Routers = append(t.Routers, lab.RouterSpec{Name: router, Kind: []lab.RouterKind{lab.BIRD, lab.FRR}[i%2]})
		t.Cores = append(t.Cores, lab.CoreSpec{A: router, B: "r-" + name((i+1)%len(s.nodes)), Delay: time.Duration(i+2) * time.Millisecond})
		spec := lab.SiteSpec{Name: site, Router: router}
		for j := range n {
			spec.Boxes = append(spec.Boxes, lab.BoxSpec{Name: fmt.Sprint(site, j+1), MD5: j == 0})
		}
		t.Sites = append(t.Sites, spec)
		t.Clients = append(t.Clients, lab.ClientSpec{Name: "client-" + site, Router: router})
	}
	t.Clients = append(t.Clients, lab.ClientSpec{Name: operatorName, Router: t.Routers[0].Name})
	for i, region := range []string{"east", "west"} {
		t.Regions = append(t.Regions, lab.RegionSpec{Name: region, Router: t.Routers[i].Name, Origins: 2, Capacity: 500})
	}
	return t
}

// fleet is a lab whose boxes are nodes.
type fleet struct {
	*lab.Lab
	scale
	t     *testing.T
	nodes []*node
	// operator has the fleet's description and reaches the nodes.
	operator *operator.Operator
	// debs are the packages by their versions.
	debs map[string]string
	// secretsSeen are the lines of all secrets that there have been, which must be told nobody.
	secretsSeen map[string][]string
}

// newFleet builds the lab and boots all nodes, which have nothing of ours yet.
func newFleet(ctx context.Context, t *testing.T, s scale) *fleet {
	t.Helper()
	start := time.Now()
	l, err := lab.New(ctx, s.topology())
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{Lab: l, scale: s, t: t, secretsSeen: map[string][]string{}}
	t.Cleanup(f.close)
	t.Logf("%5.1f s  the lab is up", time.Since(start).Seconds())
	var g errgroup.Group
	base := filepath.Join(l.Dir(), "base")
	g.Go(func() error { return baseRoot(ctx, base) })
	g.Go(func() (err error) {
		f.debs, err = packages(ctx, filepath.Join(l.Dir(), "packages"))
		return err
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%5.1f s  the root of the nodes and two versions of the package are there", time.Since(start).Seconds())
	if err := f.furnish(ctx, base); err != nil {
		t.Fatal(err)
	}
	if err := f.boot(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%5.1f s  %d systems are up%s", time.Since(start).Seconds(), len(f.nodes), f.memory())
	return f
}

// furnish makes the operator and the nodes.
func (f *fleet) furnish(ctx context.Context, base string) (err error) {
	if f.operator, err = newOperator(ctx, f.Lab); err != nil {
		return err
	}
	for _, s := range f.Topology.Sites {
		for _, b := range s.Boxes {
			n, hostKey, err := newNode(ctx, f.Lab, f.Boxes[b.Name], base, f.operator.Public)
			if err != nil {
				return err
			}
			f.nodes = append(f.nodes, n)
			if err := f.operator.Knows(n.Addr4, hostKey); err != nil {
				return err
			}
		}
	}
	return f.describe()
}

// each does something on all nodes at once.
func (f *fleet) each(do func(*node) error) error {
	errs := make([]error, len(f.nodes))
	var g errgroup.Group
	for i, n := range f.nodes {
		g.Go(func() error {
			errs[i] = do(n)
			return nil
		})
	}
	return errors.Join(g.Wait(), errors.Join(errs...))
}

// boot starts all nodes, and waits until they are up and the operator reaches them.
func (f *fleet) boot(ctx context.Context) error {
	return f.each(func(n *node) error {
		if err := n.start(); err != nil {
			return err
		}
		if err := n.awaitUp(ctx); err != nil {
			return err
		}
		_, err := f.operator.SSH(ctx, n.Addr4, "true")
		return err
	})
}

func (f *fleet) node(name string) *node {
	for _, n := range f.nodes {
		if n.Name() == name {
			return n
		}
	}
	f.t.Fatalf("there is no node %s", name)
	return nil
}

// memory says what the systems take.
func (f *fleet) memory() string {
	total := 0
	for _, n := range f.nodes {
		kib, err := n.memory()
		if err != nil {
			return ": " + err.Error()
		}
		total += kib
	}
	return fmt.Sprintf(", %d MiB each", total/len(f.nodes)>>10)
}

// settled waits until all nodes announce all at its best, and the routers see it.
func (f *fleet) settled(ctx context.Context) error {
	return (&story.Teller{Lab: f.Lab, Say: f.t.Logf}).Settle(ctx)
}

// Logs returns the last lines of the routers, and of what the daemons of each node say.
func (f *fleet) Logs(lines int) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var b strings.Builder
	b.WriteString(f.Lab.Logs(lines))
	for _, n := range f.nodes {
		out, err := n.run(ctx, "journalctl", "--no-pager", "-o", "short-precise", "-n", fmt.Sprint(lines), "-u", "edge*")
		fmt.Fprintf(&b, "--- %s %v\n%s", n.Name(), err, out)
	}
	return b.String()
}

func (f *fleet) close() {
	start := time.Now()
	for _, n := range f.nodes {
		n.close()
	}
	if err := f.Close(); err != nil {
		f.t.Error(err)
	}
	if err := f.left(); err != nil {
		f.t.Error(err)
	}
	f.t.Logf("%5.1f s  all is gone", time.Since(start).Seconds())
}

// left is an error if something of the fleet is on the machine.
func (f *fleet) left() error {
	if _, err := os.Stat(f.Dir()); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is left, %v", f.Dir(), err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), f.Dir()) {
		return fmt.Errorf("something below %s is mounted, %v", f.Dir(), err)
	}
	for _, where := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // the second: beside version 1
		if groups, err := filepath.Glob(where + filepath.Base(f.Dir())); err != nil || len(groups) > 0 {
			return fmt.Errorf("%v are left, %v", groups, err)
		}
	}
	return nil
}

// pace is that of the lab's probes, slowPace one that nine systems on two cores keep up
// with.
var pace = regexp.MustCompile(`interval: \S+, timeout: \S+, rise: \d+, fall: \d+`)

const slowPace = "interval: 3s, timeout: 3s, rise: 1, fall: 3"

// secretsDir is where a node has its secrets.
const secretsDir = "/etc/edge/secrets"

// config is the configuration that the lab would give to the box, with the paths of a
// node.
func (n *node) config() (string, error) {
	yaml, err := n.Config()
	return nodeConfig(yaml, n.lab.Dir(), n.Name()), err
}

func nodeConfig(yaml, dir, name string) string {
	var out strings.Builder
	for line := range strings.Lines(yaml) {
		switch key, _, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "run_dir", "state_dir", "bpf_dir", "drain_file":
			continue // the defaults
		case "access_log":
			line = strings.Replace(line, dir+"/"+name, "/var/log/edgeproxy", 1)
		case "lease":
			line = strings.Replace(line, "5s", "15s", 1)
		case "drain_time": // a router is asked twice a second
			line = strings.Replace(line, "1s", "2s", 1)
		case "promise_lease": // how long an edged that has just started does not leave
			line = strings.Replace(line, "10s", "5s", 1)
		}
		if line == "  health:\n" {
			line += "    node_check: {interval: 2s, timeout: 2s, fall: 3}\n"
		}
		line = pace.ReplaceAllString(line, slowPace)
		for _, own := range []string{"node", "bgp"} {
			line = strings.ReplaceAll(line, dir+"/secrets/"+own+"-"+name+".key", secretsDir+"/"+own+".key")
		}
		line = strings.ReplaceAll(line, dir+"/secrets/", secretsDir+"/")
		line = strings.ReplaceAll(line, dir+"/"+name+"/run/", "/run/edge/")
		out.WriteString(line)
	}
	return out.String()
}
