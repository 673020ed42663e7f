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

function axes() {
  const line = { lineStyle: { color: themed('--line') } }, label = { color: themed('--dim') };
  return {
    time: { type: 'value', min: 0, max: profile.buckets * profile.bucket_s, axisLine: line, splitLine: { show: false },
      axisLabel: { ...label, formatter: formatTime } },
    bytes: { type: 'value', axisLabel: { ...label, formatter: formatBytes }, splitLine: line },
  };
}
const tooltip = () => ({ trigger: 'axis', confine: true, backgroundColor: themed('--pane'), borderColor: themed('--line'),
  textStyle: { color: themed('--text'), fontSize: 12 } });

function drawTimeline() {
  timeline ??= charts.echarts.init(byId('timeline'));
  const { time, bytes } = axes();
  const shownCollections = profile.collections.slice(0, 400);
  const series = [{ name: 'live (estimate)', type: 'line', showSymbol: false, areaStyle: { opacity: 0.25 }, lineStyle: { width: 1.5 },
    data: [[0, 0], ...liveOverTime(() => true)],
    markLine: { silent: true, symbol: 'none', label: { show: false }, lineStyle: { opacity: 0.35, type: 'dashed' },
      data: [...shownCollections.filter((gc) => gc[2] === 'major').map((gc) => ({ xAxis: gc[0] })),
        { xAxis: about.peak_s, label: { show: true, formatter: 'peak', color: themed('--dim') } }] },
    markArea: { silent: true, itemStyle: { opacity: 0.25, color: COLOURS[5] },
      data: shownCollections.map((gc) => [{ xAxis: gc[0] }, { xAxis: gc[1] }]) } }];
  if (profile.resident.length) {
    series.push({ name: 'resident set', type: 'line', showSymbol: false, step: 'end', lineStyle: { type: 'dashed', width: 1.5 }, data: profile.resident });
  }
  timeline.setOption({ animation: false, color: COLOURS, aria: { enabled: true }, grid: { left: 76, right: 20, top: 28, bottom: 26 },
    legend: { top: 0, textStyle: { color: themed('--text') } }, xAxis: time, yAxis: bytes, series,
    tooltip: { ...tooltip(), valueFormatter: formatBytes },
    brush: { xAxisIndex: 0, brushType: 'lineX', brushMode: 'single', brushStyle: { color: 'rgba(110,170,230,0.2)', borderColor: '#6cb6f5', borderWidth: 1 }, outOfBrush: { colorAlpha: 0.3 }, throttleType: 'debounce', throttleDelay: 60 } }, true);
  timeline.dispatchAction({ type: 'takeGlobalCursor', key: 'brush', brushOption: { brushType: 'lineX', brushMode: 'single' } });
  timeline.off('brushEnd');
  timeline.on('brushEnd', (event) => {
    const range = event.areas[0]?.coordRange;
    if (range) select(Math.floor(range[0] / profile.bucket_s), Math.ceil(range[1] / profile.bucket_s) - 1); else select(0, lastBucket);
  });
  drawBrush();
}
function drawBrush() {
  const areas = isWhole() ? [] : [{ brushType: 'lineX', xAxisIndex: 0,
    coordRange: [state.from * profile.bucket_s, (state.to + 1) * profile.bucket_s] }];
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
