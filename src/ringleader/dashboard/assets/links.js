// The matrix of links, on a canvas: fifty machines have 2,450 of them.

import { later } from "./batch.js";
import { make, rate, seconds } from "./format.js";

const canvas = document.getElementById("matrix"), text = document.getElementById("link-text");
const legend = document.getElementById("legend");
// Dark blue to yellow, readable by people who do not tell red from green.
const STEPS = ["#3b2f80", "#3a5f9a", "#2d8b8b", "#46ad6f", "#a3cc3f", "#f4e04d"];
const RATES = [1e6, 1e7, 5e7, 1.2e8, 6e8];
const LATENCIES = [2e-2, 5e-3, 1e-3, 3e-4, 1e-4];
const SHARED = "#c8a2e8", NONE = "rgba(128,128,128,.18)";
const LABEL = 84;
let state = { links: {}, names: [], order: [], place: new Map() }, shows = "rate", at = [0, 1];
let cell = { label: 0, top: 20, width: 20, height: 20 };

/** A row of links holds those to the machines after it, in the order of their ids. */
function link(i, j) {
  const a = state.order[i], b = state.order[j], row = state.links[a < b ? a : b];
  const at = row ? Math.abs(state.place.get(a) - state.place.get(b)) - 1 : -1, kind = row?.kind[at];
  if (kind == null) return null;
  return { kind, latency: row.latency_s[at], rate: (a < b ? row.there_bytes_per_s : row.back_bytes_per_s)[at] };
}

function shade(seen) {
  if (!seen) return NONE;
  if (seen.kind === "memory") return SHARED;
  let step = 0;
  if (shows === "rate") while (step < 5 && seen.rate >= RATES[step]) step++;
  else while (step < 5 && seen.latency <= LATENCIES[step]) step++;
  return STEPS[step];
}

const nameOf = i => state.names[i] ?? "?";

function describe() {
  const [i, j] = at;
  if (!state.order.length) return "";  // the agent has said nothing yet
  if (state.order.length < 2) return "There is no other machine.";
  if (i === j) return nameOf(i);
  const seen = link(i, j), pair = `${nameOf(i)} to ${nameOf(j)}: `;
  if (!seen) return pair + "not measured yet";
  if (seen.kind === "memory") return pair + "shared memory";
  return `${pair}${rate(seen.rate)}, latency ${seconds(seen.latency)}`;
}

function cut(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let n = name.length;
  while (n > 1 && context.measureText(`${name.slice(0, n)}…`).width > width) n--;
  return `${name.slice(0, n)}…`;
}

/** Fit the canvas to the page; a new size clears it. */
function measure() {
  const n = state.order.length, room = canvas.parentElement.clientWidth;
  const label = Math.round(Math.min(LABEL, room / 4));
  const width = Math.max(n > 20 ? 9 : 18, Math.min(84, Math.floor((room - label) / Math.max(1, n))));
  cell = { label, top: 20, width, height: Math.min(width, 40) };
  const scale = window.devicePixelRatio || 1, w = label + n * width, h = cell.top + n * cell.height;
  if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
    canvas.width = Math.round(w * scale); canvas.height = Math.round(h * scale);
    canvas.style.width = `${w}px`; canvas.style.height = `${h}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
}

function drawTop() {
  const n = state.order.length, context = canvas.getContext("2d"), { label, top, width } = cell;
  context.clearRect(0, 0, label + n * width, top);
  context.fillStyle = getComputedStyle(document.body).color; context.textAlign = "left";
  for (let j = 0; j < n; j++) {
    if (width < 40 && j !== at[1]) continue;
    context.fillText(cut(context, nameOf(j), Math.max(60, width - 4)), Math.min(label + j * width + 2, label + n * width - 60), top / 2);
  }
  if (cell.height < 12 && at[0] < n) {
    context.clearRect(0, top, label, n * cell.height);
    context.fillText(cut(context, nameOf(at[0]), label - 6), 0, Math.min(top + (n - 1) * cell.height, top + (at[0] + .5) * cell.height));
  }
  const said = describe();
  if (text.textContent !== said) text.textContent = said;
}

function drawRow(i) {
  const n = state.order.length, context = canvas.getContext("2d"), { label, width, height } = cell, y = cell.top + i * height;
  if (i >= n) return;
  const ink = getComputedStyle(document.body).color;
  const isNamed = height >= 12;  // else drawTop names the chosen row only
  context.clearRect(isNamed ? 0 : label, y, label + n * width, height);
  context.fillStyle = ink; context.textAlign = "left";
  if (isNamed) context.fillText(cut(context, nameOf(i), label - 6), 0, y + height / 2);
  for (let j = 0; j < n; j++) {
    if (i === j) continue;
    const seen = link(i, j), fill = shade(seen), x = label + j * width;
    context.fillStyle = fill;
    context.fillRect(x, y, width - 1, height - 1);
    if (width < 60 || !seen) continue;
    const value = seen.kind === "memory" ? "memory" : shows === "rate" ? rate(seen.rate) : seconds(seen.latency);
    context.fillStyle = seen.kind === "memory" || STEPS.indexOf(fill) > 2 ? "#101010" : "#ffffff"; context.textAlign = "center";
    context.fillText(value, x + width / 2, y + height / 2);
  }
  if (i === at[0] && n > 1) {
    context.strokeStyle = ink; context.lineWidth = 2;
    context.strokeRect(label + at[1] * width + 1, y + 1, width - 3, height - 3);
  }
}

function draw() {
  later("links", measure);
  later("links top", drawTop);
  for (let i = 0; i < state.order.length; i++) later(`links row ${i}`, () => drawRow(i));
}

function drawLegend() {
  const names = shows === "rate" ? ["< 1 MB/s", "1 MB/s", "10 MB/s", "50 MB/s", "120 MB/s", "600 MB/s"] : ["> 20 ms", "20 ms", "5 ms", "1 ms", "300 µs", "100 µs"];
  legend.replaceChildren(...[...names.map((name, i) => [STEPS[i], name]), [SHARED, "shared memory"], [NONE, "not measured"]].map(([shade, name]) => {
    const item = make("span"), box = make("i");
    box.style.background = shade; item.append(box, name); return item; }));
}

function move(i, j) {
  const last = state.order.length - 1, before = at[0];
  at = [Math.min(last, Math.max(0, i)), Math.min(last, Math.max(0, j))];
  later("links top", drawTop);
  for (const row of new Set([before, at[0]])) later(`links row ${row}`, () => drawRow(row));
}

const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
canvas.addEventListener("keydown", pressed => {
  const step = KEYS[pressed.key];
  if (step) { pressed.preventDefault(); move(at[0] + step[0], at[1] + step[1]); }
});
canvas.addEventListener("pointermove", pointTo);
canvas.addEventListener("pointerdown", pointTo);
function pointTo(pointed) {
  const i = Math.floor((pointed.offsetY - cell.top) / cell.height), j = Math.floor((pointed.offsetX - cell.label) / cell.width);
  if (i >= 0 && j >= 0 && i < state.order.length && j < state.order.length) move(i, j);
}
for (const choice of document.querySelectorAll("input[name=links]"))
  choice.addEventListener("change", () => { shows = choice.value; drawLegend(); draw(); });
new ResizeObserver(draw).observe(document.getElementById("matrix-frame"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
drawLegend();

/** Draw the matrix of the links between `machines`, if something of it changed. */
export function showLinks(links, machines, ring, isChanged) {
  const others = Object.keys(machines).filter(id => !ring.includes(id));
  const place = new Map(Object.keys(machines).sort().map((id, i) => [id, i]));
  const order = [...ring.filter(id => id in machines), ...others];
  const names = order.map(id => machines[id].name);
  const isSame = order.length === state.order.length && order.every((id, i) => id === state.order[i] && names[i] === state.names[i]);
  state = { links, names, place, order };
  if (isSame && !isChanged) return;  // most changes are those of loads
  move(...at);
  draw();
}
