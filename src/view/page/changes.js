// What changed since an earlier profile. Tables are those of `diff`; widths are of both profiles together.
const GREW = '#d55e00', SHRANK = '#0072b2', SAME = '#aab2bf';
const changes = { by: 'function', rows: ROWS_AT_ONCE, flame: null };
const mix = (colour, part) => {
  const at = (text, i) => parseInt(text.slice(i, i + 2), 16);
  return `rgb(${[1, 3, 5].map((i) => Math.round(at('#e3e6eb', i) + (at(colour, i) - at('#e3e6eb', i)) * part)).join(',')})`;
};
// -1: only before, 1: only now.
const shift = (before, after) => (before + after > 0 ? (after - before) / (after + before) : 0);

function tableOfChanges() {
  const measured = state.measure === 'live' || state.measure === 'retained' ? 'live' : 'allocated';
  return profile.against.tables.find((it) => it.measured === measured && it.by === changes.by);
}
function changeTree() {
  const { sites, scale } = profile.against, root = { name: 'all', before: 0, after: 0, children: [], byFunction: new Map() };
  const measured = state.measure === 'peak' ? 'peak' : state.measure === 'live' || state.measure === 'retained' ? 'live' : 'allocated';
  const before = column(sites[measured]), after = new Float64Array(before.length), wanted = matchingSites();
  for (let i = 0; i < cellCount; i++) {
    after[cells.site[i]] += measured === 'peak' ? cells.at_peak[i] : measured === 'live' && cells.died[i] !== LIVE ? 0 : cells.bytes[i];
  }
  for (let site = 0; site < before.length; site++) {
    if ((wanted && !wanted[site]) || before[site] + after[site] === 0) continue;
    const path = byId('change-invert').checked ? framesOf(site) : framesOf(site).reverse();
    let node = root;
    for (const f of [null, ...path]) {
      if (f !== null) {
        let child = node.byFunction.get(f);
        if (!child) {
          child = { name: functionName(f), module: moduleOf(f), before: 0, after: 0, children: [], byFunction: new Map() };
          node.byFunction.set(f, child);
          node.children.push(child);
        }
        node = child;
      }
      node.before += before[site] * scale;
      node.after += after[site];
    }
  }
  const least = (root.before + root.after) / 2000;
  const finish = (node) => {
    node.value = node.before + node.after;
    node.children = node.children.filter((child) => child.before + child.after >= least);
    node.children.forEach(finish);
    delete node.byFunction;
  };
  finish(root);
  return root;
}
function drawChanges() {
  const { against } = profile, data = tableOfChanges(), unit = against.per;
  const total = data.total, now = (value) => formatBytes(value) + unit;
  byId('change-total').textContent = `${data.measured}: ${now(total.before)} before, ${now(total.after)} now (${total.difference < 0 ? '' : '+'}${now(total.difference)}); ` +
    `${formatCount(data.significant_in_all)} of ${formatCount(data.rows_in_all)} rows changed by more than noise`;
  byId('change-total').dataset.difference = total.difference;
  drawChangeFlame();
  const wanted = state.search.toLowerCase(), onlySure = byId('sure').checked;
  const rows = data.rows.filter((row) => (!onlySure || row.significant) && (!wanted || [row.name, row.module, ...row.stack].some((text) => text?.toLowerCase().includes(wanted))));
  const body = startTable('change-table', [changes.by, `before${unit}`, `now${unit}`, 'difference', '', '± of it', 'p', 'verdict']);
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.difference)));
  for (const row of rows.slice(0, changes.rows)) {
    const line = element('tr', undefined, body);
    line.dataset.difference = row.difference;
    line.dataset.significant = row.significant;
    const name = element('td', row.line ? `${row.name}:${row.line}` : row.name, line);
    name.title = [row.name, row.file ?? row.module, ...row.stack].join('\n');
    if (row.stack.length > 1) element('small', `  ${row.stack.slice(1, 6).join(' ← ')}`, name); else if (row.module) element('small', `  ${row.module}`, name);
    element('td', formatBytes(row.before), line);
    element('td', formatBytes(row.after), line);
    element('td', `${row.difference < 0 ? '' : '+'}${formatBytes(row.difference)}`, line);
    const bar = element('span', undefined, element('td', undefined, line));
    bar.className = 'bar';
    bar.style.cssText = `width:${Math.round(90 * Math.abs(row.difference) / most)}px;background:${row.difference < 0 ? SHRANK : GREW}`;
    const error = row.before_stderr === null || row.after_stderr === null ? null : Math.hypot(row.before_stderr, row.after_stderr);
    element('td', error === null ? '' : formatBytes(error), line);
    element('td', row.adjusted_p_value === null ? '' : formatP(row.adjusted_p_value), line);
    element('td', row.adjusted_p_value === null ? 'not known' : row.significant ? (row.difference < 0 ? '▼ less' : '▲ more') : 'noise', line);
  }
  byId('change-count').textContent = `${formatCount(rows.length)} rows${rows.length > changes.rows ? `, ${changes.rows} shown` : ''}`;
}
function drawChangeFlame() {
  const place = byId('change-flame'), tree = changeTree();
  place.replaceChildren();
  if (tree.value <= 0) { element('p', 'Nothing of this kind in either profile.', place); return; }
  const unit = profile.against.per, per = profile.against.per_after || 1;
  const text = (d) => `${formatBytes(d.data.before / per)}${unit} before, ${formatBytes(d.data.after / per)}${unit} now`;
  changes.flame = charts.flamegraph().width(place.clientWidth).cellHeight(19).minFrameSize(1).transitionDuration(150).inverted(true)
    .sort((a, b) => b.value - a.value || (a.data.name < b.data.name ? -1 : 1))
    .setColorMapper((d) => { const by = shift(d.data.before, d.data.after); return d.highlight ? '#e8388a' : mix(by < 0 ? SHRANK : GREW, Math.min(1, Math.abs(by) * 1.2)); })
    .setLabelHandler((d) => `${d.data.name}\n${text(d)}`)
    .setDetailsHandler((it) => { byId('change-frame').textContent = it ?? ''; })
    .onHover((d) => { byId('change-frame').textContent = `${shorten(d.data.name, 80)}: ${text(d)}`; });
  charts.select(place).datum(tree).call(changes.flame);
}
