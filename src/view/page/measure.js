// What is shown: a measure of the cells within the selected time.
//   allocated  allocated in it        live  alive at its end      retained  allocated in it and alive at its end
//   freed      freed in it            peak  alive at the peak of the whole time
const state = { from: 0, to: lastBucket, measure: 'allocated', search: '', heap: -1, view: 'flame' };
const MEASURES = { allocated: 'allocated', live: 'live at the end', peak: 'live at the peak', freed: 'freed',
  retained: 'allocated and kept' };
const isWhole = () => state.from === 0 && state.to === lastBucket;

function weightOf(cell) {
  const born = cells.born[cell], died = cells.died[cell];
  const isBornHere = born >= state.from && born <= state.to;
  const isLiveAtEnd = born <= state.to && (died === LIVE || (died < UNKNOWN && died > state.to));
  switch (state.measure) {
    case 'live': return isLiveAtEnd ? 1 : 0;
    case 'freed': return died < UNKNOWN && died >= state.from && died <= state.to ? 1 : 0;
    case 'retained': return isBornHere && isLiveAtEnd ? 1 : 0;
    case 'peak': return cells.bytes[cell] > 0 ? cells.at_peak[cell] / cells.bytes[cell] : 0;
    default: return isBornHere ? 1 : 0;
  }
}

// Functions whose name or module has the text that is searched for; null: all.
function matchingFunctions() {
  const wanted = state.search.toLowerCase();
  if (!wanted) return null;
  return profile.functions.map((name, f) => name.toLowerCase().includes(wanted) || moduleOf(f).toLowerCase().includes(wanted));
}
// Sites of the chosen heap that call such a function; null: all.
let matching = { key: '', sites: null };
function matchingSites() {
  const key = `${state.heap} ${state.search}`;
  if (matching.key !== key) matching = { key, sites: findSites() };
  return matching.sites;
}
function findSites() {
  const matches = matchingFunctions();
  if (!matches && state.heap < 0) return null;
  const nodes = new Uint8Array(nodeParents.length);
  for (let n = 0; matches && n < nodes.length; n++) {
    nodes[n] = matches[nodeFunctions[n]] || (nodeParents[n] !== NONE && nodes[nodeParents[n]]) ? 1 : 0;
  }
  const isFound = (node) => !matches || (node !== NONE && nodes[node] === 1);
  return Array.from(siteNodes, (node, site) => (state.heap < 0 || siteHeaps[site] === state.heap) && isFound(node));
}

// Sums of the cells that are shown, by any key; a negative key is left out.
function sumBy(keyOf) {
  const sums = new Map(), sites = matchingSites();
  for (let i = 0; i < cellCount; i++) {
    if (sites && !sites[cells.site[i]]) continue;
    const weight = weightOf(i);
    const key = keyOf(i);
    if (weight === 0 || key < 0) continue;
    let row = sums.get(key);
    if (!row) sums.set(key, row = { key, bytes: 0, variance: 0, objects: 0, samples: 0 });
    row.bytes += weight * cells.bytes[i];
    row.variance += weight * cells.variance[i];
    row.objects += weight * cells.objects[i];
    row.samples += cells.samples[i];
  }
  return sums;
}
function total() {
  return sumBy(() => 0).get(0) ?? { bytes: 0, variance: 0, objects: 0, samples: 0 };
}
