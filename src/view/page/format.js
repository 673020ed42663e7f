// Numbers for people, and elements whose content is text and nothing else.
const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
function formatBytes(value) {
  let unit = 0, size = Math.abs(value);
  while (size >= 1024 && unit < BINARY.length - 1) { size /= 1024; unit++; }
  return `${value < 0 ? '-' : ''}${unit === 0 ? Math.round(size) : size.toFixed(size < 100 ? 1 : 0)} ${BINARY[unit]}`;
}
const formatCount = (value) => Math.round(value).toLocaleString('en');
function formatTime(seconds) {
  if (seconds > 0 && seconds < 1e-6) return `${Math.round(seconds * 1e9)} ns`;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
const formatPart = (part) => (Number.isFinite(part) ? `${(part * 100).toFixed(1)} %` : '');
const byId = (id) => document.getElementById(id);
function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
// For the charts' tooltips, which are the one place that takes markup.
const escapeText = (text) => charts.echarts.format.encodeHTML(String(text));
const shorten = (name, length) => (name.length > length ? `${name.slice(0, length - 1)}…` : name);
// Empties a table and gives it headings; returns its body.
function startTable(id, titles) {
  const place = byId(id);
  place.replaceChildren();
  const head = element('tr', undefined, element('thead', undefined, place));
  for (const title of titles) element('th', title, head);
  return element('tbody', undefined, place);
}
