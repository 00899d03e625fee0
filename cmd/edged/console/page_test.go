package console

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/catchment-dev/edge"
)

// -shots DIR makes TestPage write pictures of the page.
var shots = flag.String("shots", "", "folder for pictures of the page")

// TestPage serves a status to a real browser and reads what it shows; then
// changes it, stops it, and takes the server away.
func TestPage(t *testing.T) {
	src := &source{status: sample()}
	srv := httptest.NewServer(Handler(src)) // on 127.0.0.1
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.view(1280, 900, "light")
	b.open(srv.URL)
	b.wait(`document.title.includes("ams1")`)
	b.wait(`document.getElementById("link")?.textContent === "live"`)
	for selector, wants := range map[string][]string{
		"#where":     {"ams1 at ams"},
		"#facts":     {"v0.1.0", "generation\n7", "3fa93fa93f"},
		"#fleet":     {"198.51.100.0/24", "1 announcing · 2 degraded · 1 withdrawn · 2 unknown", "1 more may leave", "floor 2, 3 sites on the air", "never heard", "last-resort", "floor 1"},
		"#alarms":    {"1 of 2 sites have promised to stay", "BGP peer rr2 is active"},
		"#prefixes":  {"last-resort", "web-vip is down: answered 503, expected 200", "1 of 2", "unknown: dns is unknown: probe could not run"},
		"#peers":     {"established", "active", "connect 192.0.2.2:179: connection refused", "198.51.100.0/24 (prepend 2, med 100, 65535:0)", "AS4200000001"},
		"#n-peers":   {"lease", "left"},
		"#guard":     {"fra1", "alive, silent", "not heard", "none yet", "refused", "1 of 2 promised: fra", "promised lon1 to stay", "bad signature", "last said announcing"},
		"#probes":    {"regions", "1 good since", "answered 503, expected 200", "could not run", "2.1 ms"},
		"#regions":   {"3 of 3 up", "0 of 2 up", "900 / 1", "8.3 ms", "not measured"},
		"#services":  {"web", "tcp 198.51.100.10:443", "2001:db8:1::77 all ports and protocols", "not in the ring", "no backend"},
		"#forwarder": {"truncated packet", "tx", "add up to received"},
	} {
		seen := strings.ReplaceAll(b.text(selector), "\u00a0", " ")
		for _, want := range wants {
			if !strings.Contains(seen, want) {
				t.Errorf("%s does not show %q:\n%s", selector, want, seen)
			}
		}
	}
	if got := b.eval(`document.title`); got != "2 alarms · ams1 · Catchment" {
		t.Errorf("title %q", got)
	}
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

	srv.CloseClientConnections()
	srv.Listener.Close()
	b.wait(`document.getElementById("stale").innerText.includes("edged does not answer")`)
	b.wait(`document.getElementById("link").textContent === "disconnected"`)
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
	const evil = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	st := sample()
	st.Alarms[0] = evil
	st.Decisions[0].Reason = evil
	st.Node, st.Site, st.Version = evil, evil, evil
	st.Probes[0].LastErr, st.Probes[0].Probe = evil, evil
	st.Speaker.Peers[0].ID, st.Speaker.Peers[1].LastErr = evil, evil
	st.Guard.Members[0].Node, st.Guard.Members[0].Site = evil, evil
	st.Guard.Dropped = map[string]uint64{evil: 1}
	st.Proxy.Load.Regions[0].Region, st.Proxy.Load.Regions[1].LastErr = evil, evil
	st.Services[0].ID, st.Services[0].Backends[0].Reason = evil, evil
	st.Forwarder.Verdicts[0].Reason = evil
	st.Drains = []edge.Drain{{Reason: evil, Since: time.Now()}}
	srv := httptest.NewServer(Handler(&source{status: st}))
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.view(1280, 900, "light")
	b.open(srv.URL)
	b.wait(`document.getElementById("alarms")?.innerText.includes("onerror")`)
	b.wait(`document.getElementById("services").innerText.includes("onerror")`)
	if n := b.eval(`document.querySelectorAll("img, main script").length`); n != "0" {
		t.Errorf("%s elements were made of data", n)
	}
	if title := b.eval(`document.title`); !strings.HasSuffix(title, "Catchment") {
		t.Errorf("title %q", title)
	}
}

// TestEmpty: a node that knows nothing yet, with every list null.
func TestEmpty(t *testing.T) {
	srv := httptest.NewServer(Handler(&source{status: edge.SystemStatus{Node: "new", Site: "lab"}}))
	t.Cleanup(srv.Close)
	b := openBrowser(t)
	b.open(srv.URL)
	b.wait(`document.getElementById("forwarder")?.innerText.includes("not attached")`)
	for selector, want := range map[string]string{
		"#fleet": "No prefix", "#alarms": "No alarms", "#prefixes": "No prefix", "#peers": "No BGP peer", "#guard": "No other node",
		"#probes": "No probe", "#regions": "No region", "#services": "No service", "#n-regions": "edgeproxy has not answered",
	} {
		if got := b.text(selector); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", selector, got, want)
		}
	}
	if n := b.eval(`document.querySelectorAll(".ok").length`); n != "0" {
		t.Errorf("%s things are painted as well, of a node that knows nothing", n)
	}
}

// TestHeadroom shows the floor of each prefix and how many more may leave.
func TestHeadroom(t *testing.T) {
	st := sample()
	for i, floor := range []int{3, 1, 3} { // 3, 3 and 1 sites are on the air
		st.Conditions[i].MinSites = floor
	}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", Handler(&source{status: sample()}))
	mux.HandleFunc("/v1/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: status\ndata: %s\n\n", b)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	br := openBrowser(t)
	br.open(srv.URL)
	br.wait(`document.querySelectorAll(".room").length === 3`)
	want := "none may leave, floor 3, 3 sites on the air|2 more may leave, floor 1, 3 sites on the air|2 below the floor, floor 3, 1 site on the air"
	if got := br.eval(`[...document.querySelectorAll(".room")].map((e) => [...e.children].map((c) => c.textContent).join(", ")).join("|")`); got != want {
		t.Errorf("head-room: %s", got)
	}
}
