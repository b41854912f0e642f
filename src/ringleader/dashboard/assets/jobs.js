// One block per job: numbers with their curves, ranks, log and stop button.

import { later } from "./batch.js";
import { duration, make, moment, number, rate, seconds, setClass, setText } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const blocks = new Map();
const list = document.getElementById("job-list");

function create(id, actions) {
  const block = make("article", "job"), top = make("div", "top");
  const parts = { block, title: make("h3"), state: make("span", "tag"), about: make("p", "dim"), times: make("p", "dim times"), failure: make("pre", "failure"), job: null, numbers: make("div", "numbers"), body: make("tbody"), figures: new Map(), ranks: new Map(), log: make("pre", "log"), stop: make("button", "danger", "Stop"), show: make("button", "", "Show log") };
  top.append(parts.title, parts.state);
  const table = make("table"), head = make("tr"), scroll = make("div", "scroll"), buttons = make("div", "buttons");
  head.append(...["rank", "machine", "step", "time of a step", "sends", "waits for"].map(name => make("th", "", name)));
  const thead = make("thead"); thead.append(head); table.append(thead, parts.body); scroll.append(table);
  parts.table = scroll;
  parts.log.hidden = true; parts.log.tabIndex = 0;
  parts.show.addEventListener("click", async () => {
    parts.log.hidden = !parts.log.hidden;
    parts.show.textContent = parts.log.hidden ? "Show log" : "Hide log";
    if (!parts.log.hidden) { parts.log.textContent = await actions.log(id, 0); parts.log.scrollTop = parts.log.scrollHeight; }
  });
  parts.stop.addEventListener("click", () => actions.stop(id, parts.title.textContent));
  buttons.append(parts.show, parts.stop);
  parts.failure.tabIndex = 0;
  block.append(top, parts.about, parts.times, parts.failure, parts.numbers, scroll, buttons, parts.log);
  blocks.set(id, parts);
  list.append(block);
  return parts;
}

function figure(parts, name) {
  const box = make("div", "number"), value = make("b"), svg = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "polyline");
  svg.setAttribute("viewBox", "0 0 100 30"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("role", "img");
  svg.append(line); box.append(make("span", "dim", `${name} `), value, svg);
  parts.numbers.append(box);
  const made = { value, line, svg };
  parts.figures.set(name, made);
  return made;
}

function points(curve) {
  const known = curve.filter(p => p[1] != null);
  if (known.length < 2) return "";
  const xs = known.map(p => p[0]), ys = known.map(p => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return known.map(p => `${(100 * (p[0] - x0) / (x1 - x0 || 1)).toFixed(1)},${(28.5 - 27 * (p[1] - y0) / (y1 - y0 || 1)).toFixed(1)}`).join(" ");
}

function drawNumbers(parts, job) {
  for (const [name, curve] of Object.entries(job.numbers)) {
    const found = parts.figures.get(name) ?? figure(parts, name), last = curve[curve.length - 1];
    setText(found.value, last ? number(last[1]) : "-");
    found.svg.setAttribute("aria-label", `${name}, ${curve.length} points`);
    found.line.setAttribute("points", points(curve));
  }
}

const sent = seen => seen.sent_bytes_per_s ? rate(seen.sent_bytes_per_s) + (seen.compression ? `, compressed ${seen.compression} times` : "") : "-";

function drawRank(parts, rank, seen) {
  let row = parts.ranks.get(rank);
  if (!row) {
    row = make("tr"); row.append(...Array.from({ length: 6 }, () => make("td")));
    parts.ranks.set(rank, row); parts.body.append(row);
  }
  const shown = [String(rank), seen.machine, seen.step == null ? "-" : String(seen.step), seconds(seen.step_s), sent(seen), seen.waits_for || ""];
  shown.forEach((text, i) => setText(row.cells[i], text));
}

/** Begin and length of a job; while it runs the page counts on by itself. */
function drawTimes(parts) {
  const { started_s: began, ended_s: ended } = parts.job;
  parts.times.hidden = !began;
  if (!began) return;
  const took = duration((ended || Date.now() / 1000) - began);
  setText(parts.times, ended ? `started ${moment(began)}, ended after ${took}` : `started ${moment(began)}, ${took} ago`);
}
setInterval(() => { for (const parts of blocks.values()) if (parts.job?.started_s && !parts.job.ended_s) drawTimes(parts); }, 1000);

function draw(id, job, actions) {
  const parts = blocks.get(id) ?? create(id, actions);
  setText(parts.title, job.name); setText(parts.state, job.state); setClass(parts.state, `tag ${job.state}`);
  setText(parts.about, job.about);
  parts.job = job; drawTimes(parts);
  setText(parts.failure, job.failure); parts.failure.hidden = !job.failure;
  parts.stop.hidden = !(job.can_stop && actions.canStop()); parts.show.hidden = !job.has_log;
  later(`numbers ${id}`, () => drawNumbers(parts, job));
  parts.table.hidden = !job.ranks.length;
  for (const seen of job.ranks) later(`rank ${id} ${seen.rank}`, () => drawRank(parts, seen.rank, seen));
  const here = new Set(job.ranks.map(seen => seen.rank));
  for (const [rank, row] of parts.ranks) if (!here.has(rank)) { row.remove(); parts.ranks.delete(rank); }
}

/** Draw the jobs that changed; `actions` are log(job, rank), stop(job, name), canStop(). */
export function showJobs(changed, all, actions) {
  for (const [id, job] of Object.entries(changed ?? {})) {
    if (job === null) later(`job ${id}`, () => { blocks.get(id)?.block.remove(); blocks.delete(id); });
    else later(`job ${id}`, () => draw(id, job, actions));
  }
  later("no jobs", () => { document.getElementById("no-jobs").hidden = Object.keys(all ?? {}).length > 0; });
}
