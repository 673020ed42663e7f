// Numbers for people, and elements whose content is text and nothing else.
const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
function formatBytes(value) {
  let unit = 0, size = Math.abs(value);
  while (size >= 1024 && unit < BINARY.length - 1) { size /= 1024; unit++; }
  return `${value < 0 && Math.round(size * 10) > 0 ? '-' : ''}${unit === 0 ? Math.round(size) : size.toFixed(size < 100 ? 1 : 0)} ${BINARY[unit]}`;
}
const formatRate = (bytesPerSecond) => `${formatBytes(bytesPerSecond * 60)}/min`;
const formatChange = (bytes) => `${bytes < 0 ? '' : '+'}${formatBytes(bytes)}`;
const formatCount = (value) => Math.round(value).toLocaleString('en');
function formatTime(seconds) {
  if (seconds === 0) return '0 s';
  if (seconds < 1e-6) return `${Math.round(seconds * 1e9)} ns`;
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
// On an axis: no more digits than needed.
const formatTick = (seconds) => formatTime(seconds).replace(/\.0 /, ' ');
const formatPart = (part) => (Number.isFinite(part) ? `${(part * 100).toFixed(1)} %` : '');
const formatShare = (part) => (Number.isFinite(part) ? `${Math.round(part * 100)} %` : '');
const plural = (count, word) => `${formatCount(count)} ${word}${count === 1 ? '' : 's'}`;
const byId = (id) => document.getElementById(id);
function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
// For the charts' tooltips, which are the one place that takes markup.
const escapeText = (text) => charts.echarts.format.encodeHTML(String(text));

// A name that fits: first without the arguments of templates, then without its outer name spaces, and only then cut. The
// end of a name tells it apart.
function shorten(name, length) {
  if (name.length <= length) return name;
  const plain = withoutArguments(name);
  if (plain.length <= length) return plain;
  const parts = plain.split(/(?<=::|\.)/);
  while (parts.length > 1 && parts.join('').length + 1 > length) parts.shift();
  const end = `…${parts.join('')}`;
  if (end.length <= length) return end;
  const half = Math.max(1, length - 1) / 2;
  return `${plain.slice(0, Math.ceil(half))}…${plain.slice(plain.length - Math.floor(half))}`;
}
// Of `map<int, list<char>>::insert` what is outside of the arguments: `map<…>::insert`. Operators stay, and so do `<module>`
// and other names in brackets: nothing is before them that has arguments.
function withoutArguments(name) {
  let depth = 0, plain = '', before = '';
  for (const part of name.replace(/operator(<=>|<<=?|>>=?|[<>]=?|->\*?)/g, (it) => it.replace(/</g, '\u0001').replace(/>/g, '\u0002')).replace(/->/g, '-\u0002')) {
    if (part === '>') depth = Math.max(0, depth - 1);
    if (depth === 0) plain += part;
    if (part === '<' && (depth > 0 || /[\w:]/.test(before)) && depth++ === 0) plain += '…';
    before = part;
  }
  return plain.replace(/\u0001/g, '<').replace(/\u0002/g, '>');
}
// Empties a table and gives it headings; returns its body.
function startTable(id, titles) {
  const place = byId(id);
  place.replaceChildren();
  const head = element('tr', undefined, element('thead', undefined, place));
  for (const title of titles) element('th', title, head);
  return element('tbody', undefined, place);
}
