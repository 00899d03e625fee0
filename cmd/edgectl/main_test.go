package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/cmd/internal/socket"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edged is a server with fixed answers on a real unix socket. It notes what it
// was asked.
type edged struct {
	status edge.SystemStatus
	asked  []string
	reload func(http.ResponseWriter)
}

// serve starts e and returns the path of its socket.
func (e *edged) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edged.sock")
	serve(t, path, e)
	return path
}

func (e *edged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body any
	if r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			body = err.Error()
		}
	}
	b, _ := json.Marshal(body)
	e.asked = append(e.asked, fmt.Sprintf("%s %s %s", r.Method, r.URL, b))
	switch what := r.URL.Query().Get("what"); r.URL.Path {
	case "/v1/guard/decisions", "/v1/guard/what-if":
		serveGuard(w, r)
	case "/v1/status", "/v1/undrain", "/v1/prefer", "/v1/guard/trust":
		socket.JSON(w, http.StatusOK, e.status)
	case "/v1/drain":
		if strings.Contains(string(b), "192.0.2.0/24") {
			socket.Fail(w, http.StatusConflict, errors.New("192.0.2.0/24 is not a prefix of the configuration"))
			return
		}
		socket.JSON(w, http.StatusOK, e.status)
	case "/v1/explain":
		if what == "nothing" {
			socket.Fail(w, http.StatusBadRequest, fmt.Errorf("%q is not a prefix, a VIP or a flow", what))
			return
		}
		socket.JSON(w, http.StatusOK, edge.Explanation{What: what, Kind: "prefix", Lines: []string{what + " is announced", "peer r-a holds \x1b[2J it"}})
	case "/v1/history":
		socket.JSON(w, http.StatusOK, edge.Events{Next: 3, Events: []edge.Event{
			{Time: ago(2 * time.Hour), Kind: "probe", Subject: "forwarder", From: "unknown", To: "up"},
			{Time: ago(97 * time.Second), Kind: "probe", Subject: "web-vip", From: "up", To: "down", Evidence: "answered 503"},
			{Time: ago(95 * time.Second), Kind: "prefix", Subject: "198.51.100.0/24", From: "announced", To: "leaving", Evidence: "web-vip is down"},
		}})
	case "/v1/what-if":
		if r.URL.Query().Has("none") {
			socket.Fail(w, http.StatusConflict, errors.New("there is no probe none here; a group follows from its members"))
			return
		}
		socket.JSON(w, http.StatusOK, edge.WhatIf{
			Now:   []edge.Decision{{Prefix: prefix4, Rung: edge.Announced}, {Prefix: prefix6, Rung: edge.Announced}},
			Then:  []edge.Decision{{Prefix: prefix4, Rung: edge.Leaving, Reason: "web-vip is down: assumed"}, {Prefix: prefix6, Rung: edge.Announced}},
			Notes: []string{"198.51.100.0/24: 1 other sites must promise to stay, 2 announce it now: it would be withdrawn if so many of them promise to stay"},
		})
	case "/v1/reload":
		e.reload(w)
	case "/v1/flows":
		serveFlows(w, r)
	case "/v1/capture":
		serveCapture(w, r)
	default:
		http.NotFound(w, r)
	}
}

// call runs a command line and returns what a person sees.
func call(t *testing.T, colour bool, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	now := func() time.Time { return sampleTime.Add(time.Second) }
	code = run(t.Context(), env{stdout: &out, stderr: &errs, now: now, terminal: colour, colour: colour, user: "ops (edgectl, pid 7)"}, args)
	return out.String(), errs.String(), code
}

// golden compares what a command printed with a file.
func golden(t *testing.T, name string, args []string, colour bool) {
	t.Helper()
	stdout, stderr, code := call(t, colour, args...)
	got := fmt.Sprintf("%s\n--- exit %d\n%s", stdout, code, stderr)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%q\n got:\n%s\nwant:\n%s", args, got, want)
	}
}

func TestGolden(t *testing.T) {
	bad := &edged{status: sample(), reload: func(w http.ResponseWriter) {
		socket.Fail(w, http.StatusConflict, errors.New("/etc/edge/edge.yaml:3:9: node.bgp.asn: 0 is not a whole number\n/etc/edge/edge.yaml:5:1: other: no such key"))
	}}
	good := &edged{status: quiet(), reload: func(w http.ResponseWriter) {
		socket.JSON(w, http.StatusOK, map[string]any{"generation": 8, "changes": []string{"fleet.regions[east]: added", "node.bgp.lease: 5s -> 9s"}})
	}}
	unknown := &edged{reload: func(w http.ResponseWriter) {
		socket.JSON(w, http.StatusOK, map[string]any{"generation": 8, "changes": []string{}})
	}}
	b, g, u := "--socket="+bad.serve(t), "--socket="+good.serve(t), "--socket="+unknown.serve(t)
	for name, args := range map[string][]string{
		"help":               {"--help"},
		"help-drain":         {"drain", "--help"},
		"status-bad-day":     {b, "status"},
		"status-bad-day-v":   {b, "status", "-v"},
		"status-quiet":       {g, "status"},
		"status-unknown":     {u, "status"},
		"status-json":        {g, "status", "-o", "json"},
		"explain":            {g, "explain", "198.51.100.0/24"},
		"explain-flow":       {g, "explain", "tcp", "192.0.2.1:40000", "198.51.100.10:443"},
		"explain-json":       {g, "explain", "198.51.100.10", "-o", "json"},
		"explain-refused":    {g, "explain", "nothing"},
		"explain-none":       {g, "explain"},
		"drain":              {b, "drain", "198.51.100.0/24", "--reason", "new line cards"},
		"drain-all":          {b, "drain", "--reason", "new line cards"},
		"drain-refused":      {g, "drain", "192.0.2.0/24", "--reason", "x"},
		"drain-no-reason":    {g, "drain"},
		"drain-no-prefix":    {g, "drain", "198.51.100.0", "--reason", "x"},
		"drain-host-bits":    {g, "drain", "198.51.100.1/24", "--reason", "x"},
		"undrain":            {g, "undrain", "198.51.100.0/24"},
		"undrain-undecided":  {u, "undrain"},
		"drain-service":      {b, "drain", "--service", "web", "--for", "1h", "--reason", "x"},
		"drain-both":         {b, "drain", "198.51.100.0/24", "--service", "web", "--reason", "x"},
		"bgp":                {b, "bgp"},
		"bgp-quiet":          {g, "bgp"},
		"bgp-peer":           {b, "bgp", "r-a"},
		"bgp-no-peer":        {b, "bgp", "r-x"},
		"bgp-unknown":        {u, "bgp"},
		"bgp-json":           {g, "bgp", "-o", "json"},
		"help-bgp":           {"bgp", "--help"},
		"help-prefer":        {"bgp", "prefer", "--help"},
		"prefer":             {b, "bgp", "prefer", "b", "--for", "2h", "--reason", "b has room"},
		"prefer-no-reason":   {b, "bgp", "prefer", "b"},
		"prefer-too-long":    {b, "bgp", "prefer", "b", "--for", "999h", "--reason", "x"},
		"prefer-host-bits":   {b, "bgp", "prefer", "b", "--prefix", "198.51.100.1/24", "--reason", "x"},
		"health":             {b, "health"},
		"health-quiet":       {g, "health", "--events", "1"},
		"what-if":            {g, "health", "what-if", "web-vip=down"},
		"what-if-refused":    {g, "health", "what-if", "none=down"},
		"what-if-wrong":      {g, "health", "what-if", "web-vip=broken"},
		"help-guard":         {"guard", "--help"},
		"guard":              {b, "guard"},
		"guard-quiet":        {g, "guard"},
		"guard-unknown":      {u, "guard"},
		"guard-json":         {b, "guard", "-o", "json"},
		"guard-decisions":    {b, "guard", "decisions"},
		"guard-one-decision": {b, "guard", "decisions", "--last", "1"},
		"guard-what-if":      {b, "guard", "what-if", "--withdraw", "b", "c"},
		"guard-what-if-none": {b, "guard", "what-if", "b"},
		"guard-what-if-bad":  {b, "guard", "what-if", "--withdraw", "x"},
		"trust":              {b, "guard", "trust", "web-vip", "--for", "2h", "--reason", "it is right"},
		"trust-no-reason":    {b, "guard", "trust", "web-vip"},
		"trust-too-long":     {b, "guard", "trust", "web-vip", "--for", "999h", "--reason", "x"},
		"untrust":            {g, "guard", "untrust", "web-vip", "--reason", "over"},
		"drain-wait-late":    {b, "drain", "--reason", "power", "--wait", "300ms"},
		"reload":             {g, "reload"},
		"reload-json":        {g, "reload", "-o", "json"},
		"reload-refused":     {b, "reload"},
		"reload-nothing-new": {u, "reload"},
		"check-ok":           {"check", "../../reference.yaml"},
		"check-ok-json":      {"check", "../../reference.yaml", "-o", "json"},
		"check-bad":          {"check", "testdata/bad.yaml"},
		"check-bad-json":     {"check", "testdata/bad.yaml", "-o", "json"},
		"check-missing":      {"check", "testdata/none.yaml"},
		"no-command":         {},
		"bad-command":        {"stat"},
		"bad-flag":           {"status", "--loud"},
		"bad-output":         {"status", "-o", "xml"},
		"bad-timeout":        {"status", "--timeout", "0s"},
		"bad-arguments":      {"reload", "now"},
		"help-guard-key":     {"guard", "key", "--help"},
		"guard-key-exists":   {"guard", "key", "--out", "testdata/bad.yaml"},
		"help-flows":         {"flows", "--help"},
		"flows":              {g, "flows"},
		"flows-json":         {g, "flows", "-o", "json", "--limit", "2"},
		"flows-none":         {g, "flows", "--service", "quiet"},
		"flows-refused":      {g, "flows", "--service", "wbe"},
		"help-capture":       {"capture", "--help"},
		"capture":            {g, "capture"},
		"capture-busy":       {g, "capture", "--service", "busy"},
		"capture-broken":     {g, "capture", "--service", "broken"},
		"capture-duration":   {g, "capture", "--duration", "1500ms"},
		"capture-json":       {g, "capture", "-o", "json", "--out", "/nowhere/x"},
		"capture-no-folder":  {g, "capture", "--out", "/nowhere/x"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, args, false) })
	}
	t.Run("status-colour", func(t *testing.T) { golden(t, "status-colour", []string{b, "status"}, true) })
	t.Run("capture-terminal", func(t *testing.T) { golden(t, "capture-terminal", []string{g, "capture"}, true) })
}

// TestOrders: what edged is asked, to the letter.
func TestOrders(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "GET /v1/status null"},
		{[]string{"explain", "tcp", "192.0.2.1:1", "198.51.100.10:443"}, "GET /v1/explain?what=tcp+192.0.2.1%3A1+198.51.100.10%3A443 null"},
		{[]string{"explain", "udp 192.0.2.1:1 198.51.100.10:443 cid=0a1b"}, "GET /v1/explain?what=udp+192.0.2.1%3A1+198.51.100.10%3A443+cid%3D0a1b null"},
		{[]string{"explain", "udp", "192.0.2.1:1", "198.51.100.10:443", "cid=0a1b"}, "GET /v1/explain?what=udp+192.0.2.1%3A1+198.51.100.10%3A443+cid%3D0a1b null"},
		{[]string{"flows"}, "GET /v1/flows?limit=1000 null"},
		{[]string{"flows", "--service", "web", "--backend", "a1", "--source", "192.0.2.0/24", "--limit", "7"}, "GET /v1/flows?backend=a1&limit=7&service=web&source=192.0.2.0%2F24 null"},
		{[]string{"capture"}, "GET /v1/capture?by=ops+%28edgectl%2C+pid+7%29&packets=1000&rate=1&seconds=10 null"},
		{[]string{"capture", "--one-in", "5", "--only", "drop,tx", "--service", "web", "--duration", "2m", "--packets", "9"},
			"GET /v1/capture?actions=drop%2Ctx&by=ops+%28edgectl%2C+pid+7%29&packets=9&rate=5&seconds=120&service=web null"},
		{[]string{"capture", "-o", "json"}, ""},
		{[]string{"drain", "--reason", "r"}, `POST /v1/drain {"reason":"r","since":"0001-01-01T00:00:00Z"}`},
		{[]string{"drain", "198.51.100.0/24", "--reason", "r"}, `POST /v1/drain {"prefix":"198.51.100.0/24","reason":"r","since":"0001-01-01T00:00:00Z"}`},
		{[]string{"drain", "--service", "web", "--for", "1h", "--reason", "r"}, `POST /v1/drain {"reason":"r","service":"web","since":"0001-01-01T00:00:00Z","until":"2026-03-01T13:00:01Z"}`},
		{[]string{"drain", "--force", "--reason", "r"}, `POST /v1/drain {"force":true,"reason":"r","since":"0001-01-01T00:00:00Z"}`},
		{[]string{"drain", "--force"}, ""},
		{[]string{"drain", "--unless-drained", "--force", "--reason", "r"}, ""},
		{[]string{"drain", "--wait", "-1s", "--reason", "r"}, ""},
		{[]string{"guard"}, "GET /v1/status null"},
		{[]string{"guard", "decisions"}, "GET /v1/guard/decisions null"},
		{[]string{"guard", "decisions", "--last", "0"}, ""},
		{[]string{"guard", "what-if", "--withdraw", "b,c", "d"}, "GET /v1/guard/what-if?withdraw=b&withdraw=c&withdraw=d null"},
		{[]string{"guard", "trust", "web", "--for", "30m", "--reason", "r"}, `POST /v1/guard/trust {"by":"","check":"web","reason":"r","since":"0001-01-01T00:00:00Z","until":"2026-03-01T12:30:01Z"}`},
		{[]string{"guard", "untrust", "web", "--reason", "r"}, `POST /v1/guard/trust {"by":"","check":"web","reason":"r","since":"0001-01-01T00:00:00Z","until":"0001-01-01T00:00:00Z"}`},
		{[]string{"guard", "trust", "--reason", "r"}, ""},
		{[]string{"undrain", "--service", "web"}, `POST /v1/undrain {"service":"web"}`},
		{[]string{"bgp"}, "GET /v1/status null"},
		{[]string{"bgp", "prefer", "b", "c", "--prefix", "198.51.100.0/24", "--prepend", "3", "--med", "7", "--for", "30m", "--reason", "r"},
			`POST /v1/prefer {"by":"","med":7,"prefix":"198.51.100.0/24","prepend":3,"reason":"r","since":"0001-01-01T00:00:00Z","sites":["b","c"],"until":"2026-03-01T12:30:01Z"}`},
		{[]string{"bgp", "unprefer", "--reason", "r"}, `POST /v1/prefer {"by":"","reason":"r","since":"0001-01-01T00:00:00Z","sites":null,"until":"2026-03-08T12:00:01Z"}`},
		{[]string{"bgp", "prefer", "--reason", "r"}, ""},
		{[]string{"health"}, "GET /v1/status null; GET /v1/history null"},
		{[]string{"health", "what-if", "web-vip=down", "x=full"}, "GET /v1/what-if?web-vip=down&x=full null"},
		{[]string{"health", "what-if", "web-vip"}, ""},
		{[]string{"health", "what-if", "a=up", "a=down"}, ""},
		{[]string{"undrain"}, `POST /v1/undrain {}`},
		{[]string{"undrain", "2001:db8::/48"}, `POST /v1/undrain {"prefix":"2001:db8::/48"}`},
		{[]string{"reload"}, "POST /v1/reload null"},
		{[]string{"version"}, ""},
		{[]string{"check", "../../reference.yaml"}, ""},
		{[]string{"drain", "--reason", " "}, ""},
		{[]string{"drain", "everything", "--reason", "r"}, ""},
	} {
		e := &edged{reload: func(w http.ResponseWriter) { socket.JSON(w, http.StatusOK, map[string]any{}) }}
		call(t, false, append(c.args, "--socket", e.serve(t))...)
		if got := strings.Join(e.asked, "; "); got != c.want {
			t.Errorf("%q asks %q, want %q", c.args, got, c.want)
		}
	}
}

// TestNoEdged: what is said when there is no answer.
func TestNoEdged(t *testing.T) {
	dir := t.TempDir()
	stuck, err := net.Listen("unix", filepath.Join(dir, "stuck.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "dead.sock")})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	for _, c := range []struct {
		socket string
		args   []string
		want   string
	}{
		{"none.sock", []string{"status"}, "edged does not answer on DIR/none.sock: is it running?"},
		{"dead.sock", []string{"status"}, "edged does not answer on DIR/dead.sock: is it running?"},
		{"stuck.sock", []string{"status"}, "edged did not answer on DIR/stuck.sock within 50ms: is it busy or stuck? its log may say"},
		{"stuck.sock", []string{"undrain"}, "edged did not answer on DIR/stuck.sock within 50ms; the order may still be done: look with edgectl status"},
	} {
		args := append(c.args, "--timeout", "50ms", "--socket", filepath.Join(dir, c.socket))
		stdout, stderr, code := call(t, false, args...)
		want := "edgectl: " + strings.ReplaceAll(c.want, "DIR", dir) + "\n"
		if stdout != "" || stderr != want || code != exitRefused {
			t.Errorf("%s %q: exit %d, %q, want %q", c.socket, c.args, code, stderr, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 0: "0ms", 1500 * time.Millisecond: "1.5s", 59 * time.Second: "59s", 61 * time.Second: "1m1s",
		3*time.Hour + 59*time.Minute: "3h59m", 49 * time.Hour: "2d1h",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) = %q, want %q", d, got, want)
		}
	}
}

// TestStale: a status that edged made long ago is not shown as the present.
func TestStale(t *testing.T) {
	text := statusText(env{now: func() time.Time { return sampleTime.Add(time.Minute) }}, quiet(), false)
	if !strings.Contains(text, "ALARM  this status is 1m0s old") {
		t.Errorf("no alarm in:\n%s", text)
	}
}

var (
	sampleTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	prefix4    = netip.MustParsePrefix("198.51.100.0/24")
	prefix6    = netip.MustParsePrefix("2001:db8:1::/48")
)

func ago(d time.Duration) time.Time { return sampleTime.Add(-d) }

// quiet is a node on a good day.
func quiet() edge.SystemStatus {
	day := ago(26 * time.Hour)
	claims := []edge.Claim{{Prefix: prefix4, Announcing: true, Rung: edge.Announced, Health: edge.Healthy}}
	return edge.SystemStatus{
		Node: "a1", Site: "a", Version: "v0.1.0", Time: sampleTime, Started: day, Generation: 7, ConfigHash: strings.Repeat("3fa9", 16),
		Decisions:  []edge.Decision{{Prefix: prefix4, Rung: edge.Announced, Since: day}},
		Conditions: []edge.PrefixHealth{{Prefix: prefix4, Condition: edge.Condition{Health: edge.Healthy, Since: day}}},
		Probes:     []edge.Status{{Probe: "forwarder", State: edge.Up, Since: day, LastRun: ago(time.Second)}},
		Speaker: edge.SpeakerState{Generation: 7, Started: day, LeaseLeft: 4200 * time.Millisecond, Peers: []edge.PeerState{
			{ID: "r-a", Addr: netip.MustParseAddr("10.1.0.1"), ASN: 65001, Session: "established", Since: day, Held: []edge.HeldPrefix{{Net: prefix4}}},
		}},
		Guard: edge.GuardState{Members: []edge.MemberState{
			{Node: "a1", Site: "a", Alive: true},
			{Node: "b1", Site: "b", Alive: true, Age: 700 * time.Millisecond, Report: edge.Report{Node: "b1", Says: claims}},
		}},
		Proxy: edge.ProxyState{PID: 4711, Started: day, TicketKeys: []string{"0a1b2c3d", "4e5f6071"}, ConfigHash: strings.Repeat("3fa9", 16), Requests: 12, Connections: 3, Responses: map[string]uint64{"2xx": 12},
			Load: edge.LoadRow{Demand: 4, Regions: []edge.RegionView{{Region: "east", RTT: 8300 * time.Microsecond, Up: 2, Of: 2, Sent: 4, Allowance: 500}}}},
		Forwarder: edge.ForwarderStats{Mode: "native", Interfaces: []string{"eth0"}, Received: 10, Flows: 1000000, Verdicts: []edge.VerdictCount{
			{Action: "pass", Reason: "not for a VIP", Count: 10}, {Action: "drop", Reason: "no backend"}}},
		Services: []edge.ServiceSummary{{ID: "web", VIP: netip.MustParseAddrPort("198.51.100.10:443"), Protocol: edge.TCP, Prefix: prefix4,
			Backends: []edge.BackendSummary{{ID: "a1", State: edge.Up, InRing: true, Local: true}}}},
	}
}

// sample is a node on a bad day: one of everything.
func sample() edge.SystemStatus {
	st := quiet()
	st.Alarms = []string{"198.51.100.0/24 wants to leave and may not: 1 of 2 sites have promised to stay", "peer r-b is active"}
	st.ConfigErr = "/etc/edge/edge.yaml:3:9: node.bgp.asn: 0 is not a whole number\n/etc/edge/edge.yaml:5:1: other: no such key"
	st.Drains = []edge.Drain{{Reason: "maintenance", Since: ago(time.Hour)}, {Prefix: prefix6, Reason: "moved", Since: ago(time.Minute), Until: sampleTime.Add(time.Hour)}, {Service: "web", Reason: "work", Since: ago(time.Minute), ByFile: true}, {Reason: "edgebgp is to stop", Since: ago(time.Minute), Stop: true}}
	st.Decisions = []edge.Decision{
		{Prefix: prefix4, Rung: edge.LastResort, Since: ago(95 * time.Second), Reason: "serving → web-vip is down: answered 503; may not withdraw: 1 of 2 sites"},
		{Prefix: prefix6, Rung: edge.Withheld, Reason: "the first round of probes is not over"},
	}
	st.Conditions[0].Health = edge.Sick
	st.Probes = append(st.Probes,
		edge.Status{Probe: "web-vip", State: edge.Down, Since: ago(97 * time.Second), LastRun: ago(time.Second), LastErr: "answered \x1b[31m503\nnot 200", LastErrAt: ago(2 * time.Second)},
		edge.Status{Probe: "dns", LastErr: "probe could not run: too many open files", LastErrAt: ago(time.Second)})
	st.Speaker.Peers = append(st.Speaker.Peers, edge.PeerState{ID: "r-b", Addr: netip.MustParseAddr("fd00::1"), ASN: 4200000001, Session: "active", Since: ago(40 * time.Second), Flaps: 3, LastErr: "connection refused"})
	st.Speaker.Expired = true
	st.Speaker.Speaker = &edge.Speaker{ASN: 64512, RouterID: netip.MustParseAddr("10.1.0.2")}
	st.Speaker.Announcements = []edge.Announcement{{Net: prefix4, Degrade: true, Reason: "web-vip is down"}}
	ra := &st.Speaker.Peers[0]
	ra.Local, ra.RemoteID, ra.Hold, ra.Keepalive = netip.MustParseAddrPort("10.1.0.2:40112"), netip.MustParseAddr("10.1.0.1"), 9*time.Second, 3*time.Second
	ra.Families, ra.Received, ra.OverLimit = []edge.Family{edge.IPv4, edge.IPv6}, 1001, true
	ra.FirstReceived = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("203.0.113.0/24")}
	ra.Held = []edge.HeldPrefix{{Net: prefix4, NextHop: netip.MustParseAddr("10.1.0.2"), Attributes: edge.Attributes{
		Prepend: 3, MED: 1000, Communities: []edge.Community{edge.GracefulShutdown}, Large: []edge.LargeCommunity{{Global: 64512, Local1: 1, Local2: 2}}}}}
	ra.NotSent = []edge.NotSent{{Net: prefix6, Reason: "not among the peer's prefixes"}}
	ra.Messages = edge.MessageCounts{UpdatesSent: 12, WithdrawsSent: 2, UpdatesReceived: 1001, Malformed: 1}
	ra.LastErr, ra.LastErrAt = "the router sent Cease/Administrative Reset", ago(27*time.Hour)
	ra.BFD = &edge.BFDState{State: "down", Remote: "down", Since: ago(time.Minute), Diag: "control detection time expired", Detect: 900 * time.Millisecond, Flaps: 1}
	st.Speaker.RPKI = edge.SourceState{Source: "rtr 192.0.2.1:323", Items: 500000, Updated: ago(time.Minute), LastErr: "connection refused"}
	st.Speaker.Origins = []edge.Origin{{Net: prefix4, Validity: "invalid-origin", Evidence: "198.51.100.0/24 max 24 AS64500"}, {Net: prefix6, Validity: "not-found"}}
	st.Speaker.Watch = edge.SourceState{Source: "https://ris.example/stream", Items: 42, Updated: ago(time.Second)}
	st.Speaker.Sightings = []edge.Sighting{{Kind: "more-specific", Net: prefix4, Seen: netip.MustParsePrefix("198.51.100.0/25"), Evidence: "198.51.100.0/25 by AS64666, seen at rrc00", Since: ago(time.Hour), Last: ago(time.Second)}}
	st.Prefers = []edge.Preference{{Sites: []edge.SiteID{"b"}, Prepend: 2, Reason: "b has room", By: "b1", Since: ago(time.Minute), Until: sampleTime.Add(time.Hour)}}
	st.Guard.Members = append(st.Guard.Members,
		edge.MemberState{Node: "c1", Site: "c", Age: -1},
		edge.MemberState{Node: "c2", Site: "c", Age: 45 * time.Second, Report: edge.Report{Says: []edge.Claim{
			{Prefix: prefix4, Rung: edge.Announced, Health: edge.HealthUnknown}, {Prefix: prefix6, Rung: edge.Withdrawn, Health: edge.Sick}}}})
	st.Guard.Bound = []edge.Binding{{Prefix: prefix6, To: "b1", Until: sampleTime.Add(8 * time.Second)}}
	st.Guard.Asking = map[netip.Prefix]edge.Permit{
		prefix6: {OK: true, Needed: 1, Promised: []edge.SiteID{"b"}},
		prefix4: {Needed: 2, Promised: []edge.SiteID{"b"}, Refused: true, Reason: "site c has not answered", BlockedSince: ago(90 * time.Second)},
	}
	guarded(&st.Guard)
	st.Guard.Dropped = map[string]uint64{"wrong key": 3, "garbage": 12, "stale": 0}
	st.Proxy.ConfigHash = "1234567890abcdef"
	st.Proxy.TicketKeys, st.Proxy.TicketErr = nil, "fleet.proxy.ticket_key_file: read ticket keys: /etc/edge/tickets.key: line 2 does not hold 32 bytes in base64"
	st.Proxy.Load.Regions = append(st.Proxy.Load.Regions,
		edge.RegionView{Region: "west", Up: 1, Of: 2, RTT: 84 * time.Millisecond, Sent: 520, Allowance: 480, LastErr: "o2: connection refused"},
		edge.RegionView{Region: "south", Of: 2, LastErr: "o1: no answer within 500ms"})
	st.Forwarder.Verdicts = append(st.Forwarder.Verdicts, edge.VerdictCount{Action: "drop", Reason: "truncated packet", Count: 34}, edge.VerdictCount{Action: "tx", Reason: "to a backend", Count: 3000000})
	st.Services[0].Backends = append(st.Services[0].Backends, edge.BackendSummary{ID: "a2", State: edge.Down, Reason: "no answer within 400ms"}, edge.BackendSummary{ID: "a3"})
	st.Services = append(st.Services, edge.ServiceSummary{ID: "dns", VIP: netip.MustParseAddrPort("[2001:db8:1::53]:53"), Protocol: edge.UDP})
	return st
}
