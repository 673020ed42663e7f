// Cards of what the analysis of leaks found, worst first; the curves are the live bytes of their sites.
const VERDICTS = { leak: COLOURS[5], 'possible leak': COLOURS[5], growing: COLOURS[1], undecided: COLOURS[6], 'cache-like': COLOURS[4], 'start-up': COLOURS[8], steady: COLOURS[2] };
const curves = [];
// What the cards were drawn for: the selected time changes nothing in them, and a chart in each takes its time.
let cardsOf = '';

function drawLeaks() {
  const place = byId('cards'), wanted = byId('verdict').value, sites = matchingSites();
  const wish = [wanted, state.heap, state.search, document.documentElement.className, place.clientWidth, document.body.style.width].join(' ');
  if (wish === cardsOf) return;
  cardsOf = wish;
  for (const chart of curves.splice(0)) chart.dispose();
  place.replaceChildren();
  const { suspects, counts } = profile.leaks;
  byId('verdicts').textContent = counts.map(([verdict, count]) => countOf(count, verdict)).join(', ');
  const most = Math.max(0, ...suspects.map((suspect) => suspect.live_bytes));
  const isWorthALook = ({ verdict, material, live_bytes: bytes }) => ['leak', 'possible leak', 'growing'].includes(verdict) || (verdict === 'undecided' && material) || bytes >= most / 50;
  const isWanted = (suspect) => (wanted === 'all' || (wanted ? suspect.verdict === wanted : isWorthALook(suspect)));
  const shown = suspects.filter((suspect) => isWanted(suspect) && (!sites || suspect.sites.some((site) => sites[site])));
  if (!shown.length) element('p', suspects.length ? 'No site has this verdict.' : 'No site held memory at the end.', place);
  for (const suspect of shown) drawCard(suspect, place);
}
function drawCard(suspect, place) {
  const card = element('article', undefined, place), colour = VERDICTS[suspect.verdict] ?? COLOURS[8];
  card.className = 'card';
  card.dataset.verdict = suspect.verdict;
  card.dataset.live = suspect.live_bytes;
  card.style.borderLeftColor = colour;
  const head = element('h3', undefined, card), badge = element('span', suspect.verdict, head);
  badge.className = 'badge';
  badge.style.background = colour;
  head.append(shorten(suspect.function, 120));
  head.title = suspect.function;
  if (suspect.type) element('small', `  ${suspect.type}`, head);
  const where = suspect.line ? `${shortPath(suspect.file ?? '')}:${suspect.line}` : suspect.module;
  element('p', [where, suspect.package, suspect.heap].filter(Boolean).join(', '), card).className = 'hint';
  element('p', suspect.sentence, card).className = 'sentence';
  const error = suspect.live_bytes_stderr === null ? '' : ` ± ${formatBytes(suspect.live_bytes_stderr)}`;
  const facts = [...calledFrom(suspect), ['live', `${formatBytes(suspect.live_bytes)}${error}, ${formatCount(suspect.live_samples)} samples`]];
  if (suspect.verdict !== 'start-up' && (suspect.present_bytes_per_s !== 0 || suspect.growth_bytes_per_s !== 0)) {
    const p = suspect.growth_p_value === null ? 'not tested' : `p ${formatP(suspect.growth_p_value)}`;
    facts.push(['growth', `${formatRate(suspect.present_bytes_per_s)} now (95 %: ${formatBytes(60 * suspect.present_bytes_per_s_low)} to ${formatBytes(60 * suspect.present_bytes_per_s_high)}), ${formatRate(suspect.growth_bytes_per_s)} on average, ${p}`]);
  }
  if (suspect.onset_s !== null) facts.push(['began', `${formatTime(suspect.onset_s)} after the start`]);
  if (suspect.group !== null) {
    const others = profile.leaks.suspects.filter((it) => it.group === suspect.group && it !== suspect);
    facts.push(['together with', others.map((it) => it.function).slice(0, 4).join(', ')]);
  }
  facts.push(['never freed', `${formatPart(suspect.never_freed_share)} of ${formatBytes(suspect.allocated_bytes)}`],
    ['age', `half older than ${formatTime(suspect.age_p50_s)}, oldest ${formatTime(suspect.oldest_s)}`]);
  if (suspect.freed_by.length) facts.push(['freed by', suspect.freed_by.slice(0, 2).map((it) => `${it.thread} (${formatPart(it.share)})`).join(', ')]);
  if (suspect.freed_in.length) facts.push(['freed in', suspect.freed_in.slice(0, 2).map((it) => `${it.functions.join(' < ')} (${formatPart(it.share)})`).join(', ')]);
  const list = element('dl', undefined, card);
  for (const [name, value] of facts) { element('dt', name, list); element('dd', value, list); }
  if (suspect.sites.length) drawCurve(suspect, colour, element('div', undefined, card));
  const frames = element('ol', undefined, element('details', undefined, card));
  frames.before(element('summary', `${suspect.stack.length} frames`));
  for (const name of suspect.stack.slice(0, 60)) element('li', name, frames);
  const button = element('button', 'show in the flame graph', card);
  button.type = 'button';
  // Blocks that the program freed when it ended are not live at the end, so the view of live bytes would be empty.
  button.addEventListener('click', () => {
    state.measure = byId('measure').value = suspect.live_bytes_at_end > 0 ? 'live' : 'allocated';
    if (suspect.sites.length) zoomTo(suspect.sites[0]); else state.search = byId('search').value = suspect.function;
    show('flame');
  });
}
// `2 possible leaks`, `2 growing`.
const countOf = (count, verdict) => (verdict.endsWith('leak') ? plural(count, verdict) : `${formatCount(count)} ${verdict}`);
// The code of the user that calls a package's, with its line.
function calledFrom({ own, function: name, line }) {
  if (!own || (own.function === name && own.line === line)) return [];
  return [['called by', `${shorten(own.function, 80)} ${own.line ? `${shortPath(own.file ?? '')}:${own.line}` : own.module}`]];
}
const formatP = (p) => (p === null || p === undefined ? '?' : p < 1e-4 ? p.toExponential(0) : p.toPrecision(2));
function drawCurve(suspect, colour, place) {
  place.className = 'curve';
  const sites = new Set(suspect.sites), chart = charts.echarts.init(place);
  curves.push(chart);
  const hidden = { show: false };
  chart.setOption({ animation: false, grid: { left: 2, right: 2, top: 4, bottom: 2 }, xAxis: { type: 'value', ...hidden, max: profile.buckets * profile.bucket_s }, yAxis: { type: 'value', ...hidden },
    tooltip: { ...tooltip(), valueFormatter: formatBytes },
    series: [{ type: 'line', name: 'live', showSymbol: false, color: colour, areaStyle: { opacity: 0.25 }, lineStyle: { width: 1.5 }, data: [[0, 0], ...liveOverTime((i) => sites.has(cells.site[i]))] }] });
}
