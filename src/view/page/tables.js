// Tables of what is shown; a click on a heading sorts, a double click on a row searches for it.
const ROWS_AT_ONCE = 100;
const table = { by: 'function', sort: 'bytes', down: true, rows: ROWS_AT_ONCE };
const kindWord = !kindIsType.includes(1) ? 'size class' : kindIsType.includes(0) ? 'type or size' : 'type';
const placeName = (place) => (place === NONE ? '(no line)' : `${baseName(profile.files[placeFiles[place]])}:${placeLines[place]}`);
const baseName = (path) => path.slice(path.lastIndexOf('/') + 1);
// The first stack of a site stands for the others, which differ from it in lines, in what the charged function called, or in
// their heaps.
const sitesOfChains = new Map();
function siteOfChain(chain) {
  if (!sitesOfChains.size) siteKeys.forEach((it, site) => { if (!sitesOfChains.has(it)) sitesOfChains.set(it, site); });
  return sitesOfChains.get(chain);
}
const placeOfSite = (site) => (siteCharged[site] === NONE ? NONE : nodePlaces[siteCharged[site]]);
const BY = {
  function: { key: (i) => siteFunctions[cells.site[i]], name: functionName, detail: moduleOf },
  site: { key: (i) => siteKeys[cells.site[i]], name: (chain) => functionName(siteFunctions[siteOfChain(chain)]),
    detail: (chain) => functionsOfChain(chain).reverse().slice(1, 7).map((f) => `← ${functionName(f)}`).join(' ') },
  line: { key: (i) => placeOfSite(cells.site[i]), name: placeName, detail: (place) => (place === NONE ? '' : profile.files[placeFiles[place]]) },
  module: { key: (i) => moduleKey(siteFunctions[cells.site[i]]), name: (m) => (m === NONE ? '[no module]' : moduleName(m)), detail: () => '' },
  kind: { key: (i) => cells.kind[i], name: (kind) => profile.kinds[kind], detail: () => '' },
  heap: { key: (i) => siteHeaps[cells.site[i]], name: (heap) => profile.heaps[heap], detail: () => '' },
  thread: { key: (i) => cells.thread[i], name: (thread) => profile.threads[thread] ?? '?', detail: () => '' },
};
const moduleKey = (f) => (f === NONE ? NONE : functionModules[f]);

// Bytes of functions with all that they called: each function once for each site.
function inclusive() {
  const sums = new Map();
  for (const { key: site, bytes } of sumBy((i) => cells.site[i]).values()) {
    for (const f of new Set(framesOfCached(site))) sums.set(f, (sums.get(f) ?? 0) + bytes);
  }
  return sums;
}
function rowsOfTable() {
  const by = BY[table.by];
  const sums = sumBy(by.key);
  const withCalls = table.by === 'function' ? inclusive() : null;
  if (withCalls) {
    for (const f of withCalls.keys()) if (!sums.has(f)) sums.set(f, { key: f, bytes: 0, variance: 0, objects: 0, samples: 0 });
  }
  const rows = [...sums.values()].map((row) => ({ ...row, name: by.name(row.key), detail: by.detail(row.key),
    stderr: Math.hypot(Math.sqrt(row.variance), about.bytes_allowance), inclusive: withCalls?.get(row.key) ?? row.bytes }));
  const sign = table.down ? -1 : 1;
  rows.sort((a, b) => (table.sort === 'name' ? sign * -a.name.localeCompare(b.name) : sign * (a[table.sort] - b[table.sort])) || b.inclusive - a.inclusive);
  return rows;
}
const COLUMNS = ['name', 'bytes', 'stderr', 'part', 'inclusive', 'objects', 'samples'];
function drawTable() {
  const all = total(), rows = rowsOfTable(), place = byId('table');
  const columns = [['name', table.by === 'kind' ? kindWord : table.by], ['bytes', table.by === 'function' ? 'self' : 'bytes'], ['stderr', '±'],
    ['part', 'share'], ...(table.by === 'function' ? [['inclusive', 'total']] : []), ['objects', isHeld() ? 'blocks' : 'allocations'], ['samples', 'samples']];
  place.replaceChildren();
  const head = element('tr', undefined, element('thead', undefined, place));
  for (const [key, title] of columns) {
    const sorted = table.sort === key;
    const cell = element('th', title + (sorted ? (table.down ? ' ▾' : ' ▴') : ''), head);
    cell.className = `of-${key}`;
    cell.tabIndex = 0;
    cell.setAttribute('aria-sort', sorted ? (table.down ? 'descending' : 'ascending') : 'none');
    const sort = () => { if (key === 'part') return; table.down = table.sort === key ? !table.down : true; table.sort = key; refresh(); };
    cell.addEventListener('click', sort);
    cell.addEventListener('keydown', (event) => { if (event.key === 'Enter') sort(); });
  }
  const body = element('tbody', undefined, place);
  const sum = element('tr', undefined, body);
  sum.className = 'total';
  for (const [key] of columns) element('td', figure(key, { ...all, name: 'all', stderr: Math.hypot(Math.sqrt(all.variance), about.bytes_allowance), inclusive: all.bytes }, all), sum).className = `of-${key}`;
  for (const row of rows.slice(0, table.rows)) {
    const line = element('tr', undefined, body);
    for (const [key] of columns) {
      const cell = element('td', figure(key, row, all), line);
      cell.className = `of-${key}`;
      if (key === 'name') { cell.title = `${row.name}\n${row.detail}`; cell.textContent = shorten(row.name, 90); if (row.detail) element('small', `  ${row.detail}`, cell); }
      if (key === 'part' && all.bytes) element('span', undefined, cell).style.cssText = `width:${Math.round(60 * row.bytes / all.bytes)}px`;
      if (key === 'part') cell.lastElementChild?.classList.add('bar');
    }
    if (table.by === 'function' || table.by === 'module') line.addEventListener('dblclick', () => search(row.name));
  }
  byId('row-count').textContent = `${plural(rows.length, 'row')}${rows.length > table.rows ? `, ${formatCount(table.rows)} shown` : ''}`;
  byId('more').hidden = rows.length <= table.rows;
}
function figure(key, row, all) {
  switch (key) {
    case 'name': return row.name;
    case 'part': return all.bytes ? formatPart(row.bytes / all.bytes) : '';
    case 'stderr': return about.periodic ? '' : formatBytes(row.stderr);
    case 'objects': case 'samples': return formatCount(row[key]);
    default: return formatBytes(row[key]);
  }
}
