// Opens a session, follows the state and hands changes to the sections.

import { later } from "./batch.js";
import { clock, make, setText } from "./format.js";
import { showJobs } from "./jobs.js";
import { showLinks } from "./links.js";
import { showMachines } from "./machines.js";

const $ = id => document.getElementById(id);
const RETRY_MS = 2000;
const state = {};
let canStop = false;

const key = () => sessionStorage.getItem("key");
function setStatus(text, isBad = false) { setText($("status"), text); $("status").className = isBad ? "bad" : ""; }

async function ask(path, body) {
  const headers = { Authorization: `Bearer ${key() ?? ""}` };
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit" });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error ?? `the agent answers ${answer.status}`);
  return content;
}

async function openSession(proof) {
  const session = await ask("session", proof);
  sessionStorage.setItem("key", session.key);
  sessionStorage.setItem("can_stop", session.can_stop ? "yes" : "no");
  canStop = session.can_stop;
}

function showGate(text) {
  $("gate").hidden = false;
  if (text) setText($("gate-text"), text);
  setStatus("Not connected", true);
  $("code").focus();
}

const actions = {
  canStop: () => canStop,
  log: async (job, rank) => { try { return (await ask(`log?job=${encodeURIComponent(job)}&rank=${rank}`)).text; } catch (error) { return error.message; } },
  stop: (job, name) => {
    setText($("ask-stop-text"), `Stop the job ${name} on all machines?`);
    const dialog = $("ask-stop");
    dialog.returnValue = "no";
    dialog.onclose = async () => {
      if (dialog.returnValue !== "yes") return;
      try { setStatus((await ask("stop", { job })).text); } catch (error) { setStatus(error.message, true); }
    };
    dialog.showModal();
  },
};

function merge(changed) {
  for (const [section, rows] of Object.entries(changed)) {
    const known = state[section] ??= {};
    for (const [id, row] of Object.entries(rows)) if (row === null) delete known[id]; else known[id] = row;
  }
}

function drawEvents() {
  const rows = Object.values(state.events ?? {}).sort((a, b) => b.time_s - a.time_s);
  $("event-list").replaceChildren(...rows.map(found => {
    const item = make("li"), time = make("time", "", clock(found.time_s));
    item.append(time, make("span", "", found.text)); return item; }));
}

function drawCluster() {
  const cluster = state.cluster[""];
  setText($("title"), `Ringleader: ${cluster.name}`);
  document.title = `${cluster.name} - Ringleader`;
  setText($("leader"), `Leader: ${cluster.leader || "none yet"}. View ${cluster.epoch} of ${cluster.ring.length} machine${cluster.ring.length === 1 ? "" : "s"}, seen from ${cluster.here}.`);
}

function drawTroubles() {
  const rows = Object.values(state.troubles ?? {});
  $("troubles").hidden = !rows.length;
  $("trouble-list").replaceChildren(...rows.map(found => make("li", "", found.text)));
}

function show(changed) {
  merge(changed);
  const machines = state.machines ?? {};
  if (changed.cluster) later("cluster", drawCluster);
  if (changed.troubles) later("troubles", drawTroubles);
  if (changed.machines) showMachines(changed.machines, machines);
  if (changed.links || changed.machines || changed.cluster) showLinks(state.links ?? {}, machines, state.cluster?.[""]?.ring ?? [], Boolean(changed.links));
  showJobs(changed.jobs, state.jobs, actions);
  if (changed.events) later("events", drawEvents);
}

/** Read server-sent events; fetch can send the session key in a header, EventSource cannot. */
async function follow() {
  const answer = await fetch("events", { headers: { Authorization: `Bearer ${key()}` }, cache: "no-store", credentials: "omit" });
  if (answer.status === 401) { sessionStorage.removeItem("key"); showGate((await answer.json()).error); return false; }
  if (!answer.ok) throw new Error((await answer.json()).error);
  setStatus("Live");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let isFirst = true;
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the agent has ended");
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find(line => line.startsWith("data: "));
      if (!data) continue;
      const changed = JSON.parse(data.slice(6));
      if (isFirst) { forget(changed); isFirst = false; }
      show(changed);
    }
  }
}

/** After a new connection the first changes are the whole state: what it lacks is gone. */
function forget(whole) {
  for (const [section, rows] of Object.entries(state))
    for (const id of Object.keys(rows)) if (!(id in (whole[section] ?? {}))) (whole[section] ??= {})[id] = null;
}

async function followForever() {
  for (;;) {
    try { if (!await follow()) return; } catch (error) { setStatus(`No connection to the agent (${error.message}); trying again`, true); }
    await new Promise(done => setTimeout(done, RETRY_MS));
  }
}

$("code-form").addEventListener("submit", async submitted => {
  submitted.preventDefault();
  try { await openSession({ code: $("code").value.replaceAll(" ", "") }); } catch (error) { showGate(error.message); return; }
  $("gate").hidden = true;
  followForever();
});

async function start() {
  canStop = sessionStorage.getItem("can_stop") === "yes";
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname);
    try { await openSession({ token }); } catch (error) { if (!key()) { showGate(error.message); return; } }
  }
  if (key()) followForever(); else showGate("");
}
setTimeout(start);  // in a task of its own: the first look into the storage of a tab takes long
