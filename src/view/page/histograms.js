// How long blocks live, what survives, and what functions hold as time goes on.
let lifetimes, survival, evolution;

function bars(chart, title, names, series) {
  const { bytes } = axes(), value = (it) => it?.value ?? it ?? 0;
  const most = Math.max(...names.map((_, at) => series.reduce((sum, it) => sum + value(it.data[at]), 0)));
  chart.setOption({ animation: false, color: COLOURS, aria: { enabled: true, decal: { show: series.length > 1 } }, grid: { ...edges(), top: 46, bottom: 40 },
    legend: { top: 0, textStyle: { color: themed('--text') } }, tooltip: { ...tooltip(), valueFormatter: formatBytes },
    xAxis: { type: 'category', name: title, nameLocation: 'middle', nameGap: 26, data: names, axisLabel: { color: themed('--dim'), hideOverlap: true }, nameTextStyle: { color: themed('--dim') } },
    yAxis: { ...bytes, ...byteAxis(most, 5) }, series: series.map((it) => ({ type: 'bar', ...it })) }, true);
}
function drawLifetimes() {
  lifetimes ??= charts.echarts.init(byId('lifetimes'));
  const decades = sumBy((i) => cells.lifetime[i]);
  const names = [];
  const used = [...decades.keys()].filter((d) => d !== NEVER);
  const first = Math.min(...used, 6), last = Math.max(...used, 9);
  for (let d = first; d <= last; d++) names.push(d);
  const value = (d) => decades.get(d)?.bytes ?? 0;
  lifetimes.resize();
  bars(lifetimes, 'lifetime', [...names.map((d) => `from ${formatTime(10 ** d / 1e9)}`), 'not freed'],
    [{ name: `${MEASURES[state.measure]} by lifetime`, data: [...names.map(value), { value: value(NEVER), itemStyle: { color: COLOURS[5] } }] }]);
  const outcomes = sumBy((i) => (cells.survived[i] === 2 ? -1 : cells.kind[i] * 2 + cells.survived[i]));
  const has = outcomes.size > 0;
  byId('survival').hidden = !has;
  byId('survival-hint').textContent = has ? '' : 'No garbage collector reported which objects survive.';
  if (!has) return;
  survival ??= charts.echarts.init(byId('survival'));
  survival.resize();
  const sums = new Map();
  for (const [key, { bytes }] of outcomes) sums.set(key >> 1, (sums.get(key >> 1) ?? 0) + bytes);
  const kinds = [...sums.entries()].sort((a, b) => b[1] - a[1]).slice(0, 15).map(([kind]) => kind);
  bars(survival, 'type', kinds.map((kind) => shorten(profile.kinds[kind], 18)), [['survived its first collection', 1], ['died young', 0]]
    .map(([name, bit]) => ({ name, stack: 'all', data: kinds.map((kind) => outcomes.get(kind * 2 + bit)?.bytes ?? 0) })));
}
// What the largest functions hold, on top of each other, below what the kernel says of the process; or what they allocated
// or freed so far, if that is what is shown.
function drawEvolution() {
  evolution ??= charts.echarts.init(byId('evolution'));
  evolution.resize();
  const most = Math.max(1, Math.min(30, Number(byId('top').value) || 8));
  const top = [...sumBy((i) => siteFunctions[cells.site[i]]).values()].sort((a, b) => b.bytes - a.bytes).slice(0, most);
  const rank = new Map(top.map(({ key }, i) => [key, i]));
  const sites = matchingSites(), isLive = isHeld();
  const deltas = Array.from({ length: top.length + 1 }, () => new Float64Array(profile.buckets));
  for (let i = 0; i < cellCount; i++) {
    if (sites && !sites[cells.site[i]]) continue;
    const delta = deltas[rank.get(siteFunctions[cells.site[i]]) ?? top.length];
    const died = cells.died[i];
    if (state.measure === 'freed') { if (died < UNKNOWN) delta[died] += cells.bytes[i]; continue; }
    if (isLive && died === UNKNOWN) continue;
    delta[cells.born[i]] += cells.bytes[i];
    if (isLive && died < UNKNOWN) delta[died] -= cells.bytes[i];
  }
  const { time, bytes } = axes(), narrow = isNarrow();
  const ends = [0, ...Array.from({ length: profile.buckets }, (_, b) => (b + 1) * profile.bucket_s)];
  const lines = deltas.map((delta, i) => {
    let level = 0;
    return { name: i < top.length ? `${i + 1} ${shorten(functionName(top[i].key), narrow ? 44 : 34)}` : 'all others', type: 'line', stack: 'all', showSymbol: false,
      lineStyle: { width: 1 }, areaStyle: { opacity: 0.6 }, data: ends.map((at, b) => [at, b === 0 ? 0 : Math.max(0, level += delta[b - 1])]) };
  });
  const ofProcess = isLive && state.heap < 0 && !state.search ? memorySeries() : [];
  const highest = Math.max(...ends.map((_, b) => lines.reduce((sum, line) => sum + line.data[b][1], 0)), ...ofProcess.flatMap((line) => line.data.map(([, level]) => level)));
  byId('evolution-title').textContent = `${isLive ? 'Live bytes' : state.measure === 'freed' ? 'Bytes freed so far' : 'Bytes allocated so far, freed or not'}, by function, largest ${MEASURES[state.measure]} first.`;
  const legend = narrow ? { left: 0, bottom: 0, height: 220 } : { right: 0, top: 20, width: 275 };
  evolution.setOption({ animation: false, color: [...COLOURS.slice(0, -1), '#00a6a6', '#a6761d', '#666'], aria: { enabled: true, decal: { show: true } },
    grid: { ...edges(), ...(narrow ? { top: 20, bottom: 255 } : { right: 290, top: 30, bottom: 30 }) },
    legend: { type: narrow ? 'scroll' : 'plain', orient: 'vertical', ...legend, textStyle: { color: themed('--text'), width: narrow ? 290 : 240, overflow: 'truncate', fontSize: 12 } },
    tooltip: { ...tooltip(), valueFormatter: formatBytes, order: 'seriesDesc' },
    xAxis: timeShown(time), yAxis: { ...bytes, ...byteAxis(highest, 8) }, series: [...lines, ...ofProcess] }, true);
}
