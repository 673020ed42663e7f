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

function axes() {
  const line = { lineStyle: { color: themed('--line') } }, label = { color: themed('--dim') };
  return {
    time: { type: 'value', min: 0, max: profile.buckets * profile.bucket_s, axisLine: line, splitLine: { show: false },
      axisLabel: { ...label, formatter: formatTime, showMaxLabel: false } },
    bytes: { type: 'value', axisLabel: { ...label, formatter: formatBytes }, splitLine: line },
  };
}
const tooltip = () => ({ trigger: 'axis', confine: true, backgroundColor: themed('--pane'), borderColor: themed('--line'),
  textStyle: { color: themed('--text'), fontSize: 12 } });

// Heaps that have samples, each with a track of its own; resident memory is in the first, which is malloc's if it has any.
function heapsShown() {
  const bytes = new Float64Array(profile.heaps.length);
  for (let i = 0; i < cellCount; i++) bytes[siteHeaps[cells.site[i]]] += cells.bytes[i];
  const heaps = Array.from(bytes.keys()).filter((heap) => bytes[heap] > 0);
  return heaps.sort((a, b) => (profile.heaps[b] === 'malloc') - (profile.heaps[a] === 'malloc') || bytes[b] - bytes[a]);
}
const tracks = heapsShown();
const TRACK = 128;
const shownTracks = () => (state.heap < 0 ? tracks : tracks.filter((heap) => heap === state.heap));

// Ticks at powers of two of bytes, and the top just above the largest value.
function byteAxis(most, ticks) {
  const interval = 2 ** Math.ceil(Math.log2(Math.max(most, 4) / ticks));
  return { interval, max: interval * Math.ceil(Math.max(most, 4) / interval) };
}
function seriesOfTrack(heap, track, isAlone) {
  const seconds = (marks) => marks.map((i) => ({ xAxis: gcs.begin[i] }));
  const longest = collectionsOf((i) => gcs.heap[i] === heap).sort((a, b) => gcs.pause[b] - gcs.pause[a]).slice(0, 400);
  const colour = COLOURS[track % (COLOURS.length - 1)];
  const name = isAlone ? 'live (estimate)' : profile.heaps[heap];
  const own = { xAxisIndex: track, yAxisIndex: track, showSymbol: false, type: 'line' };
  const series = [{ ...own, name, color: colour, areaStyle: { opacity: 0.25 }, lineStyle: { width: 1.5 },
    data: levelsOf(heap),
    markLine: { silent: true, symbol: 'none', precision: 12, label: { show: false }, lineStyle: { opacity: 0.35, type: 'dashed' },
      data: [...seconds(longest.filter((i) => KIND_OF_GC[gcs.kind[i]] !== 'minor')),
        { xAxis: about.peak_s, label: { show: track === 0, formatter: 'peak', color: themed('--dim') } }] },
    markArea: { silent: true, itemStyle: { opacity: 0.25, color: COLOURS[5] },
      data: longest.map((i) => [{ xAxis: gcs.begin[i] }, { xAxis: gcs.begin[i] + gcs.pause[i] }]) } }];
  if (profile.against) {
    series.push({ ...own, name: isAlone ? 'before' : `${profile.heaps[heap]} before`, color: themed('--dim'), lineStyle: { type: 'dotted', width: 1.5 },
      data: [[0, 0], ...profile.against.live[heap].map((level, b) => [(b + 1) * profile.against.bucket_s, level])] });
  }
  if (track === 0 && profile.resident.length) {
    series.push({ ...own, name: 'resident set', step: 'end', color: COLOURS[8], lineStyle: { type: 'dashed', width: 1.5 }, data: profile.resident });
  }
  return series;
}
function drawTimeline() {
  const place = byId('timeline'), shown = shownTracks(), isAlone = shown.length === 1;
  const height = isAlone ? 156 : TRACK - 26;
  place.style.height = `${isAlone ? 204 : 32 + Math.max(1, shown.length) * TRACK}px`;
  timeline ??= charts.echarts.init(place);
  timeline.resize();
  const { time, bytes } = axes();
  const series = shown.map((heap, track) => seriesOfTrack(heap, track, isAlone));
  const most = (track) => series[track]?.flatMap((it) => it.data).reduce((max, [, level]) => Math.max(max, level), 0) ?? 0;
  const each = (make) => (shown.length ? shown : [0]).map(make);
  timeline.setOption({ animation: false, color: COLOURS, aria: { enabled: true },
    grid: each((_, track) => ({ left: 76, right: 20, top: 28 + track * TRACK, height })),
    legend: { top: 0, textStyle: { color: themed('--text') } },
    xAxis: each((_, track) => ({ ...time, gridIndex: track, axisLabel: { ...time.axisLabel, show: isAlone || track === shown.length - 1 } })),
    yAxis: each((_, track) => ({ ...bytes, ...byteAxis(most(track), isAlone ? 5 : 3), gridIndex: track })),
    series: series.flat(),
    axisPointer: { link: [{ xAxisIndex: 'all' }] }, tooltip: { ...tooltip(), valueFormatter: formatBytes },
    brush: { xAxisIndex: 'all', brushType: 'lineX', brushMode: 'single', brushStyle: { color: 'rgba(110,170,230,0.2)', borderColor: '#6cb6f5', borderWidth: 1 }, outOfBrush: { colorAlpha: 0.3 }, throttleType: 'debounce', throttleDelay: 60 } }, true);
  timeline.dispatchAction({ type: 'takeGlobalCursor', key: 'brush', brushOption: { brushType: 'lineX', brushMode: 'single' } });
  timeline.off('brushEnd');
  timeline.on('brushEnd', (event) => {
    const range = event.areas[0]?.coordRange;
    if (range) select(Math.floor(range[0] / profile.bucket_s), Math.ceil(range[1] / profile.bucket_s) - 1); else select(0, lastBucket);
  });
  drawBrush();
}
function drawBrush() {
  const coordRange = [state.from * profile.bucket_s, (state.to + 1) * profile.bucket_s];
  const areas = isWhole() ? [] : shownTracks().map((_, xAxisIndex) => ({ brushType: 'lineX', xAxisIndex, coordRange }));
  timeline.dispatchAction({ type: 'brush', areas });
  const span = `${formatTime(state.from * profile.bucket_s)} to ${formatTime((state.to + 1) * profile.bucket_s)}`;
  byId('range').textContent = isWhole() ? 'The whole time is shown.' : `Shown: ${span}.`;
  byId('whole').hidden = isWhole();
}
function select(from, to) {
  state.from = Math.max(0, Math.min(from, lastBucket));
  state.to = Math.max(state.from, Math.min(to, lastBucket));
  drawBrush();
  refresh();
}
