// Flame graphs: a box for each chain of calls, as wide as its bytes, below its callers or above them.
const ROW = 20;
// Narrower boxes are not drawn, in pixels: on paper nobody zooms.
const narrowest = () => (isPrinting ? 4 : 0.7);

// The tree of chains by weights of sites: one column of them, or several whose sum is the width. Boxes are made when they
// are looked at.
function chainTree(columns, isInverted) {
  const width = columns.length, root = { name: 'all', f: NONE, parts: columns.map(() => 0), value: 0, depth: 0, parent: null };
  const isUsed = (site) => columns.some((column) => column[site] !== 0);
  const sites = Array.from(columns[0].keys()).filter(isUsed);
  for (const site of sites) for (let at = 0; at < width; at++) root.parts[at] += columns[at][site];
  root.value = root.parts.reduce((a, b) => a + b, 0);
  root.children = isInverted ? fromAllocators(root, sites, columns) : fromRoots(root, sites, columns);
  return root;
}
const child = (parent, f, parts) => ({ name: functionName(f), module: moduleOf(f), f, parts, value: parts.reduce((a, b) => a + b, 0), depth: parent.depth + 1, parent });
const bySize = (boxes) => boxes.sort((a, b) => b.value - a.value || (a.name < b.name ? -1 : 1));

function fromRoots(root, sites, columns) {
  // Callers come before what they call: one pass from the end adds up.
  const sums = columns.map((column) => {
    const sum = new Float64Array(chains.parents.length + 1);
    for (const site of sites) sum[siteChains[site] === NONE ? sum.length - 1 : siteChains[site]] += column[site];
    for (let chain = sum.length - 2; chain >= 0; chain--) if (chains.parents[chain] !== NONE) sum[chains.parents[chain]] += sum[chain];
    return sum;
  });
  const first = new Uint32Array(chains.parents.length + 1).fill(NONE), next = new Uint32Array(chains.parents.length).fill(NONE);
  const top = chains.parents.length;
  for (let chain = top - 1; chain >= 0; chain--) {
    if (!sums.some((sum) => sum[chain] !== 0)) continue;
    const parent = chains.parents[chain] === NONE ? top : chains.parents[chain];
    next[chain] = first[parent];
    first[parent] = chain;
  }
  const boxesBelow = (parent, chain) => () => {
    const boxes = [];
    for (let at = first[chain]; at !== NONE; at = next[at]) {
      const box = child(parent, chains.functions[at], sums.map((sum) => sum[at]));
      box.children = boxesBelow(box, at);
      box.chain = at;
      boxes.push(box);
    }
    return boxes;
  };
  return once(() => {
    const boxes = boxesBelow(root, top)();
    const without = child(root, NONE, sums.map((sum) => sum[top]));
    without.children = () => [];
    if (without.value > 0) boxes.push(without);
    return boxes;
  });
}
function fromAllocators(root, sites, columns) {
  const group = (parent, all) => once(() => {
    const groups = new Map();
    for (const [chain, site] of all) {
      const f = chain === NONE ? NONE : chains.functions[chain];
      if (!groups.has(f)) groups.set(f, []);
      groups.get(f).push([chain, site]);
    }
    return [...groups].map(([f, members]) => {
      const box = child(parent, f, columns.map((column) => members.reduce((sum, [, site]) => sum + column[site], 0)));
      const callers = members.filter(([chain]) => chain !== NONE && chains.parents[chain] !== NONE).map(([chain, site]) => [chains.parents[chain], site]);
      box.children = group(box, callers);
      return box;
    });
  });
  return group(root, sites.map((site) => [siteChains[site], site]));
}
function once(make) {
  let made;
  return () => (made ??= bySize(make()));
}
// The way to a box in a link: a hash of its functions' names, which another page of the same program has too.
function hashOf(text, hash = 0x811c9dc5) {
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}
const hashOfBox = (box) => (box.parent ? hashOf(box.name, hashOf('/', box.parent.hash ??= hashOfBox(box.parent))) : 0);
// The box with this hash; the root if there is none. Only boxes that were wide enough to be clicked are searched.
function boxOfHash(root, wanted) {
  const search = (box) => {
    for (const it of box.children()) {
      if (it.value < root.value / 20_000) break;
      it.hash ??= hashOfBox(it);
      const found = it.hash === wanted ? it : search(it);
      if (found) return found;
    }
    return null;
  };
  return wanted ? search(root) ?? root : root;
}

// Draws a tree from a box on, with its callers above it, and calls `onZoom` with the box that is chosen.
function drawBoxes(place, { zoomed, isUpward, colourOf, describe, isFound, onZoom, onHover }) {
  place.replaceChildren();
  const width = Math.max(100, place.clientWidth), rows = [];
  const add = (box, left, share, level, isCaller) => {
    const made = document.createElement('div');
    made.className = isCaller ? 'box caller' : 'box';
    if (isFound?.(box)) made.classList.add('found');
    const pixels = share * width;
    if (pixels > 24) made.textContent = shorten(box.name, Math.floor((pixels - 8) / 6.6));
    made.style.cssText = `left:${(left * 100).toFixed(4)}%;width:${(share * 100).toFixed(4)}%;background-color:${colourOf(box)}`;
    made.box = box;
    (rows[level] ??= []).push(made);
  };
  const callers = [];
  for (let box = zoomed.parent; box; box = box.parent) callers.unshift(box);
  callers.forEach((box, level) => add(box, 0, 1, level, true));
  const draw = (box, left, share, level) => {
    add(box, left, share, level, false);
    let at = left;
    for (const it of bySize(box.children())) {
      const part = zoomed.value > 0 ? it.value / zoomed.value : 0;
      if (part * width < narrowest()) break;
      draw(it, at, part, level + 1);
      at += part;
    }
  };
  draw(zoomed, 0, 1, callers.length);
  place.style.height = `${rows.length * ROW}px`;
  rows.forEach((row, level) => {
    const top = (isUpward ? rows.length - 1 - level : level) * ROW;
    for (const made of row) { made.style.top = `${top}px`; place.append(made); }
  });
  place.onclick = ({ target }) => { if (target.box) onZoom(target.box); };
  place.onmouseover = ({ target }) => { if (target.box) { target.title ||= describe(target.box); onHover(target.box); } };
}

const flame = { root: null, zoom: 0 };
let moduleColours;
function colourOfModule(name) {
  if (!moduleColours) {
    const bytes = new Map(), ofSite = new Float64Array(siteCount);
    for (let i = 0; i < cellCount; i++) ofSite[cells.site[i]] += cells.bytes[i];
    for (let site = 0; site < siteCount; site++) {
      for (const m of new Set(framesOfCached(site).map(moduleOf))) bytes.set(m, (bytes.get(m) ?? 0) + ofSite[site]);
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
  const light = 0.38 + (hashOf(name) % 100) / 400;
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) * light)).join(',')})`;
}
function drawFlame() {
  const place = byId('flame');
  const root = flame.root = chainTree([bytesBySite()], byId('invert').checked);
  byId('legend').replaceChildren();
  byId('frame').textContent = '';
  byId('unzoom').hidden = true;
  if (root.value <= 0) {
    place.style.height = '';
    place.replaceChildren(element('p', isWhole() && !state.search ? 'Nothing of this kind.' : 'Nothing of this kind in what is selected.'));
    return;
  }
  const matches = matchingFunctions(), used = new Set(), zoomed = boxOfHash(root, flame.zoom);
  if (zoomed === root) flame.zoom = 0;
  const linesOf = (box) => (box.chain === undefined ? '' : placesOfChain(box.chain).map((place) => `${shortPath(profile.files[placeFiles[place]])}:${placeLines[place]} ${codeOf(place)}`.trim()).join(', '));
  const describe = (box) => `${box.name}${linesOf(box) ? ` ${linesOf(box)}` : ''}${box.module && box.f !== NONE ? ` [${box.module}]` : ''}: ${formatBytes(box.value)}, ${formatPart(box.value / root.value)} of ${MEASURES[state.measure]}` +
    (box.parent && box.parent !== root ? `, ${formatPart(box.value / box.parent.value)} of its ${byId('invert').checked ? 'callee' : 'caller'}` : '');
  drawBoxes(place, { zoomed, isUpward: !byId('icicle').checked, describe,
    colourOf: (box) => { if (!box.parent) return '#c4cad4'; used.add(box.module); return shade(colourOfModule(box.module), box.name); },
    isFound: matches && ((box) => box.f !== NONE && matches[box.f]),
    onZoom: (box) => { flame.zoom = box === zoomed || !box.parent ? 0 : hashOfBox(box); refresh(); },
    onHover: (box) => { byId('frame').textContent = describe(box); } });
  if (zoomed !== root) byId('frame').textContent = describe(zoomed);
  byId('unzoom').hidden = zoomed === root;
  const modules = [...moduleColours].slice(0, COLOURS.length).filter(([name], i) => used.has(name) || i === COLOURS.length - 1);
  for (const [name, colour] of modules) {
    const item = element('span', undefined, byId('legend'));
    element('i', undefined, item).style.backgroundColor = shade(colour, '');
    const isLast = colour === COLOURS[COLOURS.length - 1];
    item.append(isLast && moduleColours.size > COLOURS.length ? 'other modules' : name);
  }
}
// The box of a site, or of the function that it is charged to.
function zoomTo(site) {
  byId('invert').checked = false;
  const names = functionsOfChain(siteKeys[site]).map(functionName);
  flame.zoom = names.reduce((hash, name) => hashOf(name, hashOf('/', hash)), 0);
}
