// The profile as columns. Missing nodes, functions and parents are NONE; `died` is LIVE or UNKNOWN where nothing freed.
const NONE = 0xFFFFFFFF, LIVE = 0xFFFF, UNKNOWN = 0xFFFE, NEVER = 15;
const profile = JSON.parse(document.getElementById('profile').textContent);

function column(text) {
  const bytes = Uint8Array.from(atob(text.slice(1)), (c) => c.charCodeAt(0));
  const kinds = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: Float64Array };
  return new kinds[text[0]](bytes.buffer);
}
const { about } = profile;
const cells = Object.fromEntries(Object.entries(profile.cells).map(([name, text]) => [name, column(text)]));
const cellCount = cells.site.length;
const functionModules = column(profile.function_modules);
const nodeParents = column(profile.node_parents), nodeFunctions = column(profile.node_functions);
const nodePlaces = column(profile.node_places), placeFiles = column(profile.place_files), placeLines = column(profile.place_lines);
const siteNodes = column(profile.site_nodes), siteCharged = column(profile.site_charged), siteHeaps = column(profile.site_heaps);
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
