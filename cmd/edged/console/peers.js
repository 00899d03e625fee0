// BGP: the peers and what each has been sent, and what the world makes of our
// prefixes.

import { BFD, age, count, el, fill, known, lines, list, mono, old, pairs, plural, setting, since, soft, some, span, status, table, tag, zero } from "./base.js";

// ---- the peers --------------------------------------------------------------

// opened are the peers whose details the reader has opened: only theirs are
// built, since there may be thousands of prefixes.
const opened = new Set();

// watchDetails calls back when details are opened or closed.
export function watchDetails(changed) {
  document.addEventListener("toggle", (e) => {
    const peer = e.target.dataset?.peer;
    if (peer === undefined || e.target.open === opened.has(peer)) return;
    if (e.target.open) opened.add(peer);
    else opened.delete(peer);
    changed();
  }, true); // toggle does not bubble
}

export function showPeers() {
  const s = status.speaker;
  const lease = Math.max(0, s.lease_left_ns / 1e6 - old());
  const lost = status.speaker_error || ""; // then s is old: nothing of it is known to be so
  fill("n-peers", lost ? "edgebgp does not answer: this is what it said last" : s.expired ? "lease run out: all degraded" : s.lease_left_ns ? `lease ${span(lease)} left` : "no lease");
  fill("peers", table("BGP peers", [["Peer"], ["Session"], ["For", "tight"], ["Flaps", "num"], ["BFD"], ["Sent, and trouble", "why"]],
    list(s.peers).map((p) => Object.assign([
      [el("b", {}, p.id), " ", el("span", { class: "soft mono" }, p.address), soft(` AS${p.asn}`)],
      tag(lost ? "unk" : p.session === "established" ? "ok" : "bad", p.session), since(p.since), p.flaps, p.bfd ? (lost ? tag("unk", p.bfd.state) : path(p.bfd)) : "", about(p),
    ], { key: p.id })),
    zero(s.started) ? "Unknown: edgebgp has not answered." : "No BGP peer: nothing is announced to anybody."));
}

// path is the BFD session. One that has never been up is perhaps not set up at
// the far end: it fails nothing.
function path(b) {
  const never = b.state === "down" && !b.flaps;
  const rest = [zero(b.since) ? "" : `for ${age(b.since)}`, b.detect_ns ? `detects in ${setting(b.detect_ns)}` : "", plural(b.flaps, "flap", "flaps")];
  return [never ? tag("warn", "down, not up yet") : known(BFD, b.state), " ", el("span", { class: "sub" }, rest.filter(Boolean).join(", "))];
}

// about is what a peer has from us, what it has not, and what went wrong.
function about(p) {
  const up = p.session === "established", held = list(p.held);
  const out = [];
  const line = (...t) => out.push(el("div", {}, t));
  if (held.length) line(some(held.map((h) => h.prefix + attributes(h)), 6));
  else if (up) line("nothing from us");
  for (const [reason, nets] of byReason(list(p.not_sent))) line(tag("off", "not sent"), ` ${some(nets, 6)}: ${reason}`);
  if (p.over_limit) line(tag("bad", "over its limit"), ` it has sent ${plural(p.received, "prefix", "prefixes")}; none is used, but it is perhaps a leak`);
  if (p.last_error) {
    const when = zero(p.last_error_at) ? "" : ` ${age(p.last_error_at)} ago`;
    line(up ? soft(`last trouble${when}: ${p.last_error}`) : [p.last_error, when ? soft(` (${when.trim()})`) : ""]);
  }
  const b = p.bfd || {};
  const why = b.state === "up" ? "" : b.last_error || (b.state === "admin-down" ? "" : b.diag); // its word says that already
  if (why) line(`BFD: ${why}`);
  out.push(el("details", { "data-peer": p.id, open: opened.has(p.id) ? "open" : undefined },
    el("summary", {}, "details", el("span", { class: "hidden" }, ` of ${p.id}`)), opened.has(p.id) ? details(p) : ""));
  return out;
}

function byReason(notSent) {
  const by = new Map();
  for (const n of notSent) {
    if (!by.has(n.reason)) by.set(n.reason, []);
    by.get(n.reason).push(n.prefix);
  }
  return by;
}

function attributeList(h) {
  const a = [];
  if (h.prepend) a.push(`prepend ${h.prepend}`);
  if (h.med) a.push(`med ${h.med}`);
  if (h.local_pref) a.push(`local-pref ${h.local_pref}`);
  const all = [...list(h.communities), ...list(h.large_communities)];
  if (all.length) a.push(all.join(" "));
  return a.join(", ");
}

function attributes(h) {
  const a = attributeList(h);
  return a ? ` (${a})` : "";
}

function details(p) {
  const m = p.messages, b = p.bfd, all = [];
  const say = (k, v) => v && all.push([k, v]);
  say("from", p.local && mono(p.local));
  say("router id", p.remote_id && mono(p.remote_id));
  say("hold", p.hold_ns && setting(p.hold_ns));
  say("keepalive", p.keepalive_ns && setting(p.keepalive_ns));
  say("families", list(p.families).join(", "));
  say("default route", p.default && "the peer sends one; it is not used");
  say("updates", `${count(m.updates_sent)} sent, ${count(m.updates_received)} received`);
  say("withdrawn", plural(m.withdraws_sent, "prefix", "prefixes"));
  say("malformed from it", count(m.malformed));
  say("BFD", b && [`${b.state}${b.diag ? ` (${b.diag})` : ""}, the other end ${b.remote_state || "unknown"}${b.remote_diag ? ` (${b.remote_diag})` : ""}`]);
  const held = list(p.held).map((h) => [mono(h.prefix), soft(" via "), mono(h.next_hop), attributeList(h) ? `: ${attributeList(h)}` : soft(": as it is")]);
  const not = list(p.not_sent).map((n) => [mono(n.prefix), soft(" not sent: "), n.reason]);
  return [pairs(all), held.length + not.length ? lines("held", [...held, ...not]) : ""].flat();
}

// ---- the world --------------------------------------------------------------

const VALIDITY = { "invalid-origin": "bad", "invalid-length": "bad", unknown: "unk", "not-found": "off", valid: "ok" };
const WORST = Object.keys(VALIDITY);

export function showWorld() {
  const s = status.speaker, rpki = s.rpki || {}, watch = s.watch || {};
  const origins = list(s.origins).toSorted((a, b) => WORST.indexOf(a.validity) - WORST.indexOf(b.validity)), seen = list(s.sightings);
  document.getElementById("world").parentElement.hidden = !(rpki.source || watch.source || origins.length || seen.length);
  const watched = watch.source && !zero(watch.updated) && !watch.last_error;
  fill("n-world", seen.length ? seen.length === 1 ? "1 thing is not as it should be" : `${count(seen.length)} things are not as they should be` : watched ? "nothing unexpected is seen" : "");
  fill("world",
    el("div", { class: "sources" }, source("RPKI", rpki, "VRP", "VRPs"), source("Watch", watch, "route seen", "routes seen")),
    seen.length ? table("Sightings", [["Seen"], ["Prefix", "tight"], ["As", "tight"], ["For", "tight"], ["Last", "tight"], ["Evidence", "why"]],
      seen.map((w) => [tag("bad", w.kind), mono(w.prefix), w.seen ? mono(w.seen) : "", since(w.since), zero(w.last) ? "" : `${age(w.last)} ago`, w.evidence]), "") : "",
    origins.length ? [el("h3", {}, "Our announcements by RPKI"), table("RPKI", [["Prefix", "tight"], ["Validity"], ["Evidence", "why"]],
      origins.map((o) => [mono(o.prefix), known(VALIDITY, o.validity), o.evidence || ""]), "")] : "");
}

// source is where knowledge comes from and how old it is.
function source(name, s, one, many) {
  if (!s.source) return "";
  return el("p", {}, el("b", {}, name), " ", mono(s.source), " ",
    zero(s.updated) ? tag("unk", "no data yet") : soft(`${plural(s.items, one, many)}, updated ${age(s.updated)} ago`),
    s.last_error ? [" ", tag("warn", "trouble"), " ", s.last_error] : "");
}
