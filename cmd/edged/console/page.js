// The page of the console: it takes the status as server-sent events and writes
// it into the document. Everything that comes from outside goes in as text
// (createTextNode), never as markup. Ages are worked out from the node's clock.

const STALE_MS = 3000; // no news for this long: what is shown is old
const VIEW_NS = 10e9;  // another node's report that is older says nothing
const MAX_ROWS = 200;  // of one table

let status = null;   // the last edge.SystemStatus
let before = null;   // the one before: for rates
let newsAt = 0;      // performance.now() when the node's time last moved
let nodeTime = "";   // status.time as it was then
let connected = false;

// ---- building and updating ------------------------------------------------

const SVG = new Set(["svg", "rect"]);

function el(tag, attrs, ...kids) {
  const e = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) if (v !== undefined && v !== "") e.setAttribute(k, v);
  for (const kid of kids.flat()) {
    if (kid === null || kid === undefined || kid === "") continue;
    e.append(kid instanceof Node ? kid : document.createTextNode(String(kid)));
  }
  return e;
}

// patch makes a like b, touching only what differs: a selection, the focus and
// what a screen reader is reading stay.
function patch(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return a.replaceWith(b);
  if (a.nodeType === Node.TEXT_NODE) {
    if (a.data !== b.data) a.data = b.data;
    return;
  }
  for (const at of [...a.attributes]) if (!b.hasAttribute(at.name)) a.removeAttribute(at.name);
  for (const at of b.attributes) if (a.getAttribute(at.name) !== at.value) a.setAttribute(at.name, at.value);
  const old = [...a.childNodes], now = [...b.childNodes];
  now.forEach((n, i) => (i < old.length ? patch(old[i], n) : a.append(n)));
  old.slice(now.length).forEach((n) => n.remove());
}

function fill(id, ...kids) {
  const at = document.getElementById(id);
  const to = at.cloneNode(false);
  to.append(...kids.flat().filter((k) => k !== null && k !== undefined && k !== ""));
  patch(at, to);
}

// table: cols are [title, class]; a cell is a text or a node.
function table(name, cols, rows, empty) {
  if (rows.length === 0) return el("p", { class: "empty" }, empty);
  const head = cols.map(([t, c]) => el("th", { scope: "col", role: "columnheader", class: c }, t));
  const body = rows.slice(0, MAX_ROWS).map((r) => el("tr", { role: "row" }, r.map((cell, i) =>
    el("td", { role: "cell", class: (cols[i][1] || "") + (cell === "" ? " blank" : ""), "data-label": cols[i][0] }, el("span", {}, cell)))));
  return [
    el("table", { role: "table", "aria-label": name },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, body)),
    rows.length > MAX_ROWS ? el("p", { class: "empty" }, `and ${rows.length - MAX_ROWS} more: edgectl status shows all`) : "",
  ];
}

const SIGN = { ok: "●", warn: "▲", bad: "✕", off: "○", unk: "?" };
const tag = (kind, word) => el("span", { class: "tag " + kind }, el("i", { "aria-hidden": "true" }, SIGN[kind]), word);
const mono = (t) => el("span", { class: "mono break" }, t);
const pairs = (list) => el("dl", { class: "pair" }, list.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));

const RUNG = { announced: "ok", degraded: "warn", leaving: "warn", "last-resort": "bad", withdrawn: "off", withheld: "off" };
const HEALTH = { healthy: "ok", degraded: "warn", sick: "bad", unknown: "unk" };
const PROBE = { up: "ok", down: "bad", unknown: "unk" };
const known = (map, word) => tag(map[word] || "unk", word || "unknown");

// ---- texts ------------------------------------------------------------------

const list = (v) => v || []; // Go writes an empty list as null
const count = (n) => Math.round(n || 0).toLocaleString("en").replaceAll(",", "\u202f");
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
const rps = (n) => (n >= 100 ? count(n) : (n || 0).toFixed(1).replace(/\.0$/, ""));

function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 129600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

const millis = (ns) => (ns < 1e6 ? (ns / 1e6).toFixed(2) : ns < 1e8 ? (ns / 1e6).toFixed(1) : count(ns / 1e6)) + " ms";
const some = (all, n) => all.slice(0, n).join(", ") + (all.length > n ? ` and ${all.length - n} more` : "");
const zero = (t) => !t || t.startsWith("0001-");
const old = () => performance.now() - newsAt; // ms since the node's time moved
const now = () => Date.parse(status.time) + old();

function since(t) {
  if (zero(t)) return "";
  return el("time", { datetime: t, title: t }, span(now() - Date.parse(t)));
}

// ---- the fleet --------------------------------------------------------------

// A site's state is the best that one of its nodes is known to be in; a node of
// which we know nothing keeps the site from being called gone.
const ORDER = ["announcing", "degraded", "leaving", "last-resort", "unheld", "unknown", "withheld", "withdrawn"];
const SITE = { announcing: "ok", degraded: "warn", leaving: "warn", "last-resort": "bad", unheld: "bad", unknown: "unk", withheld: "off", withdrawn: "off" };
const WORD = { unheld: "held by no peer" };
const ON_AIR = new Set(["announcing", "degraded", "leaving", "last-resort"]);

function claimState(announcing, rung) {
  const word = rung === "announced" ? "announcing" : rung;
  if (!ORDER.includes(word)) return "unknown";
  return ON_AIR.has(word) && !announcing ? "unheld" : word;
}

function holders(prefix) {
  const up = list(status.speaker.peers).filter((p) => p.session === "established");
  return [up.filter((p) => list(p.held).some((h) => h.prefix === prefix)).length, up.length];
}

const memberAge = (m) => (m.age_ns < 0 ? m.age_ns : m.age_ns + old() * 1e6);

// nodes lists what each node says of a prefix: [site, node, state, age in ns].
function nodes(d) {
  const rows = [[status.site, status.node, claimState(holders(d.prefix)[0] > 0, d.rung), 0]];
  for (const m of list(status.guard.members)) {
    if (m.node === status.node) continue;
    const age = memberAge(m);
    const claim = list(m.report.claims).find((c) => c.prefix === d.prefix);
    const seen = claim && age >= 0 && age <= VIEW_NS;
    rows.push([m.site, m.node, seen ? claimState(claim.announcing, claim.rung) : "unknown", age]);
  }
  return rows;
}

function strip(d) {
  const sites = new Map();
  for (const [site, , state, age] of nodes(d)) {
    const s = sites.get(site);
    if (!s || ORDER.indexOf(state) < ORDER.indexOf(s.state)) sites.set(site, { state, age, nodes: (s ? s.nodes : 0) + 1 });
    else s.nodes++;
  }
  const names = [...sites.keys()].sort();
  const n = (...states) => [...sites.values()].filter((s) => states.includes(s.state)).length;
  const sums = [
    [n("announcing"), "announcing"], [n("degraded", "leaving", "last-resort"), "degraded"],
    [n("withdrawn", "withheld", "unheld"), "withdrawn"], [n("unknown"), "unknown"],
  ].map(([c, w]) => `${c}\u00a0${w}`).join(" · ");
  const chips = names.map((name) => {
    const s = sites.get(name), me = name === status.site;
    const seen = me ? "" : s.age < 0 ? ", never heard" : `, seen ${span(s.age / 1e6)} ago`;
    return el("li", { class: `chip ${SITE[s.state]}${me ? " me" : ""}` }, el("i", { "aria-hidden": "true" }, SIGN[SITE[s.state]]),
      el("b", {}, name), el("span", {}, (WORD[s.state] || s.state) + seen));
  });
  return el("div", { class: "strip" },
    el("div", {}, el("p", { class: "name" }, d.prefix), el("p", { class: "sum" }, sums)),
    el("ul", { class: "chips", "aria-label": "Sites of " + d.prefix }, chips),
    headroom(d.prefix, [...sites.values()].filter((s) => ON_AIR.has(s.state)).length));
}

// headroom: a site may leave while as many others as the floor says stay.
function headroom(prefix, air) {
  const c = list(status.conditions).find((x) => x.prefix === prefix) || {};
  const asked = (status.guard.asking || {})[prefix];
  const floor = c.min_sites ?? (asked && asked.needed);
  const on = `${plural(air, "site", "sites")} on the air`;
  if (floor === undefined || floor === null) return el("div", { class: "room" }, el("b", { class: "t-unk" }, "floor unknown"), el("span", {}, on));
  const more = air - floor;
  const [kind, text] = more > 0 ? ["t-ok", `${more} more may leave`] : more === 0 ? ["t-warn", "none may leave"] : ["t-bad", `${-more} below the floor`];
  return el("div", { class: "room" }, el("b", { class: kind }, text), el("span", {}, `floor ${floor}, ${on}`));
}

// ---- the panels -------------------------------------------------------------

function showTop() {
  fill("where", el("b", {}, status.node), ` at ${status.site}`);
  const up = zero(status.started) ? "" : span(now() - Date.parse(status.started));
  fill("facts", [
    ["version", status.version], ["up", up], ["generation", status.generation],
    ["config", el("span", { class: "mono", title: status.config_hash }, (status.config_hash || "").slice(0, 10))],
    ["node's clock", new Date(now()).toISOString().slice(11, 19) + " UTC"],
  ].map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
}

function showAlarms() {
  const a = list(status.alarms);
  fill("n-alarms", a.length ? plural(a.length, "condition needs", "conditions need") + " a person" : "");
  fill("alarms", a.length ? el("ul", {}, a.map((t) => el("li", { class: "alarm" }, el("i", { "aria-hidden": "true" }, SIGN.bad), el("span", {}, t))))
    : el("p", { class: "empty" }, "No alarms."));
}

function showPrefixes() {
  const drains = list(status.drains);
  const rows = list(status.decisions).map((d) => {
    const c = list(status.conditions).find((x) => x.prefix === d.prefix) || {};
    const [held, up] = holders(d.prefix);
    // The condition's reason only where the decision's does not say it already.
    const why = d.reason || (c.reason ? `${c.health}: ${c.reason}` : "");
    return [mono(d.prefix), known(RUNG, d.rung), since(d.since), known(HEALTH, c.health), `${held} of ${up}`, why];
  });
  fill("n-prefixes", drains.length ? "drained: " + drains.map((d) => `${d.prefix || "all"} (${d.reason})`).join(", ") : "");
  fill("prefixes", table("Prefixes of this node", [["Prefix", "tight"], ["Rung"], ["For", "tight"], ["Health"], ["Held by peers", "tight"], ["Reason", "why"]],
    rows, "No prefix is configured."));
}

function showPeers() {
  const s = status.speaker;
  const left = Math.max(0, s.lease_left_ns / 1e6 - old());
  fill("n-peers", s.expired ? "lease run out: all degraded" : s.lease_left_ns ? `lease ${span(left)} left` : "no lease");
  fill("peers", table("BGP peers", [["Peer"], ["Session"], ["For", "tight"], ["Flaps", "num"], ["Holds", "why"]],
    list(s.peers).map((p) => {
      const held = list(p.held).map((h) => h.prefix + attributes(h));
      const note = held.length ? some(held, 6) : p.session === "established" ? "nothing from us" : p.last_error || "";
      const who = el("span", {}, el("b", {}, p.id), " ", el("span", { class: "soft mono" }, p.address), el("span", { class: "soft" }, ` AS${p.asn}`));
      return [who, tag(p.session === "established" ? "ok" : "bad", p.session), since(p.since), p.flaps, note];
    }), "No BGP peer: nothing is announced to anybody."));
}

function attributes(h) {
  const a = [];
  if (h.prepend) a.push(`prepend ${h.prepend}`);
  if (h.med) a.push(`med ${h.med}`);
  if (list(h.communities).length) a.push(h.communities.join(" "));
  return a.length ? ` (${a.join(", ")})` : "";
}

function showGuard() {
  const g = status.guard;
  const bound = list(g.bound).map((b) => [mono(b.prefix), `promised ${b.to} to stay`, `${span(Date.parse(b.until) - now())} left`]);
  const asking = Object.entries(g.asking || {}).map(([p, a]) => [mono(p),
    a.ok ? tag("ok", "permit") : a.refused ? tag("bad", "refused") : tag("warn", "asking"),
    `${list(a.promised).length} of ${a.needed} promised${list(a.promised).length ? ": " + a.promised.join(", ") : ""}`, a.reason || ""]);
  const dropped = Object.entries(g.dropped || {}).filter(([, n]) => n > 0);
  const members = list(g.members);
  fill("n-guard", members.length ? `${members.filter((m) => m.alive).length} of ${plural(members.length, "member", "members")} alive` : "");
  fill("guard",
    table("Members", [["Member"], ["Site"], ["State"], ["View is", "num"], ["Says", "why"]], members.map(member), "No other node is configured."),
    asking.length ? [el("h3", {}, "Asking for leave"), table("Asking for leave", [["Prefix"], ["Answer"], ["Promises"], ["Reason", "why"]], asking, "")].flat() : "",
    bound.length ? [el("h3", {}, "Bound to stay"), table("Bound to stay", [["Prefix"], ["Promise"], ["Time", "num"]], bound, "")].flat() : "",
    dropped.length ? [el("h3", {}, "Gossip thrown away"), pairs(dropped.map(([k, n]) => [k, count(n)]))] : "");
}

function member(m) {
  const age = memberAge(m), claims = list(m.report.claims);
  const fresh = age >= 0 && age <= VIEW_NS;
  const state = m.alive ? (fresh ? tag("ok", "alive") : tag("warn", "alive, silent")) : tag("unk", "not heard");
  const by = {};
  for (const c of claims) (by[claimState(c.announcing, c.rung)] ||= []).push(c.prefix);
  const says = ORDER.filter((o) => by[o]).map((o) => `${WORD[o] || o}: ${some(by[o], 3)}`).join("; ");
  return [el("b", {}, m.node), m.site, state, age < 0 ? "none yet" : `${span(age / 1e6)} old`, says ? (fresh ? says : "last said " + says) : ""];
}

function showProbes() {
  const rank = { down: 0, unknown: 1, up: 2 };
  const all = list(status.probes).slice().sort((a, b) => rank[a.state] - rank[b.state] || (a.probe < b.probe ? -1 : 1));
  const n = (s) => all.filter((p) => p.state === s).length;
  fill("n-probes", all.length ? `${n("up")} up · ${n("down")} down · ${n("unknown")} unknown` : "");
  fill("probes", table("Probes", [["Probe", "tight"], ["State"], ["For", "tight"], ["Took", "num"], ["Last error", "why"]], all.map((p) => {
    const ran = zero(p.last_run) ? "has not run yet" : "";
    const streak = p.streak ? el("span", { class: "sub" }, " " + p.streak + ({ up: " bad since", down: " good since" }[p.state] || " so far")) : "";
    const err = p.last_error ? el("span", { class: p.state === "up" ? "soft" : "" }, p.last_error,
      zero(p.last_error_at) || p.state === "down" ? "" : ` (${span(now() - Date.parse(p.last_error_at))} ago)`) : ran;
    return [el("b", {}, p.probe), el("span", {}, known(PROBE, p.state), streak), since(p.since), zero(p.last_run) ? "" : millis(p.took_ns || 0), err];
  }), "No probe is configured."));
}

function bar(value, limit) {
  const share = limit > 0 ? value / limit : value > 0 ? 1 : 0;
  return el("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${Math.round(100 * share)} % of the allowance` },
    el("rect", { class: "track", width: 100, height: 8, rx: 2 }),
    el("rect", { class: share > 1 ? "over" : "fill", width: Math.min(100, 100 * share).toFixed(1), height: 8, rx: 2 }));
}

function showRegions() {
  const load = status.proxy.load || {};
  fill("n-regions", status.proxy.pid ? `${rps(load.demand_rps)} requests/s arrive here` : "edgeproxy has not answered");
  fill("regions", table("Regions", [["Region"], ["Upstreams"], ["RTT", "num"], ["Sent / allowed, requests/s", "why"]], list(load.regions).map((r) => {
    const kind = r.of === 0 ? "unk" : r.up === 0 ? "bad" : r.up < r.of ? "warn" : "ok";
    const use = el("span", {}, `${rps(r.sent_rps)} / ${rps(r.allowance_rps)}`, bar(r.sent_rps, r.allowance_rps),
      r.last_error && r.up < r.of ? el("span", { class: "soft" }, r.last_error) : "");
    return [el("b", {}, r.region), tag(kind, `${r.up} of ${r.of} up`), r.rtt_ns ? millis(r.rtt_ns) : "not measured", use];
  }), "No region is known."));
}

// vipText is a VIP as edgectl writes it: port 0 is all ports.
function vipText(s) {
  if (!s.vip.endsWith(":0")) return `${s.protocol} ${s.vip}`;
  const addr = s.vip.slice(0, -2).replace(/^\[|\]$/g, "");
  return s.protocol === "any" ? `${addr} all ports and protocols` : `${s.protocol} ${addr} all ports`;
}

function showServices() {
  const rows = [];
  for (const s of list(status.services)) {
    const who = () => el("span", {}, el("b", {}, s.id), " ", el("span", { class: "soft mono" }, vipText(s)));
    const backends = list(s.backends);
    if (backends.length === 0) rows.push([who(), "", tag("bad", "no backend"), "", "new flows are dropped"]);
    backends.forEach((b) => rows.push([who(), el("span", {}, b.id, b.local ? " (here)" : ""), known(PROBE, b.state),
      b.in_ring ? `weight ${b.effective_weight || b.weight}` : "not in the ring", b.reason || ""]));
  }
  const p = status.proxy;
  const answers = Object.entries(p.responses || {}).sort().map(([k, n]) => `${k} ${count(n)}`).join(", ");
  fill("n-services", p.pid ? `edgeproxy: ${plural(p.connections, "connection", "connections")}, ${plural(p.requests, "request", "requests")}${answers ? " (" + answers + ")" : ""}` : "");
  fill("services", table("Services", [["Service"], ["Backend"], ["State"], ["Ring", "tight"], ["Reason", "why"]], rows, "No service is configured."));
}

function showForwarder() {
  const f = status.forwarder, verdicts = list(f.verdicts);
  const sum = verdicts.reduce((n, v) => n + v.count, 0);
  const was = new Map(before ? list(before.forwarder.verdicts).map((v) => [v.action + " " + v.reason, v.count]) : []);
  const dt = before ? (Date.parse(status.time) - Date.parse(before.time)) / 1000 : 0;
  const rate = (v) => {
    const last = was.get(v.action + " " + v.reason);
    return last === undefined || dt <= 0 || v.count < last ? "" : rps((v.count - last) / dt) + "/s";
  };
  const kind = { pass: "ok", tx: "ok", redirect: "ok", drop: "warn" };
  const rows = verdicts.filter((v) => v.count > 0).sort((a, b) => b.count - a.count)
    .map((v) => [tag(kind[v.action] || "unk", v.action), v.reason, count(v.count), rate(v)]);
  fill("n-forwarder", f.mode ? `${f.mode} on ${list(f.interfaces).join(", ")}` : "");
  fill("forwarder", f.mode ? pairs([["received", count(f.received)], ["flow table", plural(f.flows, "entry", "entries")],
    ["verdicts", sum === f.received ? "add up to received" : `add up to ${count(sum)}: counted while packets moved`]]) : "",
  table("Verdicts", [["Verdict"], ["Reason", "why"], ["Packets", "num"], ["Rate", "num"]], rows, f.mode ? "No packet yet." : "The forwarder is not attached."));
}

// ---- time and the stream ----------------------------------------------------

function showLink() {
  const stale = status !== null && old() > STALE_MS;
  document.body.classList.toggle("is-stale", stale);
  const link = document.getElementById("link");
  const word = !connected ? (status ? "disconnected" : "connecting") : stale ? "no news" : "live";
  if (link.textContent !== word) link.textContent = word;
  link.className = "link " + (word === "live" ? "live" : status ? "lost" : "");
  const banner = document.getElementById("stale");
  banner.hidden = !stale;
  // Whole seconds, and coarser with age: this is read out each time it changes.
  const t = old() < 60000 ? "a few seconds" : span(old());
  const text = stale ? `Old data: ${connected ? "edged sends, but its status has not moved" : "edged does not answer"} for ${t}. What is below may no longer be so.` : "";
  if (banner.textContent !== text) banner.textContent = text;
  const n = status ? list(status.alarms).length : 0;
  document.title = (stale ? "OLD DATA · " : "") + (n ? `${plural(n, "alarm", "alarms")} · ` : "") + (status ? `${status.node} · ` : "") + "Catchment";
}

function render() {
  showLink();
  if (!status) return;
  showTop();
  const all = list(status.decisions);
  fill("n-fleet", `as seen from ${status.node}`);
  fill("fleet", el("div", { class: "fleet" }, all.length ? all.map(strip) : el("p", { class: "empty" }, "No prefix is configured.")));
  for (const show of [showAlarms, showPrefixes, showPeers, showGuard, showProbes, showRegions, showServices, showForwarder]) show();
  fill("foot", "Read-only. The same facts: edgectl status; as JSON: ", el("a", { href: "/v1/status" }, "/v1/status"));
}

function news(time) {
  if (time === nodeTime) return;
  nodeTime = time;
  newsAt = performance.now();
}

function listen() {
  const events = new EventSource("/v1/events");
  events.addEventListener("open", () => { connected = true; render(); });
  events.addEventListener("status", (e) => {
    connected = true;
    const next = JSON.parse(e.data);
    if (status && next.time !== status.time) before = status;
    status = next;
    news(next.time);
    render();
  });
  events.addEventListener("same", (e) => {
    connected = true;
    if (!status) return;
    status.time = JSON.parse(e.data).time;
    news(status.time);
  });
  events.addEventListener("error", () => {
    connected = false;
    render();
    // The browser tries again by itself, except after an answer that was not a
    // stream (503: too many clients).
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

setInterval(render, 1000);
listen();
