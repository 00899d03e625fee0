// What the guard does and did: what must stay, what is suspect, rounds, the past.

import { age, el, left, list, mono, pairs, plural, soft, some, span, status, table, tag, rps } from "./base.js";

// guarded is how the fleet stands with a prefix, as edged reckons it; undefined: it
// has not said.
export const guarded = (prefix) => list(status.guard.prefixes).find((p) => p.prefix === prefix);

export const blocked = (prefix) => {
  const t = ((status.guard.asking || {})[prefix] || {}).blocked_since;
  return t && !t.startsWith("0001-") ? t : "";
};

// terms are what must stay if one leaves.
function terms(p) {
  const out = [plural(p.needed, "site", "sites") + (p.needed === p.floor ? "" : ` (floor ${p.floor})`)];
  if (p.healthy) out.push(`${p.healthy} healthy`);
  if (p.capacity_rps) out.push(`${rps(p.capacity_rps)} requests/s`);
  for (const [r, n] of Object.entries(p.regions || {}).sort()) out.push(`${n} of ${r}`);
  return out.join(", ");
}

const room = (p) => (p.needed === 0 ? tag("unk", "not guarded") : p.may_leave === 0 ? tag("bad", "none may leave")
  : tag(p.may_leave === 1 ? "warn" : "ok", `${p.may_leave} more may leave`));

function suspects(g) {
  return list(g.suspects).map((s) => [
    tag(s.here && !s.trusted ? "bad" : "warn", "common cause"), " ", el("b", {}, s.cause.split("#")[0]),
    ` fails at ${plural(list(s.sites).length, "site", "sites")} of ${s.of}: ${some(list(s.sites), 8)}`,
    list(s.silent).length ? `; not heard of: ${some(s.silent, 8)}` : "", s.here ? "; here too" : "", s.trusted ? soft(" (trusted by an order)") : ""]);
}

function orders(g) {
  return [
    ...list(g.trust).map((t) => [tag("warn", "trusted"), " ", el("b", {}, t.check), ` for ${left(t.until)}, by ${t.by}: ${t.reason}`]),
    ...list(g.forced).map((f) => [tag("bad", "forced"), ` ${f.prefix} off the air ${age(f.at)} ago, without a permit: ${f.reason}`]),
  ];
}

function rounds(g) {
  const rows = [];
  for (const p of list(g.prefixes)) {
    if (!p.round) continue;
    const r = p.round;
    rows.push([mono(p.prefix), `round ${r.n}, for ${age(r.opened)}`, list(r.held).map((h) => `${h.node} (${left(h.until)})`).join(", "),
      Object.entries(r.nacked || {}).sort().map(([n, why]) => `${n}: ${why}`).join("; "), list(r.waiting).join(", ")]);
  }
  return rows;
}

function past(g) {
  return list(g.past).slice().reverse().map((d) => [`${age(d.time)} ago`, mono(d.prefix), tag(d.forced ? "bad" : d.left ? "ok" : "warn", d.left ? "left" : "stayed"),
    `${list(d.promised).length} of ${d.needed} promised, in ${span(Date.parse(d.time) - Date.parse(d.opened))}`,
    [d.reason || "given up", d.wish ? soft(` (wanted to: ${d.wish})`) : ""]]);
}

const titled = (title, rows) => (rows.length ? [el("h3", {}, title), rows].flat() : "");
const bullets = (items) => el("ul", { class: "orders" }, items.map((t) => el("li", {}, t)));

// guardDetails are the parts of the panel beside members and promises.
export function guardDetails(g) {
  const notes = [...suspects(g), ...orders(g)], open = rounds(g), before = past(g);
  const stays = list(g.prefixes).map((p) => [mono(p.prefix), terms(p), room(p), plural(list(p.sites).length, "site", "sites"),
    [p.lacks || "", list(p.silent).length ? soft(` not heard of: ${some(p.silent, 5)}`) : ""]]);
  const keys = Object.entries(g.node_keys || {}).sort();
  return {
    first: [notes.length ? bullets(notes) : "",
      stays.length ? [el("h3", {}, "What must stay"), table("What must stay", [["Prefix"], ["If one leaves"], ["Head-room"], ["Announced at"], ["For one more", "why"]], stays, "")].flat() : ""],
    last: [
      open.length ? titled("Open rounds", table("Open rounds", [["Prefix"], ["Round"], ["Promised", "why"], ["Refused", "why"], ["Silent"]], open, "")) : "",
      before.length ? titled("Rounds that are over", table("Rounds that are over", [["When"], ["Prefix"], ["This node"], ["Answers"], ["Why", "why"]], before, "")) : "",
      keys.length ? titled("Keys", [pairs(keys)]) : ""],
  };
}
