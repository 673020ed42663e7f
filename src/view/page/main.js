// Puts the parts together: what is drawn when, and the keys.
const VIEWS = { flame: ['Flame graph', drawFlame], table: ['Tables', drawTable], evolution: ['Evolution', drawEvolution],
  heat: ['Heat map', drawHeat], lifetimes: ['Lifetimes', drawLifetimes], leaks: ['Leaks', drawLeaks] };
if (profile.collections.in_all) VIEWS.collections = ['GC', drawCollections];
if (profile.files.length) VIEWS.sources = ['Sources', drawSources];
if (profile.against) VIEWS.changes = ['Changes', drawChanges];
const ALL_VIEWS = ['flame', 'table', 'evolution', 'heat', 'lifetimes', 'leaks', 'collections', 'sources', 'changes'];

function refresh() {
  for (const name of ALL_VIEWS) byId(`view-${name}`).hidden = name !== state.view;
  for (const name of Object.keys(VIEWS)) {
    byId(`tab-${name}`).setAttribute('aria-selected', String(name === state.view));
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
function show(view) { state.view = view; refresh(); }
function setMeasure(measure) { state.measure = measure; byId('measure').value = measure; refresh(); }

function drawHeader() {
  byId('program').textContent = profile.about.program || 'profile';
  if (profile.against) byId('program').textContent += ' compared';
  byId('command').textContent = `${about.command}   pid ${about.pid}   ${new Date(about.start_unix_ms).toLocaleString()}`;
  if (profile.against) {
    const { about: before } = profile.against;
    byId('against').textContent = `with ${before.command}   pid ${before.pid}   ${new Date(before.start_unix_ms).toLocaleString()}`;
  }
  if (profile.sites_in_all > siteNodes.length) {
    byId('folded').textContent = `${formatCount(profile.sites_in_all)} sites: the smallest are shown together, below the callers that most of them share.`;
  }
  const facts = [['allocated', about.allocated_text, '', about.allocated_bytes],
    ['live at the end', about.live_text, '', about.live_bytes],
    ['peak', about.peak_text, ` after ${formatTime(about.peak_s)}`, about.peak_bytes],
    ['allocations', formatCount(about.allocations), '', about.allocations],
    ['duration', formatTime(about.duration_s), about.complete ? '' : ' (incomplete)', about.duration_s],
    ['samples', formatCount(about.samples), ` each ${formatBytes(about.interval_bytes)}; ${formatCount(about.lost_samples)} lost`, about.samples]];
  if (gcs.in_all) {
    const paused = profile.collections.stress.reduce((sum, row) => sum + row.total_s, 0);
    facts.push(['collections', formatCount(gcs.in_all), ` ${formatTime(paused)} in all`, gcs.in_all]);
  }
  if (about.coverage) facts.push(['coverage', formatPart(about.coverage.share), ` of ${formatBytes(about.coverage.anonymous_bytes)} anonymous memory`, about.coverage.share]);
  for (const warning of about.unseen) element('p', warning, byId('unseen'));
  facts.push(leakFact());
  for (const [name, value, detail, exact] of facts) {
    const box = element('div', undefined, byId('totals'));
    box.dataset.name = name;
    box.dataset.value = exact;
    element('dt', name, box);
    element('small', detail, element('dd', value, box));
  }
}
// Counts every verdict that the cards show: the header must not say "none found" above a card that grows.
function leakFact() {
  const counts = Object.fromEntries(profile.leaks.counts), of = (verdict) => counts[verdict] ?? 0;
  const found = ['leak', 'possible leak', 'growing', 'undecided'].filter((verdict) => of(verdict));
  if (!found.length) return ['leaks', '0', about.has_no_verdict ? ' no verdict: not all memory is seen' : ' none found', 0];
  const words = found.map((verdict) => `${formatCount(of(verdict))} ${verdict}`);
  return ['leaks', formatCount(of('leak') + of('possible leak')), ` ${words.join(', ')}: see the cards`, of('leak') + of('possible leak') + of('growing')];
}
function setDark(isDark) {
  document.documentElement.classList.toggle('dark', isDark);
  drawTimeline();
  refresh();
}
function onKey(event) {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape') { document.activeElement.blur(); search(''); if (state.heap >= 0) setHeap(-1); select(0, lastBucket); return; }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = Object.keys(VIEWS), width = state.to - state.from;
  if (event.key >= '1' && event.key <= String(views.length)) show(views[event.key - 1]);
  else if (event.key === '/') { byId('search').focus(); event.preventDefault(); }
  else if (event.key === 'm') { const all = Object.keys(MEASURES); setMeasure(all[(all.indexOf(state.measure) + 1) % all.length]); }
  else if (event.key === 'd') setDark(!document.documentElement.classList.contains('dark'));
  else if (event.key === 'ArrowLeft' && state.from > 0) { const by = Math.min(state.from, Math.ceil((width + 1) / 4)); select(state.from - by, state.to - by); }
  else if (event.key === 'ArrowRight' && state.to < lastBucket) { const by = Math.min(lastBucket - state.to, Math.ceil((width + 1) / 4)); select(state.from + by, state.to + by); }
}

drawHeader();
Object.entries(VIEWS).forEach(([name, [title]], i) => {
  const tab = element('button', title, byId('tabs'));
  Object.assign(tab, { id: `tab-${name}`, type: 'button', title: `key ${i + 1}` });
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
byId('verdict').addEventListener('change', drawLeaks);
profile.collections.statistics.forEach((it, at) => option('statistic', at, `${profile.heaps[it.heap]}: ${it.name}`));
byId('statistic').addEventListener('change', drawStatistics);
byId('files').addEventListener('change', (event) => { source.file = Number(event.target.value); drawSources(); });
['function', 'site', 'line', 'type', 'module'].forEach((name) => option('change-by', name, name));
byId('change-by').addEventListener('change', (event) => { changes.by = event.target.value; changes.rows = ROWS_AT_ONCE; drawChanges(); });
byId('sure').addEventListener('change', drawChanges);
byId('change-invert').addEventListener('change', drawChangeFlame);
byId('change-unzoom').addEventListener('click', () => changes.flame?.resetZoom());
Object.keys(BY).filter((name) => name !== 'heap' || tracks.length > 1).forEach((name) => option('by', name, name === 'kind' ? kindWord : name));
byId('measure').addEventListener('change', (event) => setMeasure(event.target.value));
byId('by').addEventListener('change', (event) => { table.by = event.target.value; table.rows = ROWS_AT_ONCE; drawTable(); });
byId('more').addEventListener('click', () => { table.rows += 5 * ROWS_AT_ONCE; drawTable(); });
byId('search').addEventListener('input', (event) => { state.search = event.target.value; refresh(); });
byId('whole').addEventListener('click', () => select(0, lastBucket));
byId('icicle').addEventListener('change', drawFlame);
byId('invert').addEventListener('change', drawFlame);
byId('unzoom').addEventListener('click', () => flame?.resetZoom());
byId('top').addEventListener('input', drawEvolution);
byId('up').addEventListener('click', () => drill(null));
document.addEventListener('keydown', onKey);
let resizing;
addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(() => { [timeline, evolution, heat.chart, lifetimes, survival, ...Object.values(pauses)].forEach((chart) => chart?.resize()); refresh(); }, 120); });
addEventListener('beforeprint', () => { document.documentElement.classList.remove('dark'); for (const [name, [, draw]] of Object.entries(VIEWS)) { byId(`view-${name}`).hidden = false; draw(); } });
addEventListener('afterprint', refresh);
// A script may drive the page: tests read the totals out of it.
window.allocsample = { heatSums, moduleOfRow: (row) => moduleKey(row.key), drillLargest: () => drill(heatSums().topRows[0][0]), state, select, setMeasure, setHeap, show, profile, search, total, about, charted: () => tracks.map(levelsOf), drill, rows: () => rowsOfTable(), by: (name) => { table.by = name; drawTable(); } };
if (profile.against) state.view = 'changes';
setDark(matchMedia('(prefers-color-scheme: dark)').matches);
