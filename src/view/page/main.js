// Puts the parts together: what is drawn when, and the keys.
const VIEWS = { overview: ['Overview', drawOverview], flame: ['Flame graph', drawFlame], table: ['Tables', drawTable], evolution: ['Over time', drawEvolution],
  leaks: ['Leaks', drawLeaks], heat: ['Heat map', drawHeat], lifetimes: ['Lifetimes', drawLifetimes] };
if (profile.ledger) VIEWS.ledger = ['Memory', drawLedger];
if (profile.collections.in_all) VIEWS.collections = ['GC', drawCollections];
if (profile.files.length) VIEWS.sources = ['Sources', drawSources];
if (profile.against) VIEWS.changes = ['Changes', drawChanges];
const ALL_VIEWS = ['overview', 'flame', 'table', 'evolution', 'heat', 'lifetimes', 'leaks', 'ledger', 'collections', 'sources', 'changes'];

// Draws what is chosen, and puts it into the address.
function refresh(isTyping = false) {
  redraw();
  remember(isTyping);
}
function redraw() {
  for (const name of ALL_VIEWS) byId(`view-${name}`).hidden = name !== state.view;
  for (const name of Object.keys(VIEWS)) {
    const tab = byId(`tab-${name}`), isSelected = name === state.view;
    tab.setAttribute('aria-selected', String(isSelected));
    if (isSelected) tab.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  const all = total();
  byId('shown').textContent = `${formatBytes(all.bytes)} ${MEASURES[state.measure]}`;
  byId('shown').dataset.bytes = all.bytes;
  VIEWS[state.view][1]();
}
function search(text) {
  state.search = text;
  byId('search').value = text;
  refresh();
}
function setHeap(heap) { state.heap = heap; byId('heap').value = heap; heat.module = null; drawTimeline(); refresh(); }
function setBy(name) { table.by = name; table.rows = ROWS_AT_ONCE; byId('by').value = name; refresh(); }
function show(view) { state.view = view; refresh(); }
function setMeasure(measure) { state.measure = measure; byId('measure').value = measure; refresh(); }

function drawHeader() {
  // The path of the program says less than its arguments do.
  const at = about.command.indexOf(about.program);
  byId('program').textContent = (at < 0 ? '' : about.command.slice(at)) || about.program || 'profile';
  byId('program').title = about.command;
  if (profile.against) byId('program').textContent += ', compared';
  const when = (it) => `pid ${it.pid}, ${new Date(it.start_unix_ms).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })}, ${formatTime(it.duration_s)}, ${it.exit ?? (it.running ? 'still running' : it.killed_by ? `killed by ${it.killed_by}` : it.complete ? 'ended' : 'incomplete: killed, or written while it ran')}`;
  byId('command').textContent = when(about);
  if (profile.against) byId('against').textContent = `compared with ${profile.against.about.command}   ${when(profile.against.about)}`;
  if (profile.sites_in_all > siteCount) {
    byId('folded').textContent = `${formatCount(profile.sites_in_all)} sites: the smallest are shown together, below the callers that most of them share.`;
  }
  drawHeadline();
  const facts = [['allocated', about.allocated_text, '', about.allocated_bytes],
    ['live at the end', about.live_text, '', about.live_bytes],
    ['peak', about.peak_text, ` after ${formatTime(about.peak_s)}`, about.peak_bytes],
    ['allocations', formatCount(about.allocations), '', about.allocations],
    ['samples', formatCount(about.samples), `${about.interval_bytes > 1 ? ` (one per ${formatBytes(about.interval_bytes)} on average)` : ' (every allocation)'}, ${formatCount(about.lost_samples)} lost`, about.samples]];
  if (about.peak_resident_bytes) facts.splice(3, 0, ['resident set', `up to ${formatBytes(about.peak_resident_bytes)}`, '', about.peak_resident_bytes]);
  if (gcs.in_all) {
    const paused = profile.collections.stress.reduce((sum, row) => sum + row.total_s, 0);
    facts.push(['GCs', formatCount(gcs.in_all), ` ${formatTime(paused)} in total`, gcs.in_all]);
  }
  facts.unshift(leakFact());
  byId('facts').open = !isNarrow();
  for (const [name, value, detail, exact] of facts) {
    const box = element('div', undefined, byId('totals'));
    box.dataset.name = name;
    box.dataset.value = exact;
    element('dt', name, box);
    const words = element('dd', value, box);
    element('small', detail, words);
    if (name === 'leaks' && exact > 0) {
      box.tabIndex = 0;
      box.style.cursor = 'pointer';
      box.addEventListener('click', () => show('leaks'));
    }
  }
}
// Counts every verdict that the cards show: the header must not say "none found" above a card that grows.
function leakFact() {
  const counts = Object.fromEntries(profile.leaks.counts), of = (verdict) => counts[verdict] ?? 0;
  const found = ['leak', 'possible leak', 'growing', 'undecided'].filter((verdict) => of(verdict));
  if (!found.length) return ['leaks', about.has_no_verdict ? 'no verdict' : 'none found', about.has_no_verdict ? ': not all memory is seen' : '', 0];
  const words = found.map((verdict) => countOf(of(verdict), verdict));
  return ['leaks', words.join(', '), '', of('leak') + of('possible leak') + of('growing')];
}
function setDark(isDark) {
  document.documentElement.classList.toggle('dark', isDark);
  drawTimeline();
  redraw();
}
const isDark = () => document.documentElement.classList.contains('dark');
// Everything again: the whole time, all heaps, no search, no zoom.
function clear() {
  state.search = byId('search').value = '';
  state.heap = -1;
  byId('heap').value = -1;
  flame.zoom = changes.zoom = 0;
  [state.from, state.to] = [0, lastBucket];
  drawTimeline();
  refresh();
}
function onKey(event) {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape') { document.activeElement.blur(); clear(); return; }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = Object.keys(VIEWS), width = state.to - state.from;
  if (/^[0-9]$/.test(event.key) && views[(Number(event.key) + 9) % 10]) show(views[(Number(event.key) + 9) % 10]);
  else if (event.key === '/') { byId('search').focus(); event.preventDefault(); }
  else if (event.key === 'm') { const all = Object.keys(MEASURES); setMeasure(all[(all.indexOf(state.measure) + 1) % all.length]); }
  else if (event.key === 'd') setDark(!isDark());
  else if (event.key === 'ArrowLeft' && state.from > 0) { const by = Math.min(state.from, Math.ceil((width + 1) / 4)); select(state.from - by, state.to - by, true); }
  else if (event.key === 'ArrowRight' && state.to < lastBucket) { const by = Math.min(lastBucket - state.to, Math.ceil((width + 1) / 4)); select(state.from + by, state.to + by, true); }
}

drawHeader();
Object.entries(VIEWS).forEach(([name, [title]], i) => {
  const tab = element('button', title, byId('tabs'));
  Object.assign(tab, { id: `tab-${name}`, type: 'button', title: `key ${(i + 1) % 10}` });
  tab.setAttribute('role', 'tab');
  tab.addEventListener('click', () => show(name));
});
const option = (id, value, text) => { element('option', text, byId(id)).value = value; };
Object.entries(MEASURES).forEach(([name, title]) => option('measure', name, title));
if (tracks.length > 1) {
  option('heap', -1, 'all heaps');
  for (const heap of tracks) option('heap', heap, profile.heaps[heap]);
}
byId('heap-choice').hidden = tracks.length < 2;
byId('heap').addEventListener('change', (event) => setHeap(Number(event.target.value)));
option('verdict', '', 'worth a look');
option('verdict', 'all', 'all');
for (const [verdict, count] of profile.leaks.counts) option('verdict', verdict, `${verdict} (${count})`);
byId('verdict').addEventListener('change', () => refresh());
profile.collections.statistics.forEach((it, at) => option('statistic', at, `${profile.heaps[it.heap]}: ${it.name}`));
byId('statistic').addEventListener('change', () => refresh());
byId('files').addEventListener('change', (event) => { source.file = Number(event.target.value); refresh(); });
CHANGES_BY.forEach((name) => option('change-by', name, name));
for (const [moment, title] of [['peak', 'at the peaks'], ['last', 'at the ends']]) option('ledger-moment', moment, title);
byId('ledger-moment').addEventListener('change', () => refresh());
byId('change-by').addEventListener('change', (event) => { changes.by = event.target.value; changes.rows = ROWS_AT_ONCE; refresh(); });
byId('change-unzoom').addEventListener('click', () => { changes.zoom = 0; refresh(); });
Object.keys(BY).filter((name) => name !== 'heap' || tracks.length > 1).forEach((name) => option('by', name, name === 'kind' ? kindWord : name));
byId('measure').addEventListener('change', (event) => setMeasure(event.target.value));
byId('by').addEventListener('change', (event) => setBy(event.target.value));
byId('more').addEventListener('click', () => { table.rows += 5 * ROWS_AT_ONCE; drawTable(); });
byId('overview-more').addEventListener('click', () => { overview.rows += 50; drawOverview(); });
byId('search').addEventListener('input', (event) => { state.search = event.target.value; refresh(true); });
byId('whole').addEventListener('click', () => select(0, lastBucket));
for (const id of ['icicle', 'sure']) byId(id).addEventListener('change', () => refresh());
// The other way round there are other boxes.
byId('invert').addEventListener('change', () => { flame.zoom = 0; refresh(); });
byId('change-invert').addEventListener('change', () => { changes.zoom = 0; refresh(); });
byId('unzoom').addEventListener('click', () => { flame.zoom = 0; refresh(); });
byId('top').addEventListener('input', () => refresh(true));
byId('up').addEventListener('click', () => drill(null));
byId('dark').addEventListener('click', () => setDark(!isDark()));
document.addEventListener('keydown', onKey);
function followAddress() {
  if (fragment() === link.shown && link.shown === location.hash) return;
  follow();
  drawTimeline();
  redraw();
}
addEventListener('popstate', followAddress);
addEventListener('hashchange', followAddress);
let resizing;
addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(() => { drawTimeline(); redraw(); }, 120); });
// Paper is light, shows every view, and is as wide as it is.
const PAPER = '700px', PRINTED_ROWS = 40;
let wasDark = false;
function beforePrint() {
  wasDark = isDark();
  isPrinting = true;
  document.documentElement.classList.remove('dark');
  document.body.style.width = PAPER;
  byId('facts').open = true;
  table.rows = Math.min(table.rows, PRINTED_ROWS);
  drawTimeline();
  for (const [name, [, draw]] of Object.entries(VIEWS)) { byId(`view-${name}`).hidden = false; draw(); }
}
function afterPrint() {
  isPrinting = false;
  document.body.style.width = '';
  setDark(wasDark);
}
addEventListener('beforeprint', beforePrint);
addEventListener('afterprint', afterPrint);
// A script may drive the page: tests read the totals out of it.
window.allocsample = { heatSums, moduleOfRow: (row) => moduleKey(row.key), drillLargest: () => drill(heatSums().topRows[0][0]), state, select, setMeasure, setHeap, show, profile, search, total, about, charted: () => tracks.map(levelsOf), drill, rows: () => rowsOfTable(), by: setBy,
  overview: () => rowsOfOverview().map((row) => ({ bytes: row.bytes, functions: row.key < 0 ? [] : functionsOfChain(row.key).reverse().map(functionName) })), address: fragment, openLargest: () => { zoomTo(siteOfChain(rowsOfOverview()[0].key)); refresh(); } };
byId('page').hidden = false;
follow();
setDark(matchMedia('(prefers-color-scheme: dark)').matches);
