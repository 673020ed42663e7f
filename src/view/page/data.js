// The profile as columns. Missing nodes, functions and parents are NONE; `died` is LIVE or UNKNOWN where nothing freed.
const NONE = 0xFFFFFFFF, LIVE = 0xFFFF, UNKNOWN = 0xFFFE, NEVER = 15;
const profile = JSON.parse(await embedded('profile'));

// The text of an element; of a large profile it is deflated and in base64.
async function embedded(id) {
  const place = document.getElementById(id), text = place.textContent;
  place.textContent = '';
  if (!place.dataset.packed) return text;
  if (!window.DecompressionStream) {
    throw new Error('This browser cannot decompress the data of the page (it has no DecompressionStream). Open it with Chrome 80, Firefox 113, Safari 16.4 or later.');
  }
  return new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream('deflate'))).text();
}
function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
function column(text) {
  const kinds = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: Float64Array };
  return new kinds[text[0]](bytesOf(text.slice(1)).buffer);
}
const { about } = profile;
const cells = Object.fromEntries(Object.entries(profile.cells).map(([name, text]) => [name, column(text)]));
const cellCount = cells.site.length;
const functionModules = column(profile.function_modules);
const nodeParents = column(profile.node_parents), nodeFunctions = column(profile.node_functions);
const nodePlaces = column(profile.node_places), placeFiles = column(profile.place_files), placeLines = column(profile.place_lines);
const siteNodes = column(profile.site_nodes), siteCharged = column(profile.site_charged), siteHeaps = column(profile.site_heaps);
const siteCount = siteNodes.length;
const siteFunctions = Uint32Array.from(siteCharged, (node) => (node === NONE ? NONE : nodeFunctions[node]));
const kindIsType = column(profile.kind_is_type);
const lastBucket = profile.buckets - 1;
const functionName = (f) => (f === NONE ? '(no stack)' : profile.functions[f]);
const moduleName = (m) => profile.modules[m] || '[no module]';
const moduleOf = (f) => (f === NONE ? '[no module]' : moduleName(functionModules[f]));

// Functions of a site, innermost first. Made when asked for: most sites are never looked at.
function framesOf(site) {
  const frames = [];
  for (let node = siteNodes[site]; node !== NONE; node = nodeParents[node]) frames.push(nodeFunctions[node]);
  return frames;
}

// Chains: the nodes without their places, so that two lines of a function are one. Callers come first, as with nodes.
function chainsOfNodes() {
  const ofNode = new Uint32Array(nodeParents.length), known = new Map(), parents = [], functions = [];
  const width = profile.functions.length + 1;
  for (let node = 0; node < ofNode.length; node++) {
    const parent = nodeParents[node] === NONE ? NONE : ofNode[nodeParents[node]];
    const key = (parent === NONE ? 0 : parent + 1) * width + nodeFunctions[node];
    let chain = known.get(key);
    if (chain === undefined) {
      known.set(key, chain = parents.length);
      parents.push(parent);
      functions.push(nodeFunctions[node]);
    }
    ofNode[node] = chain;
  }
  return { ofNode, parents: Uint32Array.from(parents), functions: Uint32Array.from(functions) };
}
const chains = chainsOfNodes();
// Lines that a chain goes through in its innermost function, some of them.
function placesOfChain(chain) {
  const places = new Set();
  for (let node = 0; node < nodePlaces.length && places.size < 3; node++) {
    if (chains.ofNode[node] === chain && nodePlaces[node] !== NONE) places.add(nodePlaces[node]);
  }
  return [...places];
}
const siteChains = Uint32Array.from(siteNodes, (node) => (node === NONE ? NONE : chains.ofNode[node]));
// What `leaks` calls a site: the chain from the function that is charged.
const siteKeys = Uint32Array.from(siteCharged, (node) => (node === NONE ? NONE : chains.ofNode[node]));
// The callers of a chain, from the outermost function to its own.
function functionsOfChain(chain) {
  const functions = [];
  for (let at = chain; at !== NONE; at = chains.parents[at]) functions.push(chains.functions[at]);
  return functions.reverse();
}
