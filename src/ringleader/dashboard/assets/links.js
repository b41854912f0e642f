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
let state = { links: {}, machines: {}, order: [] }, shows = "rate", at = [0, 1], size = 20;

function link(i, j) {
  const [a, b] = [state.order[i], state.order[j]];
  const there = state.links[`${a} ${b}`], back = state.links[`${b} ${a}`];
  if (there) return { ...there, rate: there.there_bytes_per_s };
  return back ? { ...back, rate: back.back_bytes_per_s } : null;
}

function colour(found) {
  if (!found) return NONE;
  if (found.is_shared_memory) return SHARED;
  if (shows === "rate") return STEPS[RATES.filter(limit => found.rate >= limit).length];
  return STEPS[LATENCIES.filter(limit => found.latency_s <= limit).length];
}

const nameOf = i => state.machines[state.order[i]]?.name ?? "?";

function describe() {
  const [i, j] = at;
  if (state.order.length < 2) return "There is no other machine.";
  if (i === j) return nameOf(i);
  const found = link(i, j), pair = `${nameOf(i)} to ${nameOf(j)}: `;
  if (!found) return pair + "not measured yet";
  if (found.is_shared_memory) return pair + "shared memory";
  return `${pair}${rate(found.rate)}, latency ${seconds(found.latency_s)}`;
}

function cut(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  let n = name.length;
  while (n > 1 && context.measureText(`${name.slice(0, n)}…`).width > width) n--;
  return `${name.slice(0, n)}…`;
}

function draw() {
  const n = state.order.length, room = canvas.parentElement.clientWidth;
  const label = Math.min(LABEL, room / 4);
  size = Math.max(n > 20 ? 9 : 18, Math.min(84, Math.floor((room - label) / Math.max(1, n))));
  const height = Math.min(size, 40), top = 20, scale = window.devicePixelRatio || 1;
  const [w, h] = [label + n * size, top + n * height];
  if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
    canvas.width = Math.round(w * scale); canvas.height = Math.round(h * scale);
    canvas.style.width = `${w}px`; canvas.style.height = `${h}px`;
  }
  canvas.cell = { label, top, height };
  const context = canvas.getContext("2d"), ink = getComputedStyle(document.body).color;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, w, h);
  context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
  for (let i = 0; i < n; i++) {
    context.fillStyle = ink; context.textAlign = "left";
    if (height >= 12 || i === at[0]) context.fillText(cut(context, nameOf(i), label - 6), 0, top + (i + .5) * height);
    if (size >= 40 || i === at[1]) context.fillText(cut(context, nameOf(i), Math.max(60, size - 4)), Math.min(label + i * size + 2, w - 60), top / 2);
    for (let j = 0; j < n; j++) {
      const found = i === j ? null : link(i, j), x = label + j * size, y = top + i * height;
      if (i === j) continue;
      context.fillStyle = colour(found);
      context.fillRect(x, y, size - 1, height - 1);
      if (size >= 60 && found) {
        const value = found.is_shared_memory ? "memory" : shows === "rate" ? rate(found.rate) : seconds(found.latency_s);
        const isLight = found.is_shared_memory || STEPS.indexOf(colour(found)) > 2;
        context.fillStyle = isLight ? "#101010" : "#ffffff"; context.textAlign = "center";
        context.fillText(value, x + size / 2, y + height / 2);
      }
    }
  }
  if (n > 1) {
    context.strokeStyle = ink; context.lineWidth = 2;
    context.strokeRect(label + at[1] * size, top + at[0] * height, size - 1, height - 1);
  }
  if (text.textContent !== describe()) text.textContent = describe();
}

function drawLegend() {
  const names = shows === "rate" ? ["< 1 MB/s", "1 MB/s", "10 MB/s", "50 MB/s", "120 MB/s", "600 MB/s"] : ["> 20 ms", "20 ms", "5 ms", "1 ms", "300 µs", "100 µs"];
  legend.replaceChildren(...[...names.map((name, i) => [STEPS[i], name]), [SHARED, "shared memory"], [NONE, "not measured"]].map(([shade, name]) => {
    const item = make("span"), box = make("i");
    box.style.background = shade; item.append(box, name); return item; }));
}

function move(i, j) {
  const last = state.order.length - 1;
  at = [Math.min(last, Math.max(0, i)), Math.min(last, Math.max(0, j))];
  later("links", draw);
}

const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
canvas.addEventListener("keydown", pressed => {
  const step = KEYS[pressed.key];
  if (step) { pressed.preventDefault(); move(at[0] + step[0], at[1] + step[1]); }
});
canvas.addEventListener("pointermove", pointTo);
canvas.addEventListener("pointerdown", pointTo);
function pointTo(pointed) {
  const { label, top, height } = canvas.cell ?? {};
  if (!height) return;
  const i = Math.floor((pointed.offsetY - top) / height), j = Math.floor((pointed.offsetX - label) / size);
  if (i >= 0 && j >= 0 && i < state.order.length && j < state.order.length) move(i, j);
}
for (const choice of document.querySelectorAll("input[name=links]"))
  choice.addEventListener("change", () => { shows = choice.value; drawLegend(); later("links", draw); });
new ResizeObserver(() => later("links", draw)).observe(document.getElementById("matrix-frame"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => later("links", draw));
drawLegend();

/** Draw the matrix of the links between `machines`. */
export function showLinks(links, machines, ring) {
  const others = Object.keys(machines).filter(id => !ring.includes(id));
  state = { links, machines, order: [...ring.filter(id => id in machines), ...others] };
  move(...at);
}
