package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/catchment-dev/edge"
)

func TestServesAndEnds(t *testing.T) {
	s := newSite(t)
	p := s.start(s.command())
	p.awaitServing()
	p.serves()
	st, err := p.state()
	if err != nil || st.PID != p.cmd.Process.Pid || st.Requests < 3 || st.Responses["2xx"] < 3 || len(st.Listeners) != 2 || len(st.ConfigHash) != 64 {
		t.Errorf("state %+v, %v", st, err)
	}
	if r := st.Load.Regions[0]; r.RTT <= 0 || r.Of != 1 || r.Allowance != 1000 {
		t.Errorf("region %+v", r)
	}
	if pid, _ := os.ReadFile(s.path("run/edgeproxy.pid")); strings.TrimSpace(string(pid)) != strconv.Itoa(st.PID) {
		t.Errorf("pid file %q", pid)
	}
	second := s.start(s.command())
	if err := second.wait(); err == nil || !strings.Contains(second.stderr.String(), "address already in use") {
		t.Errorf("a second process: %v, %s", err, second.stderr)
	}
	p.serves()

	slow := make(chan string, 1)
	go func() { slow <- s.curl("https://www.example.net/slow") }()
	<-s.asked
	p.cmd.Process.Signal(syscall.SIGTERM)
	waitFor(t, "the listeners to close", func() bool {
		c, err := net.Dial("tcp", s.vip()+":443")
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	s.release()
	if out := <-slow; out != "origin 200" {
		t.Errorf("in flight at SIGTERM: %s", out)
	}
	if err := p.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(s.path("run/edgeproxy.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file after the end: %v", err)
	}
	if log, _ := os.ReadFile(s.path("access.log")); strings.Count(string(log), "\n") < 6 {
		t.Errorf("access log:\n%s", log)
	}
}

func TestAPI(t *testing.T) {
	s := newSite(t)
	p := s.start(s.command())
	p.awaitServing()
	call := func(method, path string, in any) string {
		if err := p.client.Call(t.Context(), method, path, in, nil); err != nil {
			return err.Error()
		}
		return ""
	}
	row := edge.FleetRow{Node: "b1", Load: edge.LoadRow{Demand: 900, Regions: []edge.RegionView{{Region: "east", RTT: 1, Up: 1, Of: 1}}}}
	if err := call("PUT", "/v1/fleet", edge.FleetLoad{Rows: []edge.FleetRow{row}}); err != "" {
		t.Error(err)
	}
	waitFor(t, "the waterfall to leave room for the other node", func() bool { // 900 and half of the rest are its
		st, err := p.state()
		return err == nil && st.Load.Regions[0].Allowance == 50
	})
	later := map[string]any{"rows": []any{}, "later": 1}
	if err := call("PUT", "/v1/fleet", later); err != "" {
		t.Errorf("a newer edged: %q", err)
	}
	for _, bad := range []any{nil, "text", map[string]any{"rows": 1}} {
		if err := call("PUT", "/v1/fleet", bad); !strings.Contains(err, "read body") {
			t.Errorf("bad body %v: %q", bad, err)
		}
	}
	before, _ := p.state()
	for text, want := range map[string]string{
		"node: {name: a1}": "edge.yaml", "nonsense": "edge.yaml",
		s.read("edge.yaml", "name: a1\n", "name: b1\n"):         "needs a restart",
		s.read("edge.yaml", "cert_file: ", "cert_file: /none/"): "/none/",
	} {
		os.WriteFile(s.path("edge.yaml"), []byte(text), 0o644)
		if err := call("POST", "/v1/reload", nil); !strings.Contains(err, want) {
			t.Errorf("bad config: %q, want %q", err, want)
		}
	}
	if after, err := p.state(); err != nil || after.ConfigHash != before.ConfigHash {
		t.Errorf("after refused reloads: %v", err)
	}
	p.serves()
	row.Load.Demand = 0
	if err := call("PUT", "/v1/fleet", edge.FleetLoad{Rows: []edge.FleetRow{row}}); err != "" {
		t.Error(err)
	}
	s.route, s.capacity, s.extra = "/only", 7, "    - {name: more, vip: "+s.net+".11, port: 80, protocol: tcp, proxy: http}"
	s.configure()
	if err := call("POST", "/v1/reload", nil); err != "" {
		t.Error(err)
	}
	if after, _ := p.state(); after.ConfigHash == before.ConfigHash || len(after.Listeners) != 3 {
		t.Errorf("after a reload: %+v", after)
	}
	if out := s.curl("https://www.example.net/x"); !strings.HasSuffix(out, " 404") {
		t.Errorf("old route: %s", out)
	}
	if out := s.curl("http://" + s.net + ".11/only/y"); out != "origin 200" {
		t.Errorf("new route and service: %s", out)
	}
	metrics := s.curl("http://edge/metrics", "--unix-socket", s.path("run/edgeproxy.sock"))
	for _, want := range []string{
		`edge_proxy_requests_total{class="2xx"}`, "edge_proxy_request_duration_seconds_bucket", `edge_proxy_region_requests_total{class="2xx",region="east"}`,
		"edge_proxy_connections ", `edge_backbone_region_capacity_requests_per_second{region="east"} 7`, "go_goroutines",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func (s *site) read(name, old, with string) string {
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Replace(string(b), old, with, 1)
}

// TestBecomesItsUser: the process that serves keeps pid and sockets and has no
// privilege left.
func TestBecomesItsUser(t *testing.T) {
	s := newSite(t)
	s.user = "nobody"
	s.configure()
	p := s.start(s.command())
	p.awaitServing()
	p.serves()
	st, err := p.state()
	if err != nil || st.PID != p.cmd.Process.Pid {
		t.Errorf("state %+v, %v", st, err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", st.PID))
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t65534 \n", "NoNewPrivs:\t1\n",
			"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
			if !bytes.Contains(status, []byte(want)) {
				t.Errorf("%s lacks %q:\n%s", task, want, status)
			}
		}
	}
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.PID))
	if !bytes.Contains(env, fmt.Appendf(nil, "%s=%d:", passedFDs, st.PID)) {
		t.Errorf("environment %q", env)
	}
	if err := p.client.Call(t.Context(), "POST", "/v1/reload", nil, nil); err != nil {
		t.Error(err)
	}
	p.serves()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	again := s.start(s.command()) // over what the first one could not remove
	again.awaitServing()
	again.serves()
}

func TestBecomingFails(t *testing.T) {
	s := newSite(t)
	s.user = "nobody"
	s.configure()
	if err := os.Chmod(s.path("web.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.start(s.command())
	if err := p.wait(); err == nil || !strings.Contains(p.stderr.String(), "edgeproxy runs as user nobody, which must be able to read the key") {
		t.Errorf("%v: %s", err, p.stderr)
	}
	s.user = "no-such-user"
	s.configure()
	p = s.start(s.command())
	if err := p.wait(); err == nil || !strings.Contains(p.stderr.String(), "no-such-user") {
		t.Errorf("%v: %s", err, p.stderr)
	}
}

// TestInheritsSockets: as a service manager passes them.
func TestInheritsSockets(t *testing.T) {
	for _, user := range []string{"", "nobody"} {
		s := newSite(t)
		s.user = user
		s.configure()
		var files []*os.File
		for _, at := range []string{s.vip() + ":443", s.vip() + ":9999"} { // the second is nobody's
			ln, err := net.Listen("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			f, err := ln.(*net.TCPListener).File()
			if err != nil {
				t.Fatal(err)
			}
			ln.Close()
			files = append(files, f)
		}
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=2 exec "$@"`, "sh", binary, "-config", s.path("edge.yaml"))
		cmd.ExtraFiles = files
		p := s.start(cmd)
		for _, f := range files {
			f.Close()
		}
		p.awaitServing()
		p.serves()
		if _, err := net.Dial("tcp", s.vip()+":9999"); err == nil {
			t.Error("the socket that nobody wants still accepts")
		}
	}
}

func TestUsage(t *testing.T) {
	var errOut bytes.Buffer
	if code := run([]string{"-nonsense"}, io.Discard, &errOut); code != 2 {
		t.Errorf("exit %d", code)
	}
	if code := run([]string{"-config", "/nowhere.yaml"}, io.Discard, &errOut); code != 1 || !strings.Contains(errOut.String(), "/nowhere.yaml") {
		t.Errorf("exit %d: %s", code, errOut.String())
	}
	var out bytes.Buffer
	if code := run([]string{"-version"}, &out, &errOut); code != 0 || out.Len() < 2 {
		t.Errorf("-version: exit %d, %q", code, out.String())
	}
}

func TestInherited(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		env  map[string]string
		want []int
		bad  bool
	}{
		{nil, nil, false},
		{map[string]string{"LISTEN_PID": "1", "LISTEN_FDS": "3"}, nil, false},
		{map[string]string{"LISTEN_PID": own, "LISTEN_FDS": "3"}, []int{3, 4, 5}, false},
		{map[string]string{"LISTEN_PID": own, "LISTEN_FDS": "-1"}, nil, true},
		{map[string]string{"LISTEN_PID": own, "LISTEN_FDS": "99999999"}, nil, true},
		{map[string]string{passedFDs: "1:7"}, nil, false},
		{map[string]string{passedFDs: own + ":7,12"}, []int{7, 12}, false},
		{map[string]string{passedFDs: own + ":7,x"}, nil, true},
		{map[string]string{passedFDs: own + ":2"}, nil, true},
		{map[string]string{passedFDs: own + ":"}, nil, true},
	} {
		got, err := inherited(func(key string) string { return tt.env[key] })
		if !slices.Equal(got, tt.want) || (err != nil) != tt.bad {
			t.Errorf("%v: %v, %v", tt.env, got, err)
		}
	}
}
