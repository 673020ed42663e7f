// The answer: how much is held, how fast that grows, how much of the process it is, and the sites that explain it.
const overview = { rows: 12 };
// The share of the bytes that the named sites explain.
const EXPLAINED = 0.8;

function headline() {
  const { answer } = profile;
  const parts = [];
  if (answer.bytes <= 0) {
    parts.push(about.samples ? `Nothing was live ${answer.held === 'peak' ? 'at any time' : 'at the end'}` : 'No allocation was sampled');
  } else if (answer.held === 'peak') {
    parts.push(`Held ${answer.text} at the peak (after ${formatTime(about.peak_s)})`);
  } else {
    parts.push(`Holds ${answer.text} after ${formatTime(about.duration_s)}`);
  }
  if (answer.bytes > 0 && profile.against) {
    const more = answer.bytes - profile.against.about[answer.held === 'peak' ? 'peak_bytes' : 'live_bytes'];
    parts.push(`${formatBytes(Math.abs(more))} ${more < 0 ? 'less' : 'more'} than before`);
  }
  const grew = answer.growth;
  // A minute says nothing of a run of milliseconds.
  if (answer.bytes > 0 && grew && about.duration_s >= 1) parts.push(grew.low > 0 ? `growing by ${formatRate(grew.bytes_per_s)}` : grew.high < 0 ? `shrinking by ${formatRate(-grew.bytes_per_s)}` : 'not growing');
  return parts.join(', ');
}
function explained() {
  const { answer } = profile, { count, share, in_all: all } = answer.explained;
  if (answer.bytes <= 0 || !all) return '';
  if (all === 1) return '1 site holds all of it';
  const verb = count === 1 ? 'sites explains' : 'sites explain';
  const part = share < 0.005 ? 'less than 1 %' : formatShare(share);
  return share < EXPLAINED ? `the ${formatCount(count)} largest of ${formatCount(all)} sites explain ${part}` : `${formatCount(count)} of ${formatCount(all)} ${verb} ${part}`;
}
function drawHeadline() {
  const place = byId('headline'), { answer } = profile, sites = explained();
  place.textContent = `${headline()}${sites ? `; ${sites}.` : '.'}`;
  Object.assign(place.dataset, { bytes: answer.bytes, held: answer.held, sites: answer.explained.count, share: answer.explained.share,
    growth: answer.growth?.bytes_per_s ?? '' });
  const { coverage } = about;
  byId('coverage').hidden = !coverage;
  if (coverage) {
    const meter = byId('meter');
    meter.style.setProperty('--share', `${(coverage.share * 100).toFixed(1)}%`);
    meter.classList.toggle('low', about.has_no_verdict);
    byId('coverage').dataset.share = coverage.share;
    byId('coverage-text').textContent = about.coverage_line.replace(/^coverage\s+/, 'Coverage ');
  }
  for (const warning of about.unseen) element('p', warning.replace(/^(note|warning): /, ''), byId('unseen'));
}

// Of the findings of `leaks`, those of each site, worst first: it may have several types.
let findings;
function findingsOf(chain) {
  if (!findings) {
    findings = new Map();
    for (const suspect of profile.leaks.suspects) {
      for (const site of suspect.sites) {
        const known = findings.get(siteKeys[site]) ?? findings.set(siteKeys[site], new Set()).get(siteKeys[site]);
        known.add(suspect);
      }
    }
  }
  return [...findings.get(chain) ?? []];
}
// The sites, largest first. Those that the page does not tell apart are one row, behind the others.
const FOLDED = profile.sites_in_all > siteCount ? profile.functions.indexOf(profile.folded) : -1;
const isFolded = (chain) => FOLDED >= 0 && chain !== NONE && functionsOfChain(chain).includes(FOLDED);
function rowsOfOverview() {
  const sums = [...sumBy((i) => siteKeys[cells.site[i]]).values()].filter((row) => row.bytes > 0);
  const folded = new Set(sums.filter((row) => isFolded(row.key)));
  const rows = sums.filter((row) => !folded.has(row)).sort((a, b) => b.bytes - a.bytes);
  if (folded.size) rows.push({ key: -1, bytes: [...folded].reduce((sum, row) => sum + row.bytes, 0), stacks: folded.size });
  return rows;
}
function drawOverview() {
  const rows = rowsOfOverview(), all = rows.reduce((sum, row) => sum + row.bytes, 0), most = rows[0]?.bytes ?? 0;
  const rest = rows.at(-1)?.key === -1 ? rows.pop() : null;
  const isGrowing = profile.leaks.suspects.length > 0;
  const body = startTable('overview', [`site`, MEASURES[state.measure], 'share', ...(isGrowing ? ['growth', 'verdict'] : [])]);
  byId('overview').querySelectorAll('th').forEach((cell, at) => { cell.className = OVERVIEW[at]; });
  let sum = 0, hasLine = false;
  rows.slice(0, overview.rows).forEach((row) => {
    const line = element('tr', undefined, body), site = siteOfChain(row.key), found = findingsOf(row.key), finding = found[0];
    line.dataset.bytes = row.bytes;
    const name = element('td', undefined, line);
    describeSite(site, finding, name);
    element('td', formatBytes(row.bytes), line);
    const share = element('td', formatPart(row.bytes / all), line);
    const bar = element('span', undefined, share);
    bar.className = 'bar';
    bar.style.width = `${Math.max(1, Math.round(60 * row.bytes / most))}px`;
    if (isGrowing) {
      const growth = found.filter((it) => it.verdict !== 'start-up').reduce((sum, it) => sum + it.growth_bytes_per_s, 0);
      element('td', growth ? formatRate(growth) : '', line);
      const badge = element('span', finding?.verdict ?? '', element('td', undefined, line));
      if (finding) { badge.className = 'badge'; badge.style.backgroundColor = VERDICTS[finding.verdict] ?? COLOURS[8]; badge.title = finding.sentence; }
    }
    [...line.cells].forEach((cell, at) => cell.classList.add(OVERVIEW[at]));
    line.tabIndex = 0;
    line.title = `${functionsOfChain(row.key).reverse().map(functionName).join('\n← ')}\n(click for the flame graph)`;
    const open = () => { zoomTo(site); show('flame'); };
    line.addEventListener('click', open);
    line.addEventListener('keydown', (event) => { if (event.key === 'Enter') open(); });
    sum += row.bytes;
    if (!hasLine && sum >= EXPLAINED * all && rows.length > 1) {
      hasLine = true;
      line.classList.add('explained');
    }
  });
  if (rest) {
    const line = element('tr', undefined, body), name = element('td', undefined, line);
    element('span', 'sites too small to be shown one by one: see the flame graph', name).className = 'where';
    element('td', formatBytes(rest.bytes), line);
    element('td', formatPart(rest.bytes / all), line);
    [...line.cells].forEach((cell, at) => cell.classList.add(OVERVIEW[at]));
    line.addEventListener('click', () => show('flame'));
  }
  const shown = Math.min(rows.length, overview.rows);
  byId('overview-count').textContent = rows.length ? `${shown === 1 && rows.length === 1 && !rest ? 'The only site explains' : `The ${shown < rows.length || rest ? `${formatCount(shown)} largest ` : `${formatCount(shown)} `}sites explain`} ${formatShare(sum / all)} of ${formatBytes(all)} ${MEASURES[state.measure]}${hasLine ? '; those above the line explain 80 %' : ''}.`
    : isWhole() && !state.search ? 'Nothing of this kind.' : 'Nothing of this kind in what is selected.';
  byId('overview-more').hidden = rows.length <= overview.rows;
}
const OVERVIEW = ['of-site', 'of-bytes', 'of-share', 'of-growth', 'of-verdict'];
// The function that is charged, its line, and who called it.
function describeSite(site, finding, place) {
  const node = siteCharged[site], at = placeOfSite(site);
  element('strong', shorten(functionName(siteFunctions[site]), 80), place);
  const where = at === NONE ? moduleOf(siteFunctions[site]) : `${shortPath(profile.files[placeFiles[at]])}:${placeLines[at]}`;
  element('span', ` ${where}`, place).className = 'where';
  for (const more of [finding?.package, finding?.type]) if (more) element('span', ` ${more}`, place).className = 'where';
  for (const [, own] of finding ? calledFrom(finding) : []) element('span', ` called by ${own}`, place);
  const code = codeOf(at);
  if (code) element('code', ` ${code.length > 70 ? `${code.slice(0, 69)}…` : code}`, place);
  const callers = [];
  for (let it = node === NONE ? NONE : nodeParents[node]; it !== NONE && callers.length < 5; it = nodeParents[it]) callers.push(shorten(functionName(nodeFunctions[it]), 36));
  if (callers.length) element('small', `← ${callers.join(' ← ')}`, place);
}
// The end of a path, which names the package: `aiohttp/web_app.py`, `src/server/handle.c`.
const shortPath = (path) => path.split('/').slice(-2).join('/');
