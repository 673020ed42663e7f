// Puts the parts together: what is drawn when, and the keys.
const VIEWS = { flame: ['Flame graph', drawFlame], table: ['Tables', drawTable], evolution: ['Evolution', drawEvolution],
  heat: ['Heat map', drawHeat], lifetimes: ['Lifetimes', drawLifetimes], alive: ['Still alive', drawCards] };

function refresh() {
  for (const name of Object.keys(VIEWS)) {
    byId(`view-${name}`).hidden = name !== state.view;
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
function show(view) { state.view = view; refresh(); }
function setMeasure(measure) { state.measure = measure; byId('measure').value = measure; refresh(); }

function drawHeader() {
  byId('program').textContent = profile.about.program || 'profile';
  byId('command').textContent = `${about.command}   pid ${about.pid}   ${new Date(about.start_unix_ms).toLocaleString()}`;
  const error = (value) => (value === null || value === undefined ? '' : ` ± ${formatBytes(value)}`);
  const facts = [['allocated', formatBytes(about.allocated_bytes), error(about.allocated_stderr), about.allocated_bytes],
    ['live at the end', formatBytes(about.live_bytes), error(about.live_stderr), about.live_bytes],
    ['peak', formatBytes(about.peak_bytes), ` after ${formatTime(about.peak_s)}`, about.peak_bytes],
    ['allocations', formatCount(about.allocations), '', about.allocations],
    ['duration', formatTime(about.duration_s), about.complete ? '' : ' (incomplete)', about.duration_s],
    ['samples', formatCount(about.samples), ` each ${formatBytes(about.interval_bytes)}; ${formatCount(about.lost_samples)} lost`, about.samples]];
  if (profile.collections_in_all) facts.push(['collections', formatCount(profile.collections_in_all), '', profile.collections_in_all]);
  for (const [name, value, detail, exact] of facts) {
    const box = element('div', undefined, byId('totals'));
    box.dataset.name = name;
    box.dataset.value = exact;
    element('dt', name, box);
    element('small', detail, element('dd', value, box));
  }
}
function setDark(isDark) {
  document.documentElement.classList.toggle('dark', isDark);
  drawTimeline();
  refresh();
}
function onKey(event) {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape') { document.activeElement.blur(); search(''); select(0, lastBucket); return; }
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
Object.keys(BY).forEach((name) => option('by', name, name === 'kind' ? kindWord : name));
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
addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(() => { [timeline, evolution, heat.chart, lifetimes, survival].forEach((chart) => chart?.resize()); refresh(); }, 120); });
addEventListener('beforeprint', () => { document.documentElement.classList.remove('dark'); for (const [name, [, draw]] of Object.entries(VIEWS)) { byId(`view-${name}`).hidden = false; draw(); } });
addEventListener('afterprint', refresh);
// A script may drive the page: tests read the totals out of it.
window.allocsample = { drillLargest: () => drill(heatSums().topRows[0][0]), state, select, setMeasure, show, search, total, about, drill, rows: () => rowsOfTable(), by: (name) => { table.by = name; drawTable(); } };
setDark(matchMedia('(prefers-color-scheme: dark)').matches);
