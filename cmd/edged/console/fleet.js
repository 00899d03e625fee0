// The fleet: each prefix with the state of each site, as this node knows it.

import { guarded } from "./guard.js";
import { SIGN, el, fill, list, old, plural, span, status, viewNs } from "./base.js";

// A site's state is the best that one of its nodes is known to be in; a node of
// which we know nothing keeps the site from being called gone.
export const ORDER = ["announcing", "degraded", "draining", "leaving", "last-resort", "unheld", "unknown", "withheld", "withdrawn"];
const SITE = {
  announcing: "ok", degraded: "warn", draining: "warn", leaving: "warn", "last-resort": "bad",
  unheld: "bad", unknown: "unk", withheld: "off", withdrawn: "off",
};
export const WORD = { unheld: "held by no peer" };
const ON_AIR = new Set(["announcing", "degraded", "draining", "leaving", "last-resort"]);

export function claimState(announcing, rung) {
  const word = rung === "announced" ? "announcing" : rung;
  if (!ORDER.includes(word)) return "unknown";
  return ON_AIR.has(word) && !announcing ? "unheld" : word;
}

let counted = null; // the status that these are of
let held = new Map(); // by prefix: by how many established peers
let up = 0;

// holders returns how many peers hold a prefix, and of how many. All prefixes are
// counted at once: they are asked for one by one, and there may be thousands.
export function holders(prefix) {
  if (counted !== status) {
    const peers = list(status.speaker.peers).filter((p) => p.session === "established");
    [counted, held, up] = [status, new Map(), peers.length];
    for (const p of peers) for (const h of list(p.held)) held.set(h.prefix, (held.get(h.prefix) || 0) + 1);
  }
  return [held.get(prefix) || 0, up];
}

export const memberAge = (m) => (m.age_ns < 0 ? m.age_ns : m.age_ns + old() * 1e6);

// nodes lists what each node says of a prefix: [site, node, state, age in ns].
function nodes(d) {
  const rows = [[status.site, status.node, claimState(holders(d.prefix)[0] > 0, d.rung), 0]];
  for (const m of list(status.guard.members)) {
    if (m.node === status.node) continue;
    const age = memberAge(m);
    const claim = list(m.report.claims).find((c) => c.prefix === d.prefix);
    const seen = claim && age >= 0 && age <= viewNs();
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
    [n("announcing"), "announcing"], [n("degraded", "draining", "leaving", "last-resort"), "degraded"],
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
  const said = guarded(prefix); // by the whole policy, and by what edged counts
  const more = said && said.needed > 0 && said.may_leave < air - floor ? said.may_leave : air - floor;
  const [kind, text] = more > 0 ? ["t-ok", `${more} more may leave`] : more === 0 ? ["t-warn", "none may leave"] : ["t-bad", `${-more} below the floor`];
  return el("div", { class: "room" }, el("b", { class: kind }, text), el("span", {}, `floor ${floor}, ${on}`));
}

export function showFleet() {
  const all = list(status.decisions);
  fill("n-fleet", `as seen from ${status.node}`);
  fill("fleet", el("div", { class: "fleet" }, all.length ? all.map(strip) : el("p", { class: "empty" }, "No prefix is configured.")));
}
