// Memory over time with collections, and the selection that everything else obeys.
let timeline;
const COLOURS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#b5a900', '#8a7fd1', '#7f8c99'];
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Live bytes at the end of each bucket, of cells that pass.
function liveOverTime(passes) {
  const change = new Float64Array(profile.buckets + 1);
  for (let i = 0; i < cellCount; i++) {
    if (cells.died[i] === UNKNOWN || !passes(i)) continue;
    change[cells.born[i]] += cells.bytes[i];
    if (cells.died[i] < UNKNOWN) change[cells.died[i]] -= cells.bytes[i];
  }
  let live = 0;
  return Array.from(change.subarray(0, profile.buckets), (delta, b) => [(b + 1) * profile.bucket_s, Math.max(0, live += delta)]);
}

// The same for a heap, and the peak of all heaps, which mostly lies inside a bucket.
function levelsOf(heap) {
  const isIn = (i) => siteHeaps[cells.site[i]] === heap;
  const levels = [[0, 0], ...liveOverTime(isIn)];
  if (!about.peak_bytes) return levels;
  let atPeak = 0;
  for (let i = 0; i < cellCount; i++) if (isIn(i)) atPeak += cells.at_peak[i];
  const after = levels.findIndex(([seconds]) => seconds > about.peak_s);
  levels.splice(after < 0 ? levels.length : after, 0, [about.peak_s, atPeak]);
  return levels;
}

// Round steps of the unit that the labels have: five to ten of them.
function timeStep(span) {
  const most = isNarrow() ? 5 : 9, days = 86_400;
  // The chart's own steps are round below a second.
  if (span < 2) return undefined;
  const steps = [0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 18_000, 36_000, days];
  return steps.find((step) => span / step <= most) ?? days * 2 ** Math.ceil(Math.log2(span / days / most));
}
function axes() {
  const line = { lineStyle: { color: themed('--line') } }, label = { color: themed('--dim') };
  return {
    time: { type: 'value', min: 0, max: profile.buckets * profile.bucket_s, interval: timeStep(profile.buckets * profile.bucket_s), axisLine: line, splitLine: { show: false },
      axisLabel: { ...label, formatter: (at) => (at > 0 && at < 1 && lastBucket * profile.bucket_s >= 2 ? `${Number(at.toFixed(3))} s` : formatTick(at)), hideOverlap: true, showMaxLabel: false } },
    bytes: { type: 'value', axisLabel: { ...label, formatter: formatBytes }, splitLine: line },
  };
}
// The axis of the selected time.
function timeShown(time) {
  const [min, max] = [state.from * profile.bucket_s, (state.to + 1) * profile.bucket_s];
  return { ...time, min, max, interval: timeStep(max - min) };
}
const tooltip = () => ({ trigger: 'axis', confine: true, backgroundColor: themed('--pane'), borderColor: themed('--line'),
  textStyle: { color: themed('--text'), fontSize: 12 } });

// Heaps that have samples, malloc's first.
function heapsShown() {
  const bytes = new Float64Array(profile.heaps.length);
  for (let i = 0; i < cellCount; i++) bytes[siteHeaps[cells.site[i]]] += cells.bytes[i];
  const heaps = Array.from(bytes.keys()).filter((heap) => bytes[heap] > 0);
  return heaps.sort((a, b) => (profile.heaps[b] === 'malloc') - (profile.heaps[a] === 'malloc') || bytes[b] - bytes[a]);
}
const tracks = heapsShown();
const shownTracks = () => (state.heap < 0 ? tracks : tracks.filter((heap) => heap === state.heap));
const isNarrow = () => document.body.clientWidth < 720;
const edges = () => (isNarrow() ? { left: 62, right: 12 } : { left: 76, right: 20 });

// Ticks at powers of two of bytes, and the top just above the largest value.
function byteAxis(most, ticks) {
  const interval = 2 ** Math.ceil(Math.log2(Math.max(most, 4) / ticks));
  return { interval, max: interval * Math.ceil(Math.max(most, 4) / interval) };
}
// What the kernel said: a level stays until the next reading, and what was there first was there from the start.
function memoryLine(at) {
  const known = profile.memory.filter((reading) => reading[at] !== null).map((reading) => [Math.max(0, reading[0]), reading[at]]);
  if (!known.length) return known;
  const end = profile.buckets * profile.bucket_s, last = known[known.length - 1];
  if (last[0] < end) known.push([end, last[1]]);
  return known;
}
function memorySeries() {
  const line = { type: 'line', step: 'end', showSymbol: false, z: 3 };
  const resident = memoryLine(1), anonymous = memoryLine(2), lines = [];
  if (resident.length) lines.push({ ...line, name: 'resident set', color: COLOURS[8], lineStyle: { type: 'dashed', width: 1.5 }, data: resident });
  if (anonymous.length) lines.push({ ...line, name: 'anonymous memory', color: COLOURS[5], lineStyle: { type: 'dotted', width: 1.5 }, data: anonymous });
  return lines;
}
// The heaps on top of each other, so that the distance to the anonymous memory is what the profile does not account for.
function seriesOfTracks(shown) {
  const isOfHeap = (i) => shown.includes(gcs.heap[i]);
  const longest = collectionsOf(isOfHeap).sort((a, b) => gcs.pause[b] - gcs.pause[a]).slice(0, 400);
  const majors = longest.filter((i) => KIND_OF_GC[gcs.kind[i]] !== 'minor').map((i) => ({ xAxis: gcs.begin[i] }));
  const marks = {
    markLine: { silent: true, symbol: 'none', precision: 12, label: { show: false }, lineStyle: { opacity: 0.35, type: 'dashed' },
      data: [...majors, { xAxis: about.peak_s, label: { show: true, formatter: 'peak', color: themed('--dim') } }] },
    markArea: { silent: true, itemStyle: { opacity: 0.25, color: COLOURS[5] },
      data: longest.map((i) => [{ xAxis: gcs.begin[i] }, { xAxis: gcs.begin[i] + gcs.pause[i] }]) } };
  const series = shown.map((heap, at) => ({ type: 'line', showSymbol: false, stack: shown.length > 1 ? 'live' : undefined,
    name: shown.length > 1 || profile.heaps[heap] !== 'malloc' ? `live: ${profile.heaps[heap]}` : 'live', color: COLOURS[tracks.indexOf(heap) % (COLOURS.length - 1)],
    areaStyle: { opacity: 0.25 }, lineStyle: { width: 1.5 }, data: levelsCached(heap), ...(at === 0 ? marks : {}) }));
  if (profile.against) {
    const levels = shown.map((heap) => profile.against.live[heap]);
    series.push({ type: 'line', showSymbol: false, name: 'live before', color: themed('--dim'), lineStyle: { type: 'dotted', width: 1.5 },
      data: [[0, 0], ...levels[0].map((_, b) => [(b + 1) * profile.against.bucket_s, levels.reduce((sum, level) => sum + level[b], 0)])] });
  }
  return series;
}
function drawTimeline() {
  const place = byId('timeline'), shown = shownTracks();
  place.style.height = isNarrow() ? '190px' : '200px';
  timeline ??= charts.echarts.init(place);
  timeline.resize();
  const { time, bytes } = axes();
  const live = shown.length ? seriesOfTracks(shown) : [], lines = memorySeries();
  const stacked = live.filter((it) => it.name !== 'live before');
  const top = stacked.length ? stacked[0].data.map((_, at) => stacked.reduce((sum, it) => sum + it.data[at][1], 0)) : [];
  const most = [...lines, ...live].flatMap((it) => it.data).reduce((max, [, level]) => Math.max(max, level), Math.max(0, ...top));
  timeline.setOption({ animation: false, color: COLOURS, aria: { enabled: true },
    grid: { ...edges(), top: isNarrow() && live.length + lines.length > 3 ? 42 : 28, bottom: 26 },
    legend: { top: 0, left: isNarrow() ? 0 : 'center', itemGap: isNarrow() ? 8 : 14, itemWidth: 16, itemHeight: 3, icon: 'rect', textStyle: { color: themed('--text'), fontSize: isNarrow() ? 11 : 12 } },
    xAxis: time, yAxis: { ...bytes, ...byteAxis(most, 5) }, series: [...live, ...lines],
    tooltip: { ...tooltip(), formatter: tooltipOfTimeline },
    brush: { xAxisIndex: 'all', brushType: 'lineX', brushMode: 'single', brushStyle: { color: 'rgba(110,170,230,0.2)', borderColor: '#6cb6f5', borderWidth: 1 }, outOfBrush: { colorAlpha: 0.3 }, throttleType: 'debounce', throttleDelay: 60 } }, true);
  timeline.dispatchAction({ type: 'takeGlobalCursor', key: 'brush', brushOption: { brushType: 'lineX', brushMode: 'single' } });
  timeline.off('brushEnd');
  timeline.on('brushEnd', (event) => {
    const range = event.areas[0]?.coordRange;
    if (range) select(Math.floor(range[0] / profile.bucket_s), Math.ceil(range[1] / profile.bucket_s) - 1); else select(0, lastBucket);
  });
  drawBrush();
}
// The levels at a moment, by the last reading before it, with the share that the profile accounts for.
function tooltipOfTimeline(shown) {
  const at = shown[0]?.axisValue ?? 0, level = (data) => data.findLast(([seconds]) => seconds <= at)?.[1];
  const rows = shownTracks().map((heap) => [shownTracks().length > 1 ? `live: ${profile.heaps[heap]}` : 'live', level(levelsCached(heap)) ?? 0]);
  const live = rows.reduce((sum, [, bytes]) => sum + bytes, 0);
  const anonymous = level(memoryLine(2)), resident = level(memoryLine(1));
  if (resident !== undefined) rows.push(['resident set', resident]);
  if (anonymous !== undefined) rows.push(['anonymous memory', anonymous]);
  const lines = rows.map(([name, bytes]) => `${escapeText(name)} <strong>${formatBytes(bytes)}</strong>`);
  if (anonymous && state.heap < 0) lines.push(`live blocks are ${formatShare(Math.min(1, live / anonymous))} of the anonymous memory`);
  return [`after ${formatTime(at)}`, ...lines].join('<br>');
}
const levelsByHeap = new Map();
function levelsCached(heap) {
  if (!levelsByHeap.has(heap)) levelsByHeap.set(heap, levelsOf(heap));
  return levelsByHeap.get(heap);
}
function drawBrush() {
  const coordRange = [state.from * profile.bucket_s, (state.to + 1) * profile.bucket_s];
  const areas = isWhole() ? [] : [{ brushType: 'lineX', xAxisIndex: 0, coordRange }];
  timeline.dispatchAction({ type: 'brush', areas });
  const span = `${formatTime(state.from * profile.bucket_s)} to ${formatTime((state.to + 1) * profile.bucket_s)}`;
  byId('range').textContent = isWhole() ? '' : `Selected: ${span}.`;
  byId('whole').hidden = isWhole();
}
function select(from, to, isMoving = false) {
  state.from = Math.max(0, Math.min(from, lastBucket));
  state.to = Math.max(state.from, Math.min(to, lastBucket));
  drawBrush();
  refresh(isMoving);
}
