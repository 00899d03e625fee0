// The panels about this node, beside BGP.

import {
  HEALTH, PROBE, RUNG, SIGN, age, before, count, el, fill, known, left, lines, list, millis, mono, now, pairs, plural, rps, since,
  soft, some, span, status, table, tag, viewNs, zero,
} from "./base.js";
import { ORDER, WORD, claimState, holders, memberAge } from "./fleet.js";
import { blocked, guardDetails } from "./guard.js";

export function showTop() {
  fill("where", el("b", {}, status.node), ` at ${status.site}`);
  const up = zero(status.started) ? "" : age(status.started);
  fill("facts", [
    ["version", status.version], ["up", up], ["generation", status.generation],
    ["config", el("span", { class: "mono", title: status.config_hash }, (status.config_hash || "").slice(0, 10))],
    ["node's clock", new Date(now()).toISOString().slice(11, 19) + " UTC"],
  ].map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
}

export function showAlarms() {
  const a = list(status.alarms);
  fill("n-alarms", a.length ? plural(a.length, "condition needs", "conditions need") + " a person" : "");
  fill("alarms", a.length ? el("ul", {}, a.map((t) => el("li", { class: "alarm" }, el("i", { "aria-hidden": "true" }, SIGN.bad), el("span", {}, t))))
    : el("p", { class: "empty" }, "No alarms."));
}

export function showPrefixes() {
  const rows = list(status.decisions).map((d) => {
    const c = list(status.conditions).find((x) => x.prefix === d.prefix) || {};
    const [held, up] = holders(d.prefix);
    // The condition's reason only where the decision's does not say it already.
    const why = d.reason || (c.reason ? `${c.health}: ${c.reason}` : "");
    const rung = blocked(d.prefix) ? [known(RUNG, d.rung), " ", tag("bad", `blocked for ${age(blocked(d.prefix))}`)] : known(RUNG, d.rung);
    return [mono(d.prefix), rung, since(d.since), known(HEALTH, c.health), `${held} of ${up}`, why];
  });
  const given = orders();
  fill("n-prefixes", given.length ? plural(given.length, "order", "orders") + " of an operator" : "");
  fill("prefixes", given.length ? lines("orders", given) : "", table("Prefixes of this node", [["Prefix", "tight"], ["Rung"], ["For", "tight"], ["Health"], ["Held by peers", "tight"], ["Reason", "why"]],
    rows, "No prefix is configured."));
}

// orders are what operators have asked for: to leave, and to move traffic. One
// without sites only takes an earlier one back.
function orders() {
  const drains = list(status.drains).map((d) => [tag("off", "drain"), " ", el("b", {}, d.service ? `service ${d.service}` : d.prefix || "the whole node"),
    `, since ${age(d.since)}, ${zero(d.until) ? (d.by_file ? "while the file says so" : d.stop ? "until it is started again" : "until undrained") : `for ${left(d.until)} more`}: ${d.reason}`,
    d.by_file ? soft(" (by file)") : ""]);
  const prefers = list(status.prefers).filter((o) => list(o.sites).length).map((o) => {
    const others = [o.prepend ? `prepend ${o.prepend}` : "", o.med ? `med ${o.med}` : ""].filter(Boolean).join(", ");
    return [tag("warn", "prefer"), ` traffic of ${o.prefix || "all prefixes"} goes to `, el("b", {}, o.sites.join(", ")),
      ` for ${left(o.until)}: ${o.reason}, by ${o.by}`, others ? soft(` (at the other sites: ${others})`) : ""];
  });
  return [...drains, ...prefers];
}

export function showGuard() {
  const g = status.guard;
  const bound = list(g.bound).map((b) => [mono(b.prefix), `promised ${b.to} to stay`, `${left(b.until)} left`]);
  const asking = Object.entries(g.asking || {}).map(([p, a]) => [mono(p),
    a.ok ? tag("ok", "permit") : blocked(p) ? tag("bad", `blocked for ${age(blocked(p))}`) : a.refused ? tag("bad", "refused") : tag("warn", "asking"),
    `${list(a.promised).length} of ${a.needed} promised${list(a.promised).length ? ": " + a.promised.join(", ") : ""}`, a.reason || ""]);
  const dropped = Object.entries(g.dropped || {}).filter(([, n]) => n > 0);
  const members = list(g.members), more = guardDetails(g);
  fill("n-guard", members.length ? `${members.filter((m) => m.alive).length} of ${plural(members.length, "member", "members")} alive` : "");
  fill("guard", more.first,
    table("Members", [["Member"], ["Site"], ["State"], ["View is", "num"], ["Says", "why"]], members.map(member), "No other node is configured."),
    asking.length ? [el("h3", {}, "Asking for leave"), table("Asking for leave", [["Prefix"], ["Answer"], ["Promises"], ["Reason", "why"]], asking, "")].flat() : "",
    bound.length ? [el("h3", {}, "Bound to stay"), table("Bound to stay", [["Prefix"], ["Promise"], ["Time", "num"]], bound, "")].flat() : "",
    more.last,
    dropped.length ? [el("h3", {}, "Gossip thrown away"), pairs(dropped.map(([k, n]) => [k, count(n)]))] : "");
}

function member(m) {
  const ns = memberAge(m), claims = list(m.report.claims);
  const fresh = ns >= 0 && ns <= viewNs();
  const state = m.alive ? (fresh ? tag("ok", "alive") : tag("warn", "alive, silent")) : tag("unk", "not heard");
  const by = {};
  for (const c of claims) (by[claimState(c.announcing, c.rung)] ||= []).push(c.prefix);
  const says = ORDER.filter((o) => by[o]).map((o) => `${WORD[o] || o}: ${some(by[o], 3)}`).join("; ");
  return [el("b", {}, m.node), m.site, state, ns < 0 ? "none yet" : `${span(ns / 1e6)} old`, says ? (fresh ? says : "last said " + says) : ""];
}

export function showProbes() {
  const rank = { down: 0, full: 1, unknown: 2, up: 3 };
  const all = list(status.probes).slice().sort((a, b) => rank[a.state] - rank[b.state] || (a.probe < b.probe ? -1 : 1));
  const n = (s) => all.filter((p) => p.state === s).length;
  fill("n-probes", all.length ? `${n("up")} up · ${n("full") ? `${n("full")} full · ` : ""}${n("down")} down · ${n("unknown")} unknown` : "");
  fill("probes", table("Probes", [["Probe", "tight"], ["State"], ["For", "tight"], ["Took", "num"], ["Last error", "why"]], all.map((p) => {
    const ran = zero(p.last_run) ? "has not run yet" : "";
    const streak = p.streak ? el("span", { class: "sub" }, " " + p.streak + ({ up: " otherwise since", full: " otherwise since", down: " good since" }[p.state] || " so far")) : "";
    const err = p.last_error ? el("span", { class: p.state === "up" ? "soft" : "" }, p.last_error,
      zero(p.last_error_at) || p.state === "down" || p.state === "full" ? "" : ` (${age(p.last_error_at)} ago)`) : ran;
    return [el("b", {}, p.probe), el("span", {}, known(PROBE, p.state), streak), since(p.since), zero(p.last_run) ? "" : millis(p.took_ns || 0), err];
  }), "No probe is configured."));
}

function bar(value, limit) {
  const share = limit > 0 ? value / limit : value > 0 ? 1 : 0;
  return el("svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": `${Math.round(100 * share)} % of the allowance` },
    el("rect", { class: "track", width: 100, height: 8, rx: 2 }),
    el("rect", { class: share > 1 ? "over" : "fill", width: Math.min(100, 100 * share).toFixed(1), height: 8, rx: 2 }));
}

export function showRegions() {
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

export function showServices() {
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
  fill("services", table("Services", [["Service"], ["Backend"], ["State"], ["Ring"], ["Reason", "why"]], rows, "No service is configured."));
}

export function showForwarder() {
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
