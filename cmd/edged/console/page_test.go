package console

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/catchment-dev/edge"
	"github.com/catchment-dev/edge/health"
)

// -shots DIR makes TestPage write pictures of the page.
var shots = flag.String("shots", "", "folder for pictures of the page")

// TestPage serves a status to a real browser and reads what it shows; then
// changes it, stops it, and takes the server away.
func TestPage(t *testing.T) {
	t.Parallel()
	src, before := &source{status: sample()}, &past{ring: samplePast()}
	srv := httptest.NewServer(Handler(src, before)) // on 127.0.0.1
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.view(1280, 900, "light")
	b.open(srv.URL)
	b.wait(`document.title.includes("ams1")`)
	b.wait(`document.getElementById("link")?.textContent === "live"`)
	for selector, wants := range map[string][]string{
		"#where":  {"ams1 at ams"},
		"#facts":  {"v0.1.0", "generation 7", "3fa93fa93f"},
		"#fleet":  {"198.51.100.0/24", "1 announcing · 2 degraded · 1 withdrawn · 2 unknown", "1 more may leave", "floor 2, 3 sites on the air", "never heard", "last-resort", "floor 1", "draining"},
		"#alarms": {"1 of 2 sites have promised to stay", "BGP peer rr2 is active"},
		"#prefixes": {"last-resort", "web-vip is down: answered 503, expected 200", "1 of 3", "unknown: dns is unknown: probe could not run", "draining", "full",
			"service web, since 12 min, for 48 min more: new certificates", "the whole node, since 3 min, while the file says so: line card (by file)",
			"traffic of all prefixes goes to fra, lon for 58 min: ams is full, by fra1 (at the other sites: prepend 2, med 50)"},
		"#n-prefixes": {"3 orders"},
		"#peers": {"established", "active", "connect 192.0.2.2:179: connection refused", "198.51.100.0/24 (prepend 2, med 100, local-pref 50, 65535:0 4200000001:7:9)", "AS4200000001",
			"up for 26 h, detects in 900 ms, 1 flap", "down, not up yet", "admin-down", "last trouble 26 h ago: hold timer expired", "BFD: control detection time expired",
			"not sent 198.51.100.0/24, 203.0.113.0/24: the router does not speak ipv4", "over its limit it has sent 1\u202f200 prefixes"},
		"#n-peers": {"lease", "left"},
		"#guard": {"fra1", "alive, silent", "not heard", "none yet", "blocked for 2 min", "common cause", "web-vip fails at 3 sites of 6: ams, fra, sin; not heard of: nyc, syd; here too",
			"trusted origin for 59 min, by fra1: it is down for good", "forced 192.0.2.128/25 off the air 10 min ago, without a permit: it ate its packets",
			"3 sites (floor 2), 1 healthy, 1\u202f500 requests/s, 1 of eu", "none may leave", "1 more may leave", "not guarded", "2 other sites would stay, and 3 must", "round 17",
			"lon1: it is draining", "2 of 1 promised, in 0.3 s", "1 of 3 other sites promised to stay", "wanted to: web-vip is down", "0a1b2c3d4e5f",
			"1 of 2 promised: fra", "promised lon1 to stay", "bad signature", "last said announcing"},
		"#probes":   {"regions", "1 good since", "answered 503, expected 200", "could not run", "2.1 ms", "full", "2 otherwise since"},
		"#n-probes": {"2 up · 1 full · 2 down · 1 unknown"},
		"#regions":  {"3 of 3 up", "0 of 2 up", "900 / 1", "8.3 ms", "not measured"},
		"#services": {"web", "tcp 198.51.100.10:443", "2001:db8:1::77 all ports and protocols", "not in the ring", "no backend"},
		"#world": {"RPKI 192.0.2.5:3323 412\u202f345 VRPs, updated 3 min ago", "trouble 192.0.2.4:3323: connection refused", "invalid-length", "allows up to /23", "valid",
			"not-found", "unknown", "Watch https://ris-live.example/v1/stream 81 routes seen", "unexpected-origin", "more-specific", "198.51.100.128/25", "leak", "missing", "AS666 originates it"},
		"#n-world":   {"4 things are not as they should be"},
		"#history":   {"regions", "down → ", "established → ", "round 114", "announced → ", "draining"},
		"#n-history": {"120 since edged started"},
		"#forwarder": {"truncated packet", "tx", "add up to received"},
	} {
		checkShows(t, b, selector, wants)
	}
	if got := b.eval(`document.title`); got != "2 alarms · ams1 · Catchment" {
		t.Errorf("title %q", got)
	}
	checkDetails(t, b)
	checkLook(t, b)
	b.shoot("1280-light")

	src.change(func(s *edge.SystemStatus) {
		s.Alarms = nil
		s.Decisions[0].Rung, s.Decisions[0].Reason = edge.Withdrawn, "with leave of fra and lon"
		s.Forwarder.Received += 1000
		s.Forwarder.Verdicts[0].Count += 1000
	})
	b.wait(`document.title === "ams1 · Catchment"`)
	b.wait(`document.getElementById("prefixes").innerText.includes("with leave of fra and lon")`)
	b.wait(`document.getElementById("alarms").innerText.includes("No alarms.")`)

	src.change(func(*edge.SystemStatus) { src.frozen = true })
	b.wait(`document.title.startsWith("OLD DATA")`)
	if got := b.text("#stale"); !strings.Contains(got, "edged sends, but its status has not moved") {
		t.Errorf("frozen: %q", got)
	}
	b.shoot("1280-stale")
	src.change(func(*edge.SystemStatus) { src.frozen = false })
	b.wait(`document.getElementById("stale").hidden && document.getElementById("link").textContent === "live"`)

	before.ring.Add(edge.Event{Time: time.Now(), Kind: "probe", Subject: "dns", From: "up", To: "unknown"})
	b.wait(rows + `.startsWith("probe dns up → ?unknown|probe dns up → ?unknown|prefix")`)
	srv.CloseClientConnections()
	srv.Listener.Close()
	b.wait(`document.getElementById("stale").innerText.includes("edged does not answer")`)
	b.wait(`document.getElementById("link").textContent === "disconnected"`)
	checkRestart(t, b, srv.Listener.Addr().String())
}

// checkShows waits until the element shows every text: the history is fetched after
// the status that says how long it is, so "live" does not mean that it is there.
func checkShows(t *testing.T, b *browser, selector string, wants []string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		seen := squeeze(b.text(selector))
		lacks := slices.DeleteFunc(slices.Clone(wants), func(want string) bool { return strings.Contains(seen, want) })
		if len(lacks) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%s does not show %q:\n%s", selector, lacks, seen)
			return
		}
	}
}

// rows are the texts of the upper rows of the history, without their times.
const rows = `[...document.querySelectorAll("#history tbody tr")].slice(0, 4).map((r) => [...r.children].slice(1).map((c) => c.textContent).join(" ").trim()).join("|")`

// checkRestart starts another edged at the address of the one that has gone, and
// then another one in its place, which has had more changes. What the page knew
// stays to be read, and nothing is shown twice or left out.
func checkRestart(t *testing.T, b *browser, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	src, now := &source{status: sample()}, &past{ring: numbered(0)}
	src.status.Started = time.Now()
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: Handler(src, now)}}
	srv.Start()
	t.Cleanup(func() { // before the browser's end: its stream would hold Close
		srv.Listener.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	add := func(evidence string) {
		now.ring.Add(edge.Event{Time: time.Now(), Kind: "probe", Subject: "web", From: "down", To: "up", Evidence: evidence})
	}
	b.wait(`document.getElementById("link").textContent === "live"`)
	b.wait(rows + `.startsWith("edged ams1 started|probe dns up → ?unknown|probe dns")`)
	add("a")
	b.wait(rows + `.startsWith("probe web down → ●up a|edged ams1 started|probe dns up → ?unknown|")`)
	add("b")
	b.wait(rows + ` === "probe web down → ●up b|probe web down → ●up a|edged ams1 started|probe dns up → ?unknown"`)

	src.change(func(s *edge.SystemStatus) {
		s.Started = time.Now()
		now.replace(numbered(0))
		for _, evidence := range []string{"1", "2", "3"} {
			add(evidence)
		}
	})
	b.wait(rows + ` === "probe web down → ●up 3|probe web down → ●up 2|probe web down → ●up 1|edged ams1 started"`)
	if got := b.eval(`[...document.querySelectorAll("#history tbody tr")].filter((r) => r.textContent.includes("edged")).length + " " + document.querySelectorAll("#history tbody tr").length`); got != "2 100" {
		t.Errorf("starts and rows of the history: %s", got)
	}
}

// checkDetails opens those of one peer: they stay open, and keep the focus, while
// the page goes on.
func checkDetails(t *testing.T, b *browser) {
	t.Helper()
	if got := b.text("#peers"); strings.Contains(got, "10.255.0.1") {
		t.Errorf("details are shown that nobody has opened: %s", got)
	}
	b.eval(`document.querySelector("[data-peer=rr1] summary").click()`)
	b.wait(`document.getElementById("peers").innerText.includes("10.255.0.1")`)
	seen := squeeze(b.text("[data-peer=rr1]"))
	for _, want := range []string{
		"from 192.0.2.10:43121", "hold 9 s", "keepalive 3 s", "families ipv4, ipv6", "default route the peer sends one", "updates 12 sent, 4 received",
		"withdrawn 1 prefix", "malformed from it 2", "BFD up, the other end up",
		"198.51.100.0/24 via 192.0.2.10: prepend 2, med 100, local-pref 50, 65535:0 4200000001:7:9", "2001:db8:1::/48 via 2001:db8:ffff::10: as it is",
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("the details do not show %q:\n%s", want, seen)
		}
	}
	b.eval(`globalThis.summary = document.querySelector("[data-peer=rr1] summary"), summary.focus(), globalThis.then = document.getElementById("facts").innerText, 0`)
	b.wait(`document.getElementById("facts").innerText !== then`) // the page has been made anew
	if got := b.eval(`summary.isConnected && document.activeElement === summary && summary.parentElement.open`); got != "true" {
		t.Error("the details close, or lose the focus, when the page goes on")
	}
}

// squeeze makes all white space one blank, but for the narrow one in numbers.
func squeeze(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r != '\u202f' && unicode.IsSpace(r) }), " ")
}

// checkLook holds what can be measured of the looks at several sizes: nothing
// sticks out of the window, unknown is not green, text has contrast.
func checkLook(t *testing.T, b *browser) {
	t.Helper()
	for _, v := range []struct {
		width  int
		scheme string
		shot   string
	}{{1280, "dark", "1280-dark"}, {400, "light", "400-light"}, {400, "dark", "400-dark"}, {1280, "light", ""}} {
		b.view(v.width, 900, v.scheme)
		if got := b.eval(`Math.max(0, document.documentElement.scrollWidth - innerWidth)`); got != "0" {
			t.Errorf("%d px: the page is %s px too wide", v.width, got)
		}
		if low := b.eval(lowContrast); low != "" {
			t.Errorf("%d px, %s: contrast below 4.5: %s", v.width, v.scheme, low)
		}
		if got := b.eval(`getComputedStyle(document.querySelector(".unk")).color === getComputedStyle(document.querySelector(".ok")).color`); got != "false" {
			t.Errorf("%s: unknown has the colour of ok", v.scheme)
		}
		if v.shot != "" {
			b.shoot(v.shot)
		}
	}
}

// lowContrast lists the texts whose contrast (WCAG 2.2, 1.4.3) is below 4.5.
const lowContrast = `(() => {
  const rgb = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const low = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
    if (e.closest(".unk, .skip, .stale, noscript, script")) continue; // .unk: a pattern, looked at by eye
    const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(back(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.add((e.className || e.tagName) + " " + ratio.toFixed(2));
  }
  return [...low].join(", ");
})()`

// TestHostile puts markup wherever a text can come from outside: none of it may
// become markup.
func TestHostile(t *testing.T) {
	t.Parallel()
	const evil = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	st := sample()
	st.Alarms[0] = evil
	st.Decisions[0].Reason = evil
	st.Node, st.Site, st.Version = evil, evil, evil
	st.Probes[0].LastErr, st.Probes[0].Probe = evil, evil
	st.Speaker.Peers[0].ID, st.Speaker.Peers[1].LastErr = evil, evil
	st.Guard.Members[0].Node, st.Guard.Members[0].Site = evil, evil
	st.Guard.Dropped = map[string]uint64{evil: 1}
	st.Guard.Prefixes[0].Lacks, st.Guard.Prefixes[0].Round.Nacked = evil, map[edge.NodeID]edge.Reason{evil: evil}
	st.Guard.Suspects[0].Cause, st.Guard.Trust[0].Reason, st.Guard.Forced[0].Reason = evil, evil, evil
	st.Guard.NodeKeys, st.Guard.Past[0].Reason, st.Guard.Past[0].Wish = map[edge.NodeID]string{evil: evil}, evil, evil
	st.Proxy.Load.Regions[0].Region, st.Proxy.Load.Regions[1].LastErr = evil, evil
	st.Services[0].ID, st.Services[0].Backends[0].Reason = evil, evil
	st.Forwarder.Verdicts[0].Reason = evil
	st.Drains = []edge.Drain{{Service: evil, Reason: evil, Since: time.Now()}}
	st.Prefers = []edge.Preference{{Sites: []edge.SiteID{evil}, Reason: evil, By: evil, Until: time.Now().Add(time.Hour)}}
	p := &st.Speaker.Peers[0]
	p.LastErr, p.BFD.State, p.BFD.Diag, p.BFD.Remote = evil, evil, evil, evil
	p.NotSent, p.Families = []edge.NotSent{{Net: prefix4, Reason: evil}}, []edge.Family{evil}
	st.Speaker.Origins[0].Validity, st.Speaker.Origins[1].Evidence = evil, evil
	st.Speaker.Sightings[0].Kind, st.Speaker.Sightings[1].Evidence = evil, evil
	st.Speaker.RPKI.Source, st.Speaker.Watch.Source, st.Speaker.Watch.LastErr = evil, evil, evil
	events := &health.Ring{}
	events.Add(edge.Event{Time: time.Now(), Kind: evil, Subject: evil, From: evil, To: evil, Evidence: evil})
	srv := httptest.NewServer(Handler(&source{status: st}, events))
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.view(1280, 900, "light")
	b.open(srv.URL)
	b.wait(`document.getElementById("alarms")?.innerText.includes("onerror")`)
	b.eval(`document.querySelectorAll("summary").forEach((s) => s.click())`)
	b.wait(`document.querySelector("details dl")?.innerText.includes("onerror")`)
	for _, id := range []string{"services", "prefixes", "peers", "world", "history", "guard"} {
		b.wait(fmt.Sprintf(`document.getElementById(%q).innerText.includes("onerror")`, id))
	}
	if n := b.eval(`document.querySelectorAll("img, main script").length`); n != "0" {
		t.Errorf("%s elements were made of data", n)
	}
	if title := b.eval(`document.title`); !strings.HasSuffix(title, "Catchment") {
		t.Errorf("title %q", title)
	}
}

// TestEmpty: a node that knows nothing yet, with every list null.
func TestEmpty(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(Handler(&source{status: edge.SystemStatus{Node: "new", Site: "lab"}}, &health.Ring{}))
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.open(srv.URL)
	b.wait(`document.getElementById("forwarder")?.innerText.includes("not attached")`)
	for selector, want := range map[string]string{
		"#fleet": "No prefix", "#alarms": "No alarms", "#prefixes": "No prefix", "#peers": "Unknown: edgebgp has not answered", "#history": "No change is known", "#guard": "No other node",
		"#probes": "No probe", "#regions": "No region", "#services": "No service", "#n-regions": "edgeproxy has not answered",
	} {
		if got := b.text(selector); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", selector, got, want)
		}
	}
	if got := b.eval(`document.getElementById("world").parentElement.hidden`); got != "true" {
		t.Error("a world is shown that nobody has looked at")
	}
	if n := b.eval(`document.querySelectorAll(".ok").length`); n != "0" {
		t.Errorf("%s things are painted as well, of a node that knows nothing", n)
	}
}

// TestSilentSpeaker: what edgebgp said before it fell silent is not painted as if
// it were known.
func TestSilentSpeaker(t *testing.T) {
	t.Parallel()
	src := &source{status: sample()}
	src.status.SpeakerErr = "connect: no such file"
	srv := httptest.NewServer(Handler(src, samplePast()))
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.open(srv.URL)
	b.wait(`document.getElementById("n-peers")?.innerText.includes("edgebgp does not answer: this is what it said last")`)
	b.wait(`document.getElementById("peers").innerText.includes("established")`)
	if n := b.eval(`document.querySelectorAll("#peers .ok").length`); n != "0" {
		t.Errorf("%s things of the peers are painted as well", n)
	}
}

// TestHeadroom shows the floor of each prefix and how many more may leave.
func TestHeadroom(t *testing.T) {
	t.Parallel()
	st := sample()
	for i, floor := range []int{3, 1, 3, 1} { // 3, 3, 1 and 1 sites are on the air; edged reckons with less for the second
		st.Conditions[i].MinSites = floor
	}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", Handler(&source{status: sample()}, samplePast()))
	mux.HandleFunc("/v1/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: status\ndata: %s\n\n", b)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	br := openBrowser(t)
	br.open(srv.URL)
	br.wait(`document.querySelectorAll(".room").length === 4`)
	want := "none may leave, floor 3, 3 sites on the air|1 more may leave, floor 1, 3 sites on the air|2 below the floor, floor 3, 1 site on the air|none may leave, floor 1, 1 site on the air"
	if got := br.eval(`[...document.querySelectorAll(".room")].map((e) => [...e.children].map((c) => c.textContent).join(", ")).join("|")`); got != want {
		t.Errorf("head-room: %s", got)
	}
}
