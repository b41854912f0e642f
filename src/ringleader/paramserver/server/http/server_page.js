// The page of the internet server: rounds, loss and workers, asked for every two seconds.

import { bytes, make, setClass, setText } from "./format.js";

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const EVERY_MS = 2000;
const time = s => s == null ? "-" : s < 90 ? `${s.toFixed(0)} s` : s < 5400 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`;

function showFacts(s) {
  const last = s.losses.length ? s.losses[s.losses.length - 1][1].toPrecision(4) : "-";
  const shown = [["version", `${s.version} of ${s.rounds}`], ["loss", last], ["mode", s.mode + (s.steps > 1 ? `, ${s.steps} steps` : "")],
    ["this round", `${s.counted} of ${s.shards}`], ["time", time(s.seconds)], ["left", s.finished ? "-" : time(s.eta_s)],
    ["received", bytes(s.bytes_received)], ["sent", bytes(s.bytes_sent)]];
  const list = $("facts");
  shown.forEach(([name, value], i) => {
    if (!list.children[i]) { const box = make("div"); box.append(make("dt", "", name), make("dd")); list.append(box); }
    setText(list.children[i].lastChild, value);
  });
}

function showCurve(points) {
  const svg = $("curve");
  if (points.length < 2) { svg.replaceChildren(); setText($("range"), "No rounds yet."); return; }
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const at = p => `${(600 * (p[0] - x0) / (x1 - x0 || 1)).toFixed(1)},${(195 - 190 * (p[1] - y0) / (y1 - y0 || 1)).toFixed(1)}`;
  const line = svg.firstChild ?? document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.map(at).join(" "));
  svg.append(line);
  setText($("range"), `From ${ys[0].toPrecision(3)} at version ${x0} to ${ys[ys.length - 1].toPrecision(3)} at version ${x1}; lowest ${y0.toPrecision(3)}.`);
}

function showWorkers(list) {
  const body = $("workers");
  while (body.rows.length > list.length) body.deleteRow(-1);
  list.forEach((w, i) => {
    const row = body.rows[i] ?? body.insertRow();
    const shown = [`${w.name} (${w.device})`, w.state, String(w.updates), w.samples_per_s.toFixed(0), w.behind == null ? "-" : String(w.behind),
      bytes(w.bytes_received), bytes(w.bytes_sent), `${time(w.seen_s)} ago`];
    shown.forEach((text, j) => setText(row.cells[j] ?? row.insertCell(), text));
    setClass(row.cells[1], w.state);
  });
}

function headline(s) {
  if (s.finished) return "Finished.";
  if (s.waiting_for) return `Waiting for ${s.waiting_for} more worker${s.waiting_for > 1 ? "s" : ""}.`;
  const names = s.awaited.map(id => (s.workers.find(w => w.id === id) ?? { name: id }).name).slice(0, 5);
  return names.length ? `Training; this round waits for ${names.join(", ")}.` : "Training.";
}

async function look() {
  try {
    const answer = await fetch("v1/status", { cache: "no-store" });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    const s = await answer.json();
    setText($("title"), `Ringleader trains ${s.task}`);
    document.title = `${s.version}/${s.rounds} ${s.task}`;
    setText($("headline"), headline(s));
    const share = s.version / s.rounds;
    $("done").style.transform = `scaleX(${share})`; $("progress").setAttribute("aria-valuenow", (100 * share).toFixed(0));
    showFacts(s); showCurve(s.losses); showWorkers(s.workers);
    setText($("status"), "Live"); setClass($("status"), "");
  } catch (error) { setText($("status"), `The server does not answer: ${error.message}`); setClass($("status"), "bad"); }
  setTimeout(look, EVERY_MS);
}
look();
