package ansible

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const prefix = "198.51.100.0/24"

// standIn is a node as a rollout sees it: sockets that answer as edged and edgeproxy
// do, and a file with its versions, which the stand-in of role edge_upgrade changes.
type standIn struct {
	name, site, dir string
	world           *world

	mu     sync.Mutex
	drains []map[string]any
	// refuses has the guard refuse to let it leave.
	refuses bool
	// stays has it stay on the air while it is drained.
	stays bool
	// sick is the version that it is not healthy with, slow and failing those with which
	// its requests take longer or fail, crashing the one whose edged is started all the time.
	sick, slow, failing, crashing string
	requests                      float64
	rate                          float64
	// begun is an hour after its daemons were started, asked when it was asked last.
	begun, asked time.Time
	errs, late   float64
}

// world is a fleet of them, and what was seen of it.
type world struct {
	t     *testing.T
	nodes []*standIn

	mu sync.Mutex
	// log is the order in which nodes left and came back; worst is how many sites were
	// off the air at once.
	log   []string
	worst int
}

type versions struct {
	Kind      string            `json:"kind"`
	Running   string            `json:"running"`
	Staged    *string           `json:"staged"`
	Previous  *string           `json:"previous"`
	Good      bool              `json:"good"`
	WhyNot    []string          `json:"why_not_good"`
	RefusedBy map[string]string `json:"refused"`
}

func (w *world) add(dir, name, site string) *standIn {
	w.t.Helper()
	s := &standIn{name: name, site: site, dir: filepath.Join(dir, name), world: w, rate: 100, begun: time.Now(), asked: time.Now()}
	must(w.t, os.MkdirAll(s.dir, 0o755))
	s.runs("1.0.0")
	s.serve("edged.sock", s.edged())
	proxy := http.NewServeMux()
	proxy.HandleFunc("GET /metrics", s.metrics)
	s.serve("edgeproxy.sock", proxy)
	w.nodes = append(w.nodes, s)
	return s
}

func (s *standIn) serve(name string, h http.Handler) {
	s.world.t.Helper()
	l, err := net.Listen("unix", filepath.Join(s.dir, name))
	must(s.world.t, err)
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	s.world.t.Cleanup(func() {
		must(s.world.t, server.Close())
		<-ended
	})
}

func (s *standIn) runs(version string) {
	s.world.t.Helper()
	text, err := json.Marshal(versions{Kind: "deb", Running: version, Good: true, WhyNot: []string{}, RefusedBy: map[string]string{}})
	must(s.world.t, err)
	must(s.world.t, os.WriteFile(filepath.Join(s.dir, "versions.json"), text, 0o644))
}

// versions are those of its file; while that is written, what was read last counts.
func (s *standIn) versions() (v versions) {
	for range 100 {
		text, err := os.ReadFile(filepath.Join(s.dir, "versions.json"))
		if err == nil && json.Unmarshal(text, &v) == nil {
			return v
		}
	}
	return v
}

func (s *standIn) edged() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, doc any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(doc)
	}
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.status()) })
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		var order map[string]any
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
			http.Error(w, `{"error": "no order"}`, 400)
			return
		}
		order["since"] = stamp(time.Now())
		s.ordered([]map[string]any{order}, "drain ")
		answer(w, s.status())
	})
	mux.HandleFunc("POST /v1/undrain", func(w http.ResponseWriter, _ *http.Request) {
		s.ordered(nil, "undrain ")
		answer(w, s.status())
	})
	mux.HandleFunc("GET /v1/guard/what-if", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, map[string]any{"prefixes": []any{map[string]any{"prefix": prefix, "site": s.site, "ok": !s.refuses, "reason": "b9 refuses"}}})
	})
	return mux
}

func (s *standIn) ordered(drains []map[string]any, what string) {
	s.mu.Lock()
	s.drains = drains
	s.mu.Unlock()
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.world.log = append(s.world.log, what+s.name)
	out := map[string]bool{}
	for _, n := range s.world.nodes {
		if n.drained() != "" {
			out[n.site] = true
		}
	}
	s.world.worst = max(s.world.worst, len(out))
}

// drained is the reason of its order to drain.
func (s *standIn) drained() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.drains {
		return d["reason"].(string)
	}
	return ""
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func (s *standIn) status() map[string]any {
	v, now := s.versions(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	sick := s.sick == v.Running
	decision := map[string]any{"prefix": prefix, "rung": "announced", "since": stamp(now)}
	held := []any{map[string]any{"prefix": prefix}}
	if len(s.drains) > 0 && !s.stays {
		decision = map[string]any{"prefix": prefix, "rung": "withdrawn", "since": stamp(now), "reason": fmt.Sprint("drained: ", s.drains[0]["reason"]), "unserved": true}
		held = []any{}
	}
	started := s.begun.Add(-time.Hour)
	if s.crashing == v.Running {
		started = now
	}
	health, reason := "healthy", ""
	if sick {
		health, reason = "sick", "probe web fails"
	}
	return map[string]any{
		"node": s.name, "site": s.site, "version": v.Running, "time": stamp(now), "started": stamp(started), "generation": 1, "alarms": []any{},
		"drains": s.drains, "decisions": []any{decision},
		"conditions": []any{map[string]any{"prefix": prefix, "min_sites": 1, "health": health, "reason": reason}},
		"speaker": map[string]any{
			"started": stamp(s.begun.Add(-time.Hour)), "speaker": map[string]any{"peers": []any{map[string]any{"id": "r1"}}},
			"peers": []any{map[string]any{"id": "r1", "session": "established", "held": held, "families": []any{"ipv4"}}},
		},
		"guard": map[string]any{"fresh_ns": 4e9, "prefixes": []any{map[string]any{"prefix": prefix, "floor": 1}}, "members": []any{}},
	}
}

// metrics counts as many requests as would have come since it was asked last.
func (s *standIn) metrics(w http.ResponseWriter, _ *http.Request) {
	running := s.versions().Running
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.rate * time.Since(s.asked).Seconds()
	s.asked = time.Now()
	s.requests += n
	if s.failing == running {
		s.errs += n / 10
	}
	if s.slow == running {
		s.late += n
	}
	fmt.Fprintf(w, "edge_proxy_requests_total{class=\"2xx\"} %g\nedge_proxy_requests_total{class=\"5xx\"} %g\n", s.requests-s.errs, s.errs)
	fmt.Fprintf(w, "edge_proxy_request_duration_seconds_bucket{le=\"0.008\"} %g\nedge_proxy_request_duration_seconds_bucket{le=\"4.096\"} %g\n", s.requests-s.late, s.requests)
	fmt.Fprintf(w, "edge_proxy_request_duration_seconds_bucket{le=\"+Inf\"} %g\n", s.requests)
}

// inventory describes the stand-ins as the inventory plugin would.
func (w *world) inventory(path, dir string) error {
	hosts, sites := map[string]any{}, []any{}
	bySite := map[string][]string{}
	for _, n := range w.nodes {
		with, err := filepath.Abs("testdata/rollout")
		if err != nil {
			return err
		}
		hosts[n.name] = map[string]any{
			"edge_node": n.name, "edge_site": n.site, "edge_kind": "deb", "edge_config": map[string]any{"node": map[string]any{"run_dir": n.dir}},
			"rollout_lock_path": filepath.Join(n.dir, "lock", "lock.json"), "standin_dir": n.dir, "edge_upgrade_with": with,
		}
		if bySite[n.site] == nil {
			sites = append(sites, n.site)
		}
		bySite[n.site] = append(bySite[n.site], n.name)
	}
	for i, s := range sites {
		sites[i] = map[string]any{"name": s, "capacity": 1000, "nodes": bySite[s.(string)]}
	}
	// One that nobody can reach.
	hosts["d1"] = map[string]any{"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
	sites = append(sites, map[string]any{"name": "d", "capacity": 1000, "nodes": []string{"d1"}})
	fleet := map[string]any{"sites": sites, "prefixes": []any{map[string]any{"prefix": prefix, "min_sites": 1}}, "guard": map[string]any{"max_planned": 1}}
	text, err := json.Marshal(map[string]any{"all": map[string]any{"children": map[string]any{"edge": map[string]any{
		"hosts": hosts, "vars": map[string]any{
			"edge_fleet": fleet, "edge_fleet_dir": dir, "ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3",
			"rollout_soak": "1s", "rollout_canary_soak": "1s", "rollout_permit_wait": "20s", "rollout_drain_wait": "20s", "rollout_upgrade_wait": "3s", "rollout_well_wait": "3s",
			"rollout_healthy_times": 2, "rollout_healthy_interval": "100ms", "rollout_limits": map[string]any{"min_requests": 20},
		},
	}}}})
	return errors.Join(err, os.WriteFile(path, text, 0o644))
}

// left are the nodes in the order in which they left.
func (w *world) left() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, line := range w.log {
		if name, ok := strings.CutPrefix(line, "drain "); ok {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}
