// What collectors did: pauses, survival, and what the machine measured. Whole-run figures are the report's.
const gcs = { in_all: profile.collections.in_all, heap: column(profile.collections.heap), kind: column(profile.collections.kind),
  begin: column(profile.collections.begin), pause: column(profile.collections.pause) };
const KIND_OF_GC = { 1: 'minor', 2: 'major', 3: 'major step' };
const collectionsOf = (passes) => Array.from(gcs.begin.keys()).filter(passes);
const pauses = { chart: null, classes: null, survival: null, statistics: null };

// A collection counts if it began in the selected time, in the chosen heap.
function isCollectionShown(i) {
  const bucket = Math.min(lastBucket, Math.floor(gcs.begin[i] / profile.bucket_s));
  return bucket >= state.from && bucket <= state.to && (state.heap < 0 || gcs.heap[i] === state.heap);
}
function summaries() {
  const { stress } = profile.collections;
  const chosen = stress.filter((row) => state.heap < 0 || row.heap_index === state.heap);
  if (isWhole()) return chosen;
  const span = (state.to + 1 - state.from) * profile.bucket_s;
  return chosen.map((row) => {
    const all = collectionsOf((i) => isCollectionShown(i) && gcs.heap[i] === row.heap_index && gcs.kind[i] === row.kind_number)
      .map((i) => gcs.pause[i]).sort((a, b) => a - b);
    const total = all.reduce((a, b) => a + b, 0), at = (part) => all[Math.round(part * (all.length - 1))] ?? 0;
    const [allocated, survived] = survivalOf(row.heap_index, state.from, state.to);
    const classes = row.pauses.map(() => 0);
    for (const pause of all) classes[Math.min(classes.length - 1, Math.max(0, Math.floor(2 * Math.log10(Math.max(pause, 1e-9) / 1e-7))))]++;
    return { ...row, collections: all.length, total_s: total, mean_s: all.length ? total / all.length : 0, p50_s: at(0.5), p99_s: at(0.99), longest_s: all.at(-1) ?? 0,
      share_of_run: total / span, bytes_per_collection: all.length ? allocated / all.length : 0, survived_ratio: survived, pauses: classes };
  });
}
// Bytes that a heap allocated between two buckets, and the part that survived its first collection (null: none was seen).
function survivalOf(heap, from, to) {
  let allocated = 0, survived = 0, died = 0;
  for (let i = 0; i < cellCount; i++) {
    if (siteHeaps[cells.site[i]] !== heap || cells.born[i] < from || cells.born[i] > to) continue;
    allocated += cells.bytes[i];
    if (cells.survived[i] === 1) survived += cells.bytes[i]; else if (cells.survived[i] === 0) died += cells.bytes[i];
  }
  return [allocated, survived + died > 0 ? survived / (survived + died) : null];
}
function drawCollections() {
  const rows = summaries(), body = startTable('gc-table', ['heap', 'kind', 'GCs', 'total', 'share of time', 'mean', 'median', '99 %', 'max', 'one per', 'survive']);
  for (const row of rows) {
    const line = element('tr', undefined, body);
    line.dataset.collections = row.collections;
    line.dataset.total = row.total_s;
    const survived = row.survived_ratio === null || row.kind_number !== 1 ? '' : formatPart(row.survived_ratio);
    for (const text of [row.heap, row.kind, formatCount(row.collections), formatTime(row.total_s), formatPart(row.share_of_run), formatTime(row.mean_s),
      formatTime(row.p50_s), formatTime(row.p99_s), formatTime(row.longest_s), formatBytes(row.bytes_per_collection), survived]) element('td', text, line);
  }
  const known = gcs.begin.length;
  byId('gc-hint').textContent = gcs.in_all > known ? `The ${formatCount(known)} longest of ${formatCount(gcs.in_all)} GCs are drawn.` : '';
  for (const chart of Object.values(pauses)) chart?.resize();
  drawPauses(rows);
  drawSurvivalOverTime();
  drawStatistics();
}
const nameOfStress = (row) => `${row.heap}: ${row.kind}`;
function drawPauses(rows) {
  pauses.chart ??= charts.echarts.init(byId('pauses'));
  const { time } = axes(), dim = { color: themed('--dim') };
  const duration = { type: 'log', axisLabel: { ...dim, formatter: formatTime }, splitLine: { lineStyle: { color: themed('--line') } }, name: 'pause', nameTextStyle: dim };
  const series = rows.map((row, at) => ({ name: nameOfStress(row), type: 'line', lineStyle: { width: 0 }, showSymbol: true, symbolSize: row.kind_number === 1 ? 6 : 9,
    symbol: ['circle', 'triangle', 'diamond', 'rect'][at % 4], itemStyle: { opacity: 0.85 },
    data: collectionsOf((i) => isCollectionShown(i) && gcs.heap[i] === row.heap_index && gcs.kind[i] === row.kind_number)
      .map((i) => [gcs.begin[i], Math.max(gcs.pause[i], 1e-7)]) }));
  const base = { animation: false, color: COLOURS, aria: { enabled: true }, grid: { ...edges(), top: 40, bottom: 30 },
    legend: { top: 0, textStyle: { color: themed('--text') } } };
  pauses.chart.setOption({ ...base, tooltip: { ...tooltip(), trigger: 'item', formatter: ({ seriesName, value }) => `${escapeText(seriesName)}<br>after ${formatTime(value[0])}: <strong>${formatTime(value[1])}</strong>` },
    xAxis: timeShown(time), yAxis: duration, series }, true);
  pauses.classes ??= charts.echarts.init(byId('pause-classes'));
  const used = rows.flatMap((row) => row.pauses.map((count, at) => (count ? at : -1)).filter((at) => at >= 0));
  const first = used.length ? Math.min(...used) : 0, last = used.length ? Math.max(...used) : 0;
  const names = Array.from({ length: last - first + 1 }, (_, at) => `from ${formatTime(10 ** (-7 + (first + at) / 2))}`);
  pauses.classes.setOption({ ...base, tooltip: tooltip(), xAxis: { type: 'category', data: names, axisLabel: dim },
    yAxis: { type: 'value', name: 'GCs', nameTextStyle: dim, axisLabel: dim, splitLine: { lineStyle: { color: themed('--line') } } },
    series: rows.map((row) => ({ name: nameOfStress(row), type: 'bar', stack: 'all', data: row.pauses.slice(first, last + 1) })) }, true);
}
function drawSurvivalOverTime() {
  pauses.survival ??= charts.echarts.init(byId('survival-time'));
  const { time } = axes(), dim = { color: themed('--dim') }, sites = matchingSites();
  const survived = tracks.map(() => new Float64Array(profile.buckets)), known = tracks.map(() => new Float64Array(profile.buckets));
  for (let i = 0; i < cellCount; i++) {
    if (cells.survived[i] === 2 || (sites && !sites[cells.site[i]])) continue;
    const track = tracks.indexOf(siteHeaps[cells.site[i]]);
    known[track][cells.born[i]] += cells.bytes[i];
    if (cells.survived[i] === 1) survived[track][cells.born[i]] += cells.bytes[i];
  }
  const series = tracks.flatMap((heap, track) => (known[track].some((bytes) => bytes > 0) ? [{ name: profile.heaps[heap], type: 'line', showSymbol: false, areaStyle: { opacity: 0.15 },
    data: Array.from(known[track], (bytes, b) => [(b + 0.5) * profile.bucket_s, bytes > 0 ? survived[track][b] / bytes : null]) }] : []));
  pauses.survival.setOption({ animation: false, color: COLOURS, aria: { enabled: true }, grid: { ...edges(), top: 40, bottom: 30 },
    legend: { top: 0, right: 20, textStyle: { color: themed('--text') } }, tooltip: { ...tooltip(), valueFormatter: (part) => (part === null ? '' : formatPart(part)) },
    xAxis: timeShown(time),
    yAxis: { type: 'value', min: 0, max: (range) => Math.min(1, range.max * 1.1 || 1), axisLabel: { ...dim, formatter: formatPart }, splitLine: { lineStyle: { color: themed('--line') } } }, series }, true);
}
function drawStatistics() {
  const all = profile.collections.statistics, chosen = all[Number(byId('statistic').value)];
  byId('statistic-pane').hidden = !chosen;
  if (!chosen) return;
  pauses.statistics ??= charts.echarts.init(byId('statistics'));
  pauses.statistics.resize();
  const { time, bytes } = axes(), format = /^bytes?$/i.test(chosen.unit) ? formatBytes : (value) => `${value.toLocaleString('en')} ${chosen.unit}`;
  pauses.statistics.setOption({ animation: false, color: COLOURS, aria: { enabled: true }, grid: { left: 96, right: 20, top: 20, bottom: 30 },
    tooltip: { ...tooltip(), valueFormatter: format }, xAxis: timeShown(time),
    yAxis: { ...bytes, axisLabel: { ...bytes.axisLabel, formatter: format } },
    series: [{ name: chosen.name, type: 'line', step: 'end', showSymbol: chosen.points.length < 100, data: chosen.points }] }, true);
}
