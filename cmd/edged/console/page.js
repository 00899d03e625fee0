// The page of the console: it takes the status as server-sent events and writes
// it into the document.

import { el, fill, list, old, plural, span, status, take, touch } from "./base.js";
import { showFleet } from "./fleet.js";
import { follow, showHistory } from "./history.js";
import { showAlarms, showForwarder, showGuard, showPrefixes, showProbes, showRegions, showServices, showTop } from "./panels.js";
import { showPeers, showWorld, watchDetails } from "./peers.js";

const STALE_MS = 3000; // no news for this long: what is shown is old
const SHOWS = [
  showTop, showFleet, showAlarms, showPrefixes, showPeers, showWorld, showGuard, showProbes, showRegions, showServices, showForwarder, showHistory,
];

let connected = false;

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
  for (const show of SHOWS) show();
  fill("foot", "Read-only. The same facts: edgectl status, bgp and health; as JSON: ", el("a", { href: "/v1/status" }, "/v1/status"), ", ",
    el("a", { href: "/v1/history" }, "/v1/history"));
}

function listen() {
  const events = new EventSource("/v1/events");
  // The id of each event is how many changes edged has had.
  const past = (e) => follow(status.started, Number(e.lastEventId), render);
  events.addEventListener("open", () => { connected = true; render(); });
  events.addEventListener("status", (e) => {
    connected = true;
    take(JSON.parse(e.data));
    past(e);
    render();
  });
  events.addEventListener("same", (e) => {
    connected = true;
    if (!status) return;
    touch(JSON.parse(e.data).time);
    past(e);
  });
  events.addEventListener("error", () => {
    connected = false;
    render();
    // The browser tries again by itself, except after an answer that was not a
    // stream (503: too many clients).
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

watchDetails(render);
setInterval(render, 1000);
listen();
