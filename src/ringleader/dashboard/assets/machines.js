// One card per machine: what it is, how busy it is, how it is.

import { later } from "./batch.js";
import { bytes, make, percent, seconds, setClass, setText } from "./format.js";

const cards = new Map();
const list = document.getElementById("machine-list");

function meter(name) {
  const row = make("div", "meter"), bar = make("div", "bar"), fill = make("i"), text = make("span");
  bar.append(fill);
  row.append(make("span", "dim", name), bar, text);
  row.hidden = true;
  return { row, fill, text };
}

function setMeter(m, share, text) {
  m.row.hidden = share == null;
  if (share == null) return;
  m.fill.style.transform = `scaleX(${Math.min(1, Math.max(0, share))})`;
  setText(m.text, text);
}

function create(id) {
  const card = make("article", "card"), top = make("div", "top");
  const parts = { card, title: make("h3"), health: make("span", "tag"), device: make("p"), cpu: meter("CPU"), memory: meter("memory"), gpu: meter("GPU"), more: make("p", "dim"), jobs: make("p") };
  top.append(parts.title, parts.health);
  card.append(top, parts.device, parts.cpu.row, parts.memory.row, parts.gpu.row, parts.more, parts.jobs);
  cards.set(id, parts);
  return parts;
}

function deviceText(m) {
  const devices = (m.devices || []).map(d => d.memory_bytes ? `${d.name}, ${bytes(d.memory_bytes)}` : d.name);
  const chip = m.chip ? `${m.chip}, ${m.cores} core${m.cores === 1 ? "" : "s"}` : "";
  return [...devices, chip].filter(Boolean).join("; ");
}

function moreText(m) {
  const load = m.load || {}, found = [];
  if (load.temperature_c != null) found.push(`${load.temperature_c.toFixed(0)} °C`);
  if (load.battery_percent != null) found.push(`battery ${percent(load.battery_percent)}${load.is_charging ? ", charging" : ""}`);
  if (!m.is_here && m.latency_s != null) found.push(`${seconds(m.latency_s)} away`);
  if (m.address) found.push(m.address);
  return found.join(", ");
}

function draw(id, m) {
  const parts = cards.get(id) || create(id);
  if (!parts.card.isConnected) list.append(parts.card);
  setText(parts.title, m.name + (m.is_leader ? " ★" : ""));
  parts.title.title = m.is_leader ? "leader" : "";
  setText(parts.health, (m.is_here ? "here, " : "") + m.health + (m.in_view ? "" : ", not in view"));
  setClass(parts.health, `tag ${m.health}`);
  setText(parts.device, deviceText(m));
  const load = m.load;
  setMeter(parts.cpu, load ? load.cpu_percent / 100 : null, load ? percent(load.cpu_percent) : "");
  setMeter(parts.memory, load ? load.memory_used_bytes / load.memory_total_bytes : null, load ? `${bytes(load.memory_used_bytes)} of ${bytes(load.memory_total_bytes)}` : "");
  const gpu = load && load.gpu_percent != null;
  const warmth = gpu && load.gpu_temperature_c != null ? `, ${load.gpu_temperature_c.toFixed(0)} °C` : "";
  setMeter(parts.gpu, gpu ? load.gpu_percent / 100 : null, gpu ? percent(load.gpu_percent) + warmth : "");
  setText(parts.more, moreText(m));
  const jobs = m.jobs.map(j => m.waiting_jobs.includes(j) ? `${j} (waits)` : j);
  setText(parts.jobs, jobs.length ? `jobs: ${jobs.join(", ")}` : "");
}

/** Draw the machines that changed. */
export function showMachines(changed, all) {
  for (const [id, m] of Object.entries(changed)) {
    if (m === null) later(`machine ${id}`, () => { cards.get(id)?.card.remove(); cards.delete(id); });
    else later(`machine ${id}`, () => draw(id, m));
  }
  const count = Object.keys(all).length;
  later("machine count", () => setText(document.getElementById("machine-count"), `(${count})`));
}
