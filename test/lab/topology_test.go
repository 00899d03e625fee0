package lab

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

func TestTopologyMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Topology)
		want   []string
	}{
		"none":        {func(*Topology) {}, nil},
		"bad name":    {func(t *Topology) { t.Clients[0].Name = "Client A" }, []string{`client "Client A": a name is`}},
		"long name":   {func(t *Topology) { t.Clients[0].Name = "client-number-one" }, []string{"a name is"}},
		"twice":       {func(t *Topology) { t.Regions[1].Name = "east" }, []string{"region east: the name is taken"}},
		"shared":      {func(t *Topology) { t.Clients[0].Name = "shared" }, []string{"the name is taken"}},
		"no router":   {func(t *Topology) { t.Sites[0].Router = "r-x"; t.Shared = "r-y" }, []string{`site a: there is no router "r-x"`, `shared: there is no router "r-y"`}},
		"kind":        {func(t *Topology) { t.Routers[0].Kind = "ios" }, []string{`kind "ios"`}},
		"delay":       {func(t *Topology) { t.Cores[0].Delay = 2 * time.Second }, []string{"core r-a--r-b"}},
		"origins":     {func(t *Topology) { t.Regions[0].Origins = 0 }, []string{"region east"}},
		"server":      {func(t *Topology) { t.Servers = []ServerSpec{{"a1", "r-x"}} }, []string{"server a1: the name is taken", `server a1: there is no router "r-x"`}},
		"servers":     {func(t *Topology) { t.Servers = make([]ServerSpec, 50) }, []string{"servers: 50 are more than 49"}},
		"to itself":   {func(t *Topology) { t.Cores[0].B = "r-a" }, []string{"core r-a--r-a"}},
		"many sites":  {func(t *Topology) { t.Sites = make([]SiteSpec, 10) }, []string{"sites: 10 are more than 9"}},
		"no floor":    {func(t *Topology) { t.MinSites = 3 }, []string{"a floor of 3: not 1 to 2"}},
		"negative":    {func(t *Topology) { t.MinSites = -1 }, []string{"a floor of -1"}},
		"probes":      {func(t *Topology) { t.ProbeEvery = time.Millisecond }, []string{"probes every 1ms"}},
		"device name": {func(t *Topology) { t.Clients[0].Name = "eth0" }, []string{"a name is"}},
	} {
		t.Run(name, func(t *testing.T) {
			top := Default()
			c.change(&top)
			err := top.check()
			if (err == nil) != (c.want == nil) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want also %q", err, w)
				}
			}
		})
	}
}

// TestPlanHasNoAddressTwice looks at the largest topology.
func TestPlanHasNoAddressTwice(t *testing.T) {
	top := Default()
	top.Sites = nil
	for i := range 9 {
		s := SiteSpec{Name: "s" + string(rune('a'+i)), Router: "r-a"}
		for range 200 {
			s.Boxes = append(s.Boxes, BoxSpec{Name: "b", MD5: true})
		}
		top.Sites = append(top.Sites, s)
	}
	top.Regions = make([]RegionSpec, 19)
	for i := range top.Regions {
		top.Regions[i] = RegionSpec{Name: "r", Router: "r-a", Origins: 100}
	}
	top.Servers = make([]ServerSpec, 49)
	for i := range top.Servers {
		top.Servers[i] = ServerSpec{Name: "v", Router: "r-a"}
	}
	top.Clients = make([]ClientSpec, 99)
	for i := range top.Clients {
		top.Clients[i] = ClientSpec{Name: "c", Router: "r-a"}
	}
	p := newPlan(&top)
	seen := map[netip.Addr]bool{}
	networks := map[netip.Prefix]bool{}
	for _, a := range p.attachments {
		for _, p := range append(a.near, a.far...) {
			if seen[p.Addr()] {
				t.Fatalf("%s is used twice", p.Addr())
			}
			seen[p.Addr()] = true
		}
		for _, p := range a.near {
			if networks[p.Masked()] {
				t.Fatalf("%s is used twice", p)
			}
			networks[p.Masked()] = true
		}
	}
	for _, b := range p.boxes {
		if seen[b.Probe4] || seen[b.Probe6] {
			t.Fatalf("probe source %s or %s is used twice", b.Probe4, b.Probe6)
		}
	}
}

// TestConfigIsTaken has the product's own parser read what boxes get.
func TestConfigIsTaken(t *testing.T) {
	bare := Default()
	bare.Shared, bare.Regions = "", bare.Regions[:1]
	watched := Default()
	watched.BFD, watched.ProbeEvery = true, 200*time.Millisecond
	floor := Default()
	floor.MinSites = 2
	for name, top := range map[string]Topology{"default": Default(), "bare": bare, "pair": Pair(FRR), "watched": watched, "floor": floor} {
		p := newPlan(&top)
		s, err := newSecrets(t.TempDir()+"/secrets", p)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range p.boxes {
			text, err := renderConfig(&top, p, s, b, "/tmp/catchment-lab-x/"+b.Name)
			if err != nil {
				t.Fatal(err)
			}
			c, err := edge.Parse(b.Name+".yaml", []byte(text))
			if err != nil {
				t.Fatalf("%s, %s:\n%v", name, b.Name, err)
			}
			if c.Self().Site != edge.SiteID(b.Site) || len(c.Fleet.Nodes) != len(p.boxes) || len(c.Fleet.Regions) != len(top.Regions) {
				t.Errorf("%s, %s: got %+v", name, b.Name, c.Self())
			}
			if got, want := c.Fleet.Prefixes[0].MinSites, cmp.Or(top.MinSites, min(1, len(top.Sites)-1)); got != want {
				t.Errorf("%s, %s: a floor of %d, want %d", name, b.Name, got, want)
			}
			if got := c.Local.Speaker.Peers[0].BFD != nil; got != top.BFD {
				t.Errorf("%s, %s: BFD %t, want %t", name, b.Name, got, top.BFD)
			}
			for _, probe := range c.Fleet.Health.Probes {
				paced := probe.Kind == edge.ProbeProcess || probe.Kind == edge.ProbeVIP
				if paced && top.ProbeEvery > 0 && (probe.Interval != top.ProbeEvery || probe.Fall != 3) {
					t.Errorf("%s, %s: probe %s runs every %s, falls after %d", name, b.Name, probe.ID, probe.Interval, probe.Fall)
				}
			}
		}
	}
}

func TestEditChangesTheConfiguration(t *testing.T) {
	top := Default()
	top.Edit = func(box, yaml string) string { return "# " + box + "\n" + yaml }
	p := newPlan(&top)
	text, err := renderConfig(&top, p, &secrets{}, p.boxes[0], "/x")
	if err != nil || !strings.HasPrefix(text, "# a1\n") {
		t.Errorf("got %.20q, %v", text, err)
	}
}

func TestRateCountsWholeSeconds(t *testing.T) {
	var r rate
	at := time.Unix(1000, 0)
	for i := range 30 {
		r.add(at.Add(time.Duration(i) * 100 * time.Millisecond)) // 10 a second, 3 s
	}
	for after, want := range map[time.Duration]int{2900 * time.Millisecond: 10} {
		if got := r.last(at.Add(after)); got != want {
			t.Errorf("after %s: %d, want %d", after, got, want)
		}
	}
	if got := r.last(at.Add(3 * time.Second)); got != 10 {
		t.Errorf("a second later: %d, want 10", got)
	}
	if got := r.last(at.Add(5 * time.Second)); got != 0 {
		t.Errorf("after a pause: %d, want 0", got)
	}
}
