// What changed since an earlier profile. Tables are those of `diff`; widths are of both profiles together.
const GREW = '#d55e00', SHRANK = '#0072b2', SAME = '#aab2bf';
const CHANGES_BY = ['function', 'site', 'line', 'type', 'module'];
const changes = { by: 'function', rows: ROWS_AT_ONCE, zoom: 0 };
const mix = (colour, part) => {
  const at = (text, i) => parseInt(text.slice(i, i + 2), 16);
  return `rgb(${[1, 3, 5].map((i) => Math.round(at('#e3e6eb', i) + (at(colour, i) - at('#e3e6eb', i)) * part)).join(',')})`;
};
// -1: only before, 1: only now.
const shift = (before, after) => (before + after > 0 ? (after - before) / (after + before) : 0);

const comparedMeasure = () => (state.measure === 'live' || state.measure === 'retained' ? 'live' : 'allocated');
function tableOfChanges() {
  return profile.against.tables.find((it) => it.measured === comparedMeasure() && it.by === changes.by);
}
// Bytes of both by site, before and now, in the measure that both have.
function changeColumns() {
  const { sites, scale } = profile.against, wanted = matchingSites();
  const measured = comparedMeasure();
  const isWanted = (site) => !wanted || wanted[site];
  const before = Float64Array.from(column(sites[measured]), (bytes, site) => (isWanted(site) ? bytes * scale : 0)), after = new Float64Array(before.length);
  for (let i = 0; i < cellCount; i++) {
    if (isWanted(cells.site[i])) after[cells.site[i]] += measured === 'live' && cells.died[i] !== LIVE ? 0 : cells.bytes[i];
  }
  return [before, after];
}
function drawBar(place, difference, most) {
  const bar = element('span', undefined, place);
  bar.className = 'bar';
  bar.style.cssText = `width:${Math.round(90 * Math.abs(difference) / most)}px;background:${difference < 0 ? SHRANK : GREW}`;
}
function drawChanges() {
  const { against } = profile, data = tableOfChanges(), unit = against.per;
  const total = data.total, now = (value) => formatBytes(value) + unit;
  byId('change-total').textContent = `${data.measured}: ${now(total.before)} before, ${now(total.after)} now (${total.difference < 0 ? '' : '+'}${now(total.difference)}); ` +
    `${formatCount(data.significant_in_all)} of ${formatCount(data.rows_in_all)} rows changed by more than noise`;
  byId('change-total').dataset.difference = total.difference;
  drawChangeFlame();
  const isFound = searched(), onlySure = byId('sure').checked;
  const rows = data.rows.filter((row) => (!onlySure || row.significant) && (!isFound || [row.name, row.module, ...row.stack].some((text) => text && isFound(text))));
  const body = startTable('change-table', [changes.by, `before${unit}`, `now${unit}`, 'difference', '', '± of it', 'p', 'verdict']);
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.difference)));
  for (const row of rows.slice(0, changes.rows)) {
    const line = element('tr', undefined, body);
    line.dataset.difference = row.difference;
    line.dataset.significant = row.significant;
    const name = element('td', changes.by === 'line' && row.line ? `${shortPath(row.file ?? row.name)}:${row.line}` : shorten(row.name, 90), line);
    name.title = [row.name, row.file ?? row.module, ...row.stack].join('\n');
    if (row.stack.length > 1) element('small', `  ${row.stack.slice(1, 6).join(' ← ')}`, name); else if (row.module) element('small', `  ${row.module}`, name);
    element('td', formatBytes(row.before), line);
    element('td', formatBytes(row.after), line);
    element('td', formatChange(row.difference), line);
    drawBar(element('td', undefined, line), row.difference, most);
    const error = row.before_stderr === null || row.after_stderr === null ? null : Math.hypot(row.before_stderr, row.after_stderr);
    element('td', error === null ? '' : formatBytes(error), line);
    element('td', row.adjusted_p_value === null ? '' : formatP(row.adjusted_p_value), line);
    element('td', row.adjusted_p_value === null ? 'not known' : row.significant ? (row.difference < 0 ? '▼ less' : '▲ more') : 'noise', line);
  }
  byId('change-count').textContent = `${formatCount(rows.length)} rows${rows.length > changes.rows ? `, ${changes.rows} shown` : ''}`;
}
function drawChangeFlame() {
  const place = byId('change-flame'), isInverted = byId('change-invert').checked, root = chainTree(changeColumns(), isInverted);
  byId('change-unzoom').hidden = true;
  byId('change-frame').textContent = '';
  if (root.value <= 0) { place.style.height = ''; place.replaceChildren(element('p', 'Nothing of this kind in either profile.')); return; }
  const unit = profile.against.per, per = profile.against.per_after || 1, zoomed = boxOfHash(root, changes.zoom);
  if (zoomed === root) changes.zoom = 0;
  const describe = ({ name, parts: [before, after] }) => `${name}: ${formatBytes(before / per)}${unit} before, ${formatBytes(after / per)}${unit} now (${formatChange((after - before) / per)}${unit})`;
  drawBoxes(place, { zoomed, isUpward: false, describe,
    colourOf: ({ parts }) => { const by = shift(...parts); return mix(by < 0 ? SHRANK : GREW, Math.min(1, Math.abs(by) * 1.2)); },
    onZoom: (box) => { changes.zoom = box === zoomed || !box.parent ? 0 : hashOfBox(box); refresh(); },
    onHover: (box) => { byId('change-frame').textContent = describe(box); } });
  byId('change-frame').textContent = describe(zoomed);
  byId('change-unzoom').hidden = zoomed === root;
}
