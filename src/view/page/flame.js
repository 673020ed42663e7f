// The flame graph of what is shown: from the threads' starts, or from the allocating functions to their callers.
let flame, moduleColours;
function colourOfModule(name) {
  if (!moduleColours) {
    const bytes = new Map();
    for (let i = 0; i < cellCount; i++) {
      for (const m of new Set(framesOfCached(cells.site[i]).map(moduleOf))) bytes.set(m, (bytes.get(m) ?? 0) + cells.bytes[i]);
    }
    const order = [...bytes.entries()].sort((a, b) => b[1] - a[1]).map(([m]) => m);
    moduleColours = new Map(order.map((m, i) => [m, COLOURS[Math.min(i, COLOURS.length - 1)]]));
  }
  return moduleColours.get(name) ?? COLOURS[COLOURS.length - 1];
}
const frameCache = new Map();
function framesOfCached(site) {
  let frames = frameCache.get(site);
  if (!frames) frameCache.set(site, frames = framesOf(site));
  return frames;
}
// A lighter shade of the module's colour, by the name's hash, so that neighbours differ and labels stay readable.
function shade(colour, name) {
  let hash = 0;
  for (const c of name) hash = (hash * 31 + c.codePointAt(0)) | 0;
  const light = 0.38 + (Math.abs(hash) % 100) / 400;
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) * light)).join(',')})`;
}
function flameTree() {
  const inverted = byId('invert').checked;
  const root = { name: 'all', value: 0, children: [], byFunction: new Map() };
  for (const { key: site, bytes } of sumBy((i) => cells.site[i]).values()) {
    const frames = framesOfCached(site);
    const path = inverted ? frames : frames.slice().reverse();
    let node = root;
    root.value += bytes;
    for (const f of path) {
      let child = node.byFunction.get(f);
      if (!child) {
        child = { name: functionName(f), module: moduleOf(f), value: 0, children: [], byFunction: new Map() };
        node.byFunction.set(f, child);
        node.children.push(child);
      }
      child.value += bytes;
      node = child;
    }
  }
  // What is narrower than two thirds of a pixel is not drawn.
  const least = root.value / 2000;
  const prune = (node) => {
    node.children = node.children.filter((child) => child.value >= least);
    node.children.forEach(prune);
    delete node.byFunction;
  };
  prune(root);
  return root;
}
function drawFlame() {
  const place = byId('flame');
  place.replaceChildren();
  const tree = flameTree();
  byId('legend').replaceChildren();
  if (tree.value <= 0) { element('p', 'Nothing of this kind in the selected time.', place); return; }
  flame = charts.flamegraph().width(place.clientWidth).cellHeight(19).minFrameSize(1).transitionDuration(150)
    .inverted(byId('icicle').checked).sort((a, b) => b.value - a.value || (a.data.name < b.data.name ? -1 : 1))
    .setColorMapper((d) => {
      if (d.highlight) return '#e8388a';
      return d.depth === 0 ? '#c4cad4' : shade(colourOfModule(d.data.module), d.data.name);
    })
    .setLabelHandler((d) => `${d.data.name} ${d.data.module ? `(${d.data.module})` : ''}\n${formatBytes(d.value)}, ${formatPart(d.value / tree.value)}`)
    .setDetailsHandler((text) => { byId('frame').textContent = text ?? ''; })
    .onHover((d) => { byId('frame').textContent = `${shorten(d.data.name, 100)}: ${formatBytes(d.value)} (${formatPart(d.value / tree.value)})`; });
  charts.select(place).datum(tree).call(flame);
  if (state.search) {
    const matches = matchingFunctions();
    const names = new Set(profile.functions.filter((_, f) => matches[f]));
    flame.setSearchMatch((d) => names.has(d.data.name));
    flame.search(state.search);
  }
  const modules = [...(moduleColours ?? [])].slice(0, COLOURS.length);
  modules.forEach(([name, colour], i) => {
    const item = element('span', undefined, byId('legend'));
    element('i', undefined, item).style.background = shade(colour, '');
    item.append(i === COLOURS.length - 1 && moduleColours.size > COLOURS.length ? 'other modules' : name);
  });
}
