// Numbers and times as text, and small helpers to make elements.

export const bytes = n => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 999.5 && i < 4) { n /= 1000; i++; }
  return `${i && n < 9.95 ? n.toFixed(1) : n.toFixed(0)} ${units[i]}`;
};
export const rate = n => n == null ? "-" : `${bytes(n)}/s`;
export const seconds = s => s == null ? "-" : s < 1e-3 ? `${(s * 1e6).toFixed(0)} µs` : s < 1 ? `${(s * 1e3).toFixed(s < 0.01 ? 2 : 0)} ms` : s < 90 ? `${s.toFixed(1)} s` : `${(s / 60).toFixed(0)} min`;
export const number = v => v == null ? "not a number" : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4));
/** By hand: the times of a language take 50 ms for the events of a page. */
export function clock(s) {
  const time = new Date(s * 1000);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map(n => String(n).padStart(2, "0")).join(":");
}
/** A time in whole seconds, so that it can be counted on. */
export function duration(s) {
  const n = Math.max(0, Math.floor(s)), parts = [Math.floor(n / 3600), Math.floor(n / 60) % 60, n % 60];
  return parts[0] ? `${parts[0]} h ${parts[1]} min` : parts[1] ? `${parts[1]} min ${parts[2]} s` : `${parts[2]} s`;
}
/** Time of the day, with the date unless it is today. */
export function moment(s) {
  const time = new Date(s * 1000), day = [time.getFullYear(), time.getMonth() + 1, time.getDate()].map(n => String(n).padStart(2, "0")).join("-");
  return time.toDateString() === new Date().toDateString() ? clock(s) : `${day} ${clock(s)}`;
}
export const percent = v => `${v.toFixed(0)} %`;

export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Set text only if it differs: an unchanged node needs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}
