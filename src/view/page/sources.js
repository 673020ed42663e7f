// Source files with what their lines allocate, as far as they were on the machine that made the page.
const source = { file: null };

// Bytes by place: of those that are charged there, and of all that go through there, each site once.
function bytesOfPlaces() {
  const own = new Map(), through = new Map();
  for (const { key: site, bytes } of sumBy((i) => cells.site[i]).values()) {
    const charged = placeOfSite(site), seen = new Set();
    if (charged !== NONE) own.set(charged, (own.get(charged) ?? 0) + bytes);
    for (let node = siteNodes[site]; node !== NONE; node = nodeParents[node]) seen.add(nodePlaces[node]);
    for (const place of seen) if (place !== NONE) through.set(place, (through.get(place) ?? 0) + bytes);
  }
  return { own, through };
}
// The code of a line, if it was on the machine that made the page and has not been changed since.
function codeOf(place) {
  const it = place === NONE ? undefined : profile.sources.find(({ file, changed }) => file === placeFiles[place] && !changed), line = placeLines[place];
  const found = it?.excerpts.findLast(([first]) => first <= line);
  return found?.[1].split('\n')[line - found[0]]?.trim() ?? '';
}
function drawSources() {
  const { own, through } = bytesOfPlaces(), byFile = new Map(profile.sources.map((it) => [it.file, { ...it, own: 0, largest: 0, lines: new Map() }]));
  for (const [place, bytes] of through) {
    const file = byFile.get(placeFiles[place]);
    if (!file) continue;
    const mine = own.get(place) ?? 0;
    file.own += mine;
    file.largest = Math.max(file.largest, bytes);
    file.lines.set(placeLines[place], { own: mine, through: bytes });
  }
  const files = [...byFile.values()].sort((a, b) => b.own - a.own || b.largest - a.largest);
  const list = byId('files');
  list.replaceChildren();
  for (const file of files) element('option', `${baseName(profile.files[file.file])}   ${formatBytes(file.own)} here, ${formatBytes(file.largest)} below`, list).value = file.file;
  const chosen = byFile.get(source.file) ?? files[0];
  byId('source-hint').textContent = files.length ? '' : 'None of the source files is on the machine that made this page, or the program has no line numbers.';
  const place = byId('source');
  place.replaceChildren();
  byId('path').textContent = '';
  if (!chosen) return;
  list.value = chosen.file;
  byId('path').textContent = profile.files[chosen.file] + (chosen.changed ? ' (changed since the program ran: lines may have moved)' : '');
  const body = startTable('source', ['line', 'here', 'with callees', '']);
  const most = Math.max(1, ...[...chosen.lines.values()].map((it) => it.through));
  chosen.excerpts.forEach(([first, text], at) => {
    if (at) element('td', '⋯', element('tr', undefined, body)).colSpan = 4;
    text.split('\n').slice(0, -1).forEach((code, offset) => {
      const line = element('tr', undefined, body), bytes = chosen.lines.get(first + offset);
      element('td', String(first + offset), line);
      element('td', bytes?.own ? formatBytes(bytes.own) : '', line);
      element('td', bytes ? formatBytes(bytes.through) : '', line);
      element('code', code, element('td', undefined, line));
      if (bytes) {
        line.className = 'hot';
        line.dataset.own = bytes.own;
        line.style.setProperty('--heat', `${Math.round(6 + 34 * Math.sqrt(bytes.through / most))}%`);
      }
    });
  });
}
