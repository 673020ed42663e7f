// Whose the resident memory is, over time and by row.
const ledgerView = {};
function drawLedger() {
  const { times, resident, rows } = profile.ledger, last = times.length - 1;
  const peak = resident.indexOf(Math.max(...resident));
  ledgerView.chart ??= charts.echarts.init(byId('ledger-chart'));
  ledgerView.chart.resize();
  const { time, bytes } = axes(), end = profile.buckets * profile.bucket_s;
  // Small rows would be lines on top of each other: they are one area.
  const isLarge = (row) => Math.max(...row.bytes) >= resident[peak] / 100;
  const large = rows.filter(isLarge), small = rows.filter((row) => !isLarge(row));
  const areas = [...large.map((row) => [row.name, row.bytes])];
  if (small.length) areas.push([plural(small.length, 'small row'), times.map((_, at) => small.reduce((sum, row) => sum + row.bytes[at], 0))]);
  const held = (levels) => { const points = times.map((seconds, at) => [seconds, levels[at]]); return times[last] < end ? [...points, [end, levels[last]]] : points; };
  const series = areas.map(([name, levels], at) => ({ type: 'line', step: 'end', showSymbol: false, stack: 'all', name, color: COLOURS[at % COLOURS.length],
    areaStyle: { opacity: 0.4 }, lineStyle: { width: 0.5 }, data: held(levels) }));
  const earlier = profile.against?.resident ?? [];
  if (earlier.length) series.push({ type: 'line', step: 'end', showSymbol: false, z: 3, name: 'resident before', color: themed('--dim'), lineStyle: { type: 'dotted', width: 1.5 }, data: earlier });
  const most = Math.max(resident[peak], ...earlier.map(([, level]) => level));
  series.push({ type: 'line', step: 'end', showSymbol: false, z: 3, name: 'resident', color: themed('--text'), lineStyle: { type: 'dashed', width: 1.5 }, data: held(resident) });
  ledgerView.chart.setOption({ animation: false, aria: { enabled: true }, grid: { ...edges(), top: 12, bottom: 26 }, xAxis: time, yAxis: { ...bytes, ...byteAxis(most, 5) },
    tooltip: { ...tooltip(), valueFormatter: formatBytes }, series }, true);
  drawLedgerChanges();
  const table = byId('ledger-table');
  table.replaceChildren();
  const head = element('tr', undefined, element('thead', undefined, table));
  for (const name of ['memory of', `at the peak, after ${formatTime(times[peak])}`, `last, after ${formatTime(times[last])}`, 'change']) element('th', name, head);
  const body = element('tbody', undefined, table);
  const line = (name, of, index) => {
    const row = element('tr', undefined, body), cell = element('td', undefined, row);
    if (index !== undefined && index >= 0) { const mark = element('i', undefined, cell); mark.className = 'swatch'; mark.style.background = COLOURS[index % COLOURS.length]; }
    element('span', name, cell);
    for (const text of [formatBytes(of[peak]), formatBytes(of[last]), of[last] === of[peak] ? '' : formatChange(of[last] - of[peak])]) element('td', text, row);
    return row;
  };
  for (const row of rows) {
    const shown = line(row.name, row.bytes, large.indexOf(row));
    Object.assign(shown.dataset, { account: row.account, bytes: row.bytes[last] });
    if (row.account === 'agent' || !row.sites.length) continue;
    for (const site of row.sites) {
      const place = element('tr', undefined, body), cell = element('td', undefined, place);
      place.className = 'site';
      place.hidden = !isPrinting && ledgerView.open !== row.name;
      cell.title = site.stack.join('\n');
      element('span', `${plural(site.calls, 'call')}: ${site.stack.slice(0, 4).map((name) => shorten(name, 40)).join(' ← ') || '(no stack)'}`, cell);
      element('td', '', place);
      element('td', formatBytes(site.bytes), place);
      element('td', '', place);
    }
    shown.tabIndex = 0;
    shown.className = 'open';
    shown.title = 'shows the calls';
    const toggle = () => { ledgerView.open = ledgerView.open === row.name ? undefined : row.name; drawLedger(); };
    shown.addEventListener('click', toggle);
    shown.addEventListener('keydown', (event) => { if (event.key === 'Enter') toggle(); });
  }
  line('resident', resident);
}
// The rows of both profiles, largest differences first.
function drawLedgerChanges() {
  const memory = profile.against?.memory[byId('ledger-moment').value || 'peak'];
  byId('ledger-compared').hidden = !memory;
  if (!memory) return;
  const reason = memory.not_compared;
  byId('ledger-warning').textContent = (reason && `Not compared: ${reason}.`) ?? memory.warning ?? '';
  byId('ledger-changes').replaceChildren();
  byId('ledger-total').textContent = '';
  if (reason) return;
  const { before, after, difference } = memory.resident_bytes;
  byId('ledger-total').textContent = `resident: ${formatBytes(before)} before, ${formatBytes(after)} now (${formatChange(difference)})`;
  byId('ledger-total').dataset.difference = difference;
  const body = startTable('ledger-changes', ['memory of', 'difference', 'before', 'now', '', '± of it', 'p', 'verdict']);
  const most = Math.max(1, ...memory.rows.map((row) => Math.abs(row.difference)));
  const verdicts = { more: '▲ more', less: '▼ less', noise: 'noise', small: 'below 1 %' };
  for (const row of memory.rows) {
    const line = element('tr', undefined, body);
    Object.assign(line.dataset, { account: row.account, difference: row.difference, verdict: row.verdict });
    element('td', row.name, line);
    element('td', row.difference ? formatChange(row.difference) : '', line);
    element('td', formatBytes(row.before), line);
    element('td', formatBytes(row.after), line);
    drawBar(element('td', undefined, line), row.difference, most);
    const isSampled = row.before_stderr !== null || row.after_stderr !== null;
    element('td', isSampled ? formatBytes(Math.hypot(row.before_stderr ?? 0, row.after_stderr ?? 0)) : '', line);
    element('td', row.p_value === null ? '' : formatP(row.p_value), line);
    element('td', row.difference ? verdicts[row.verdict] : '', line);
  }
}
