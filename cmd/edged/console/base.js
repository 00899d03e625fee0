// What all parts of the page share: the last status and its age, the building
// of elements, and the texts. Everything that comes from outside goes in as text
// (createTextNode), never as markup.

const VIEW_NS = 10e9; // another node's report that is older says nothing, but in a large fleet
const MAX_ROWS = 200;        // of one table or list

// ---- the status -------------------------------------------------------------

export let status = null; // the last edge.SystemStatus
export let before = null; // the one before: for rates
let newsAt = 0;           // performance.now() when the node's time last moved
let nodeTime = "";        // status.time as it was then

export const viewNs = () => Math.max(VIEW_NS, status.guard.fresh_ns || 0);

export function take(next) {
  if (status && next.time !== status.time) before = status;
  status = next;
  touch(next.time);
}

// touch: the facts are the same, as of this time.
export function touch(time) {
  status.time = time;
  if (time === nodeTime) return;
  nodeTime = time;
  newsAt = performance.now();
}

// Ages are worked out from the node's clock, not from the browser's.
export const old = () => performance.now() - newsAt; // ms since the node's time moved
export const now = () => Date.parse(status.time) + old();

// ---- building and updating ------------------------------------------------

const SVG = new Set(["svg", "rect"]);
const empty = (kid) => kid === null || kid === undefined || kid === "";

export function el(tag, attrs, ...kids) {
  const e = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) if (v !== undefined && v !== "") e.setAttribute(k, v);
  for (const kid of kids.flat(Infinity)) {
    if (!empty(kid)) e.append(kid instanceof Node ? kid : document.createTextNode(String(kid)));
  }
  return e;
}

// patch makes a like b, touching only what differs: a selection, the focus and
// what a screen reader is reading stay. Whether details are open is the reader's.
function patch(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return a.replaceWith(b);
  if (a.nodeType === Node.TEXT_NODE) {
    if (a.data !== b.data) a.data = b.data;
    return;
  }
  const theirs = (at) => a.nodeName === "DETAILS" && at.name === "open";
  for (const at of [...a.attributes]) if (!b.hasAttribute(at.name) && !theirs(at)) a.removeAttribute(at.name);
  for (const at of b.attributes) if (a.getAttribute(at.name) !== at.value && !theirs(at)) a.setAttribute(at.name, at.value);
  patchKids(a, [...b.childNodes]);
}

const keyOf = (n) => n.dataset?.key;

// patchKids goes by position, except for those with a data-key: they stay the
// same element wherever they stand now.
function patchKids(a, next) {
  const keys = new Set(next.map(keyOf));
  const had = new Map();
  for (const n of [...a.children]) {
    if (keyOf(n) === undefined) continue;
    if (keys.has(keyOf(n))) had.set(keyOf(n), n);
    else n.remove();
  }
  next.forEach((n, i) => {
    const at = a.childNodes[i], same = had.get(keyOf(n));
    if (same) {
      if (same !== at) a.insertBefore(same, at);
      patch(same, n);
    } else if (!at || keyOf(n) !== undefined || keyOf(at) !== undefined) a.insertBefore(n, at || null);
    else patch(at, n);
  });
  while (a.childNodes.length > next.length) a.lastChild.remove();
}

export function fill(id, ...kids) {
  const at = document.getElementById(id);
  const to = at.cloneNode(false);
  to.append(...kids.flat(Infinity).filter((k) => !empty(k)));
  patch(at, to);
}

// table: cols are [title, class]; a cell is a text, a node or a list of both. A
// row may have a key, to stay the same element when others come before it.
export function table(name, cols, rows, none) {
  if (rows.length === 0) return el("p", { class: "empty" }, none);
  const head = cols.map(([t, c]) => el("th", { scope: "col", role: "columnheader", class: c }, t));
  const body = rows.slice(0, MAX_ROWS).map((r) => el("tr", { role: "row", "data-key": r.key }, r.map((cell, i) =>
    el("td", { role: "cell", class: (cols[i][1] || "") + (cell === "" ? " blank" : ""), "data-label": cols[i][0] }, el("span", {}, cell)))));
  return [
    el("table", { role: "table", "aria-label": name },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, body)),
    rows.length > MAX_ROWS ? more(rows.length) : "",
  ];
}

const more = (n) => el("p", { class: "empty" }, `and ${n - MAX_ROWS} more: edgectl shows all`);

export function lines(kind, items) {
  return [el("ul", { class: kind }, items.slice(0, MAX_ROWS).map((t) => el("li", {}, t))), items.length > MAX_ROWS ? more(items.length) : ""];
}

export const SIGN = { ok: "●", warn: "▲", bad: "✕", off: "○", unk: "?" };
export const tag = (kind, word) => el("span", { class: "tag " + kind }, el("i", { "aria-hidden": "true" }, SIGN[kind]), word);
export const known = (map, word) => tag(map[word] || "unk", word || "unknown");
export const mono = (t) => el("span", { class: "mono break" }, t);
export const soft = (...t) => el("span", { class: "soft" }, t);
export const pairs = (all) => el("dl", { class: "pair" }, all.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));

// ---- states -----------------------------------------------------------------

export const RUNG = { announced: "ok", degraded: "warn", draining: "warn", leaving: "warn", "last-resort": "bad", withdrawn: "off", withheld: "off" };
export const HEALTH = { healthy: "ok", full: "warn", degraded: "warn", sick: "bad", unknown: "unk" };
export const PROBE = { up: "ok", full: "warn", down: "bad", unknown: "unk" };
export const BFD = { up: "ok", init: "warn", down: "bad", "admin-down": "off" };

// ---- texts ------------------------------------------------------------------

export const list = (v) => v || []; // Go writes an empty list as null
export const count = (n) => Math.round(n || 0).toLocaleString("en").replaceAll(",", "\u202f");
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;
export const rps = (n) => (n >= 100 ? count(n) : (n || 0).toFixed(1).replace(/\.0$/, ""));
export const some = (all, n) => all.slice(0, n).join(", ") + (all.length > n ? ` and ${all.length - n} more` : "");
export const zero = (t) => !t || t.startsWith("0001-");

export function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  if (s < 129600) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

export const age = (t) => span(now() - Date.parse(t));
export const left = (t) => span(Date.parse(t) - now());
export const millis = (ns) => (ns < 1e6 ? (ns / 1e6).toFixed(2) : ns < 1e8 ? (ns / 1e6).toFixed(1) : count(ns / 1e6)) + " ms";
// setting is a time that somebody has set: 300 ms, 9 s.
export const setting = (ns) => (ns < 1e9 ? `${Math.round(ns / 1e6)} ms` : `${+(ns / 1e9).toFixed(1)} s`);

export function since(t) {
  return zero(t) ? "" : el("time", { datetime: t, title: t }, age(t));
}
