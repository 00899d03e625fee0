// The history: the last changes that edged remembers. The stream says how many
// there have been; what is new is fetched.

import { BFD, PROBE, RUNG, age, count, el, fill, list, soft, status, table, tag, zero } from "./base.js";

const MAX = 100;          // rows
const TIMEOUT_MS = 10000; // of one question

let kept = [];    // oldest first, each with a key
let epoch = "";   // when the edged started whose numbers these are
let next = 0;     // the number to ask for
let busy = false;
let trouble = "";

// follow: an edged that started then has had n events. It calls back when there
// is something new to show.
export function follow(started, n, changed) {
  if (zero(started) || !Number.isFinite(n)) return; // edged has only just begun
  if (started !== epoch) begin(started, changed);
  if (n > next && !busy) get(changed);
}

// begin: the numbers of another edged begin again. What the one before has told
// stays to be read, below a row that says so. An answer of the new one may have
// come before its first status: it is asked for again.
function begin(started, changed) {
  const at = Date.parse(started);
  kept = kept.filter((e) => Date.parse(e.time) < at);
  kept.push({ key: started, time: started, kind: "edged", subject: status.node, to: "started" });
  epoch = started;
  next = 0;
  changed();
}

async function get(changed) {
  const of = epoch, since = next;
  busy = true;
  try {
    const answer = await fetch(`/v1/history?since=${since}&last=${MAX}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`edged says ${answer.status}`);
    const got = await answer.json();
    trouble = "";
    // Of another edged than was asked: its status is about to come.
    if (of !== epoch || got.next < since) return;
    const events = list(got.events);
    events.forEach((e, i) => { e.key = `${of} ${got.next - events.length + i}`; });
    kept = [...kept, ...events].slice(-MAX);
    next = got.next;
  } catch (e) {
    trouble = e.message; // tried again with the next event of the stream
  } finally {
    busy = false;
    changed();
  }
}

const TONES = {
  probe: PROBE, prefix: RUNG, bfd: BFD,
  peer: { established: "ok", idle: "bad", connect: "bad", active: "bad", opensent: "bad", openconfirm: "bad" },
};

function change(e) {
  const tone = (TONES[e.kind] || {})[e.to];
  return [e.from ? soft(`${e.from} → `) : "", tone ? tag(tone, e.to) : e.kind in TONES ? tag("unk", e.to) : e.to];
}

export function showHistory() {
  fill("n-history", trouble ? `could not be read: ${trouble}` : next > 0 ? `${count(next)} since edged started` : "");
  const rows = kept.toReversed().map((e) => Object.assign([
    [el("time", { datetime: e.time, class: "mono" }, new Date(e.time).toISOString().slice(0, 19).replace("T", " ")), " ", el("span", { class: "sub" }, `${age(e.time)} ago`)],
    e.kind, el("b", {}, e.subject), change(e), e.evidence || "",
  ], { key: e.key }));
  fill("history", table("History", [["Time (UTC)", "tight"], ["Kind"], ["What"], ["Change", "tight"], ["Evidence", "why"]], rows, "No change is known."));
}
