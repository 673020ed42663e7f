// Which allocator makes which type: modules by types, then functions of one module. Sums of rows and columns are there.
const heat = { module: null, chart: null };
const MOST_ROWS = 25;
const mostColumns = () => (isNarrow() ? 7 : 18);

function heatSums() {
  const rowKey = heat.module === null
    ? (i) => moduleKey(siteFunctions[cells.site[i]])
    : (i) => (moduleKey(siteFunctions[cells.site[i]]) === heat.module ? siteFunctions[cells.site[i]] : -1);
  const width = profile.kinds.length || 1;
  const places = sumBy((i) => { const row = rowKey(i); return row < 0 ? -1 : row * width + cells.kind[i]; });
  const rows = new Map(), columns = new Map();
  for (const [key, { bytes }] of places) {
    const row = Math.floor(key / width), kind = key % width;
    rows.set(row, (rows.get(row) ?? 0) + bytes);
    columns.set(kind, (columns.get(kind) ?? 0) + bytes);
  }
  const largest = (sums, most) => [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, most);
  return { places, width, rows, columns, topRows: largest(rows, MOST_ROWS), topColumns: largest(columns, mostColumns()) };
}
const heatRowName = (row) => (heat.module === null ? (row === NONE ? '[no module]' : moduleName(row)) : functionName(row));

function drawHeat() {
  const { places, width, rows, columns, topRows, topColumns } = heatSums();
  // Sizes are read in their order, types by their weight.
  topColumns.sort((a, b) => classOrder(a[0]) - classOrder(b[0]));
  const bytesAt = (row, kind) => places.get(row * width + kind)?.bytes ?? 0;
  const data = [];
  topRows.forEach(([row], y) => topColumns.forEach(([kind], x) => { const bytes = bytesAt(row, kind); if (bytes > 0) data.push([x, y, Math.log10(bytes), bytes]); }));
  const place = byId('heat');
  place.style.height = `${110 + 26 * topRows.length}px`;
  heat.chart ??= charts.echarts.init(place);
  heat.chart.resize();
  const dim = { color: themed('--dim') }, logs = data.map((d) => d[2]), most = Math.max(1, ...logs);
  heat.chart.setOption({ animation: false, aria: { enabled: true }, grid: { left: isNarrow() ? 132 : 260, right: isNarrow() ? 8 : 110, top: 10, bottom: 80 },
    tooltip: { ...tooltip(), trigger: 'item', formatter: ({ value: [x, y, , bytes] }) =>
      `${escapeText(heatRowName(topRows[y][0]))}<br>${escapeText(profile.kinds[topColumns[x][0]])}<br><strong>${formatBytes(bytes)}</strong>` },
    xAxis: { type: 'category', data: topColumns.map(([kind, sum]) => shorten(profile.kinds[kind], topColumns.length > 9 ? 22 : Math.max(10, Math.floor(140 / topColumns.length))) + (topColumns.length > 9 || isNarrow() ? '' : `\n${formatBytes(sum)}`)),
      axisLabel: { ...dim, interval: 0, rotate: topColumns.length > 9 || isNarrow() ? 40 : 0, fontSize: 11, lineHeight: 15 }, splitArea: { show: true, areaStyle: { color: ['transparent'] } } },
    yAxis: { type: 'category', inverse: true, data: topRows.map(([row, sum]) => isNarrow() ? shorten(heatRowName(row), 18) : `${shorten(heatRowName(row), 28)}  ${formatBytes(sum)}`), axisLabel: { ...dim, fontSize: 11 } },
    // Viridis: ordered in lightness, and so for every kind of colour vision.
    visualMap: { show: !isNarrow(), dimension: 2, min: Math.min(most - 1, ...logs), max: most, calculable: false, right: 0, top: 'middle', text: [formatBytes(10 ** most), ''], textStyle: dim,
      inRange: { color: ['#fde725', '#90d743', '#35b779', '#21918c', '#31688e', '#443983', '#440154'] } },
    series: [{ type: 'heatmap', data, itemStyle: { borderWidth: 1, borderColor: themed('--pane') } }] }, true);
  heat.chart.off('click');
  heat.chart.on('click', ({ value }) => { if (heat.module === null && value) drill(topRows[value[1]][0]); });
  byId('drilled').textContent = heat.module === null ? `module × ${kindWord}` : `functions of ${heat.module === NONE ? '[no module]' : moduleName(heat.module)} × ${kindWord}`;
  byId('up').hidden = heat.module === null;
  byId('heat-hint').textContent = heat.module === null ? 'Click a field for the functions of its module.' : '';
  drawHeatTable(rows, columns, topRows, topColumns, bytesAt);
}
function classOrder(kind) {
  if (kindIsType[kind]) return -1;
  const found = /(?:-|to )(\d+) (B|KiB|MiB|GiB)/.exec(profile.kinds[kind]);
  return found ? found[1] * 1024 ** BINARY.indexOf(found[2]) : 0;
}
function drill(module) { heat.module = module; refresh(); }

// The same in numbers, with everything that the picture leaves out in the sums.
function drawHeatTable(rows, columns, topRows, topColumns, bytesAt) {
  const place = byId('heat-table');
  place.replaceChildren();
  const head = element('tr', undefined, element('thead', undefined, place));
  for (const title of [heat.module === null ? 'module' : 'function', ...topColumns.map(([kind]) => profile.kinds[kind]), 'others', 'all']) element('th', title, head);
  const body = element('tbody', undefined, place);
  const line = (name, values, sum) => {
    const tr = element('tr', undefined, body);
    element('td', name, tr);
    const inTop = values.reduce((a, b) => a + b, 0);
    for (const value of [...values, sum - inTop, sum]) element('td', Math.abs(value) < 0.5 ? '' : formatBytes(value), tr);
    tr.dataset.bytes = sum;
    return tr;
  };
  for (const [row, sum] of topRows) {
    const tr = line(heatRowName(row), topColumns.map(([kind]) => bytesAt(row, kind)), sum);
    if (heat.module === null) tr.addEventListener('click', () => drill(row));
  }
  const all = [...rows.values()].reduce((a, b) => a + b, 0);
  line('all', topColumns.map(([kind]) => columns.get(kind) ?? 0), all).className = 'total';
}
