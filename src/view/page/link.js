// The state of the page as the fragment of its address: a link shows what its sender saw, and back and forward work.
// Each entry: what it is now, what it is at the start, and how to set it. Times are seconds, heaps and files names.
const box = (id, start) => ({ now: () => (byId(id).checked ? 1 : 0), start: start ? 1 : 0, set: (value) => { byId(id).checked = value === '1'; } });
const choice = (id, start) => ({ now: () => byId(id).value || start, start, set: (value) => { byId(id).value = value; if (byId(id).selectedIndex < 0) byId(id).value = start; } });
const seconds = (bucket) => Number((bucket * profile.bucket_s).toPrecision(6));
const bucketAt = (text, otherwise) => { const bucket = Math.round(Number(text) / profile.bucket_s); return Number.isFinite(bucket) ? bucket : otherwise; };
const LINKED = {
  tab: { now: () => state.view, start: () => START.view, set: (value) => { state.view = Object.hasOwn(VIEWS, value) ? value : START.view; } },
  show: { now: () => state.measure, start: () => START.measure, set: (value) => { state.measure = Object.hasOwn(MEASURES, value) ? value : START.measure; } },
  from: { now: () => seconds(state.from), start: 0, set: (value) => { state.from = Math.max(0, Math.min(lastBucket, bucketAt(value, 0))); } },
  to: { now: () => (state.to === lastBucket ? '' : seconds(state.to + 1)), start: '', set: (value) => { state.to = value === '' ? lastBucket : Math.max(state.from, Math.min(lastBucket, bucketAt(value, lastBucket + 1) - 1)); } },
  find: { now: () => state.search, start: '', set: (value) => { state.search = value; } },
  heap: { now: () => (state.heap < 0 ? '' : profile.heaps[state.heap]), start: '', set: (value) => { const heap = profile.heaps.indexOf(value); state.heap = tracks.includes(heap) ? heap : -1; } },
  zoom: { now: () => flame.zoom.toString(36), start: '0', set: (value) => { flame.zoom = parseInt(value, 36) || 0; } },
  callers: box('invert', false),
  top: box('icicle', true),
  by: { now: () => table.by, start: 'function', set: (value) => { table.by = Object.hasOwn(BY, value) ? value : 'function'; } },
  sort: { now: () => table.sort + (table.down ? '' : '-up'), start: 'bytes', set: (value) => { table.sort = COLUMNS.includes(value.replace('-up', '')) ? value.replace('-up', '') : 'bytes'; table.down = !value.endsWith('-up'); } },
  module: { now: () => (heat.module === null ? '' : heat.module === NONE ? '-' : moduleName(heat.module)), start: '', set: (value) => { const m = profile.modules.findIndex((_, at) => moduleName(at) === value); heat.module = value === '-' ? NONE : value && m >= 0 ? m : null; } },
  verdict: choice('verdict', ''),
  lines: { now: () => byId('top').value, start: '8', set: (value) => { byId('top').value = value; } },
  statistic: choice('statistic', '0'),
  file: { now: () => (source.file === null ? '' : profile.files[source.file]), start: '', set: (value) => { const file = profile.files.indexOf(value); source.file = file < 0 ? null : file; } },
  changes: { now: () => changes.by, start: 'function', set: (value) => { changes.by = CHANGES_BY.includes(value) ? value : 'function'; } },
  moment: choice('ledger-moment', 'peak'),
  sure: box('sure', false),
  inverted: box('change-invert', false),
  zoomed: { now: () => changes.zoom.toString(36), start: '0', set: (value) => { changes.zoom = parseInt(value, 36) || 0; } },
};
const startOf = (it) => String(typeof it.start === 'function' ? it.start() : it.start);

// What differs from the start.
function fragment() {
  const differing = Object.entries(LINKED).map(([name, it]) => [name, String(it.now()), startOf(it)]).filter(([, now, start]) => now !== start);
  const words = new URLSearchParams(differing.map(([name, now]) => [name, now])).toString();
  return words ? `#${words}` : '';
}
// Puts the state into the address: a step that back undoes, or a part of the last one while somebody types.
const link = { isTyping: false, shown: null };
function remember(isTyping) {
  const now = fragment();
  if (now !== link.shown) {
    const isSameStep = link.shown === null || (isTyping && link.isTyping);
    link.shown = now;
    try {
      history[isSameStep ? 'replaceState' : 'pushState'](null, '', now || location.pathname + location.search);
    } catch {
      // Too many steps in a short time, or a page that has no address.
    }
  }
  link.isTyping = isTyping;
}
// Shows what the address says.
function follow() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, it] of Object.entries(LINKED)) it.set(words.get(name) ?? startOf(it));
  link.shown = fragment();
  for (const [id, value] of [['measure', state.measure], ['heap', state.heap], ['search', state.search], ['by', table.by], ['change-by', changes.by]]) byId(id).value = value;
}
