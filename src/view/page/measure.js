// What is shown: a measure of the cells within the selected time.
//   live  alive at its end           peak   alive at the peak of the whole time    allocated  allocated in it
//   freed freed in it                retained  allocated in it and alive at its end
// A comparison has no peaks: it starts as `diff` does.
const START = { from: 0, to: lastBucket, measure: profile.against && about.held === 'peak' ? 'allocated' : about.held, search: '', heap: -1, view: profile.against ? 'changes' : 'overview' };
const state = { ...START };
const MEASURES = { live: 'live at the end', peak: 'live at the peak', allocated: 'allocated', freed: 'freed',
  retained: 'allocated and kept' };
let isPrinting = false;
const isWhole = () => state.from === 0 && state.to === lastBucket;
// Whether the measure is of memory that is there at a moment, not of what passed through.
const isHeld = () => state.measure !== 'allocated' && state.measure !== 'freed';

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

// Whether a text has what is searched for, which may be a /regular expression/; null: nothing is searched for.
function searched() {
  const wanted = state.search.toLowerCase(), expression = /^\/(.+)\/$/.exec(state.search);
  if (!wanted) return null;
  try {
    if (expression) { const regex = new RegExp(expression[1], 'i'); return (text) => regex.test(text); }
  } catch {
    // It is not complete yet.
  }
  return (text) => text.toLowerCase().includes(wanted);
}
// Functions whose name or module has it; null: all.
function matchingFunctions() {
  const isFound = searched();
  return isFound && profile.functions.map((name, f) => isFound(name) || isFound(moduleOf(f)));
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
function bytesBySite() {
  const bytes = new Float64Array(siteCount), sites = matchingSites();
  for (let i = 0; i < cellCount; i++) {
    if (!sites || sites[cells.site[i]]) bytes[cells.site[i]] += weightOf(i) * cells.bytes[i];
  }
  return bytes;
}
function total() {
  return sumBy(() => 0).get(0) ?? { bytes: 0, variance: 0, objects: 0, samples: 0 };
}
