// Opens a page of `convert --to html` in Chromium without any network, uses it, and prints what it shows as JSON.
// usage: node browser.mjs PAGE.html   (VIEWERS: a directory with node_modules; CHROMIUM: the browser)
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const { chromium } = createRequire(`${process.env.VIEWERS}/package.json`)('playwright-core');
const file = pathToFileURL(path.resolve(process.argv[2])).href;
const data = fs.mkdtempSync(path.join(os.tmpdir(), 'allocsample-browser-'));
const context = await chromium.launchPersistentContext(data, { executablePath: process.env.CHROMIUM, headless: true, timeout: 300_000,
  viewport: { width: 1400, height: 1000 }, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run'] });
// Machines that test may have much else to do.
context.setDefaultTimeout(300_000);
const seen = { errors: [], requests: [], dialogs: 0 };
const page = context.pages()[0];
page.on('console', (message) => { if (message.type() === 'error') seen.errors.push(message.text()); });
page.on('pageerror', (error) => seen.errors.push(String(error)));
page.on('dialog', (dialog) => { seen.dialogs += 1; dialog.dismiss(); });
await context.route(() => true, (route) => {
  if (['about:blank', file].includes(route.request().url().split('#')[0])) return route.continue();
  seen.requests.push(route.request().url());
  return route.abort();
});
// What a reader of the page sees of its state.
const look = (tab) => tab.evaluate(() => {
  const visible = (what) => [...document.querySelectorAll(what)].filter((it) => it.checkVisibility()).map((it) => it.textContent);
  return { ...allocsample.state, shown: visible('#shown'), callers: visible('#flame .caller'), boxes: visible('#flame .box'), rows: visible('#table tr') };
});
// Each step makes an address that shows the same in another tab, and that back and forward come to again.
async function followLinks() {
  // A new tab: the browser forgets steps after some fifty.
  const tab = await context.newPage();
  tab.on('pageerror', (error) => seen.errors.push(String(error)));
  await open(file, tab);
  const steps = [
    async () => tab.click('#tab-flame'),
    // A comparison starts with it.
    ...(seen.start.measure === 'allocated' ? [] : [async () => tab.selectOption('#measure', 'allocated')]),
    async () => tab.locator('#flame .box').nth(3).click(),
    async () => tab.evaluate(() => allocsample.select(allocsample.state.from + 20, allocsample.state.to - 40)),
    async () => { await tab.click('#tab-table'); await tab.selectOption('#by', 'module'); },
    async () => tab.click('#table th.of-objects'),
    async () => tab.fill('#search', process.argv[3] ?? 'main'),
  ];
  const views = [], addresses = [], lengths = [];
  const note = async () => { views.push(await look(tab)); addresses.push(await tab.evaluate(() => location.href)); lengths.push(await tab.evaluate(() => history.length)); };
  await note();
  for (const step of steps) { await step(); await note(); }
  seen.links = { addresses: addresses.map((it) => it.split('#')[1] ?? ''), differing: [], backwards: [], forwards: [] };
  const compare = async (list, at) => { const now = JSON.stringify(await look(tab)); if (now !== JSON.stringify(views[at])) list.push([addresses[at].split('#')[1], now, JSON.stringify(views[at])]); };
  // A step may be several of the browser's: a tab and a table.
  const go = (by) => tab.evaluate((it) => new Promise((resolve) => { addEventListener('popstate', () => setTimeout(resolve, 0), { once: true }); history.go(it); }), by);
  for (let at = views.length - 2; at >= 0; at--) { await go(lengths[at] - lengths[at + 1]); await compare(seen.links.backwards, at); }
  for (let at = 1; at < views.length; at++) { await go(lengths[at] - lengths[at - 1]); await compare(seen.links.forwards, at); }
  for (let at = 0; at < views.length; at++) {
    await tab.goto('about:blank');
    await open(addresses[at], tab);
    await compare(seen.links.differing, at);
  }
  // One that somebody has changed shows what it can.
  await tab.goto('about:blank');
  await open(`${file}#tab=none&show=x&from=-5&to=abc&zoom=zz&by=constructor&sort=__proto__&find=%3Cimg%3E`, tab);
  seen.links.odd = await tab.evaluate(() => [allocsample.state.view, allocsample.state.measure, allocsample.state.from]);
  await tab.close();
}
const open = async (address, tab = page) => {
  await tab.goto(address);
  await tab.waitForFunction(() => window.allocsample);
};
try {
  // The page starts with memory held, and with the answer.
  await open(file);
  seen.start = await page.evaluate(() => ({ view: allocsample.state.view, measure: allocsample.state.measure }));
  seen.start.shown = await page.$eval('#shown', (it) => Number(it.dataset.bytes));
  seen.headline = await page.$eval('#headline', (it) => ({ ...it.dataset, text: it.textContent }));
  seen.coverage = await page.$eval('#coverage', (it) => (it.hidden ? null : Number(it.dataset.share)));
  seen.overview = await page.evaluate(() => allocsample.overview());
  seen.overviewRows = await page.$$eval('#overview tbody tr', (all) => all.map((it) => Number(it.dataset.bytes)));
  seen.boxes = await page.$$eval('#totals div', (all) => Object.fromEntries(all.map((it) => [it.dataset.name, Number(it.dataset.value)])));
  const shown = () => page.$eval('#shown', (it) => Number(it.dataset.bytes));
  const choose = async (measure) => { await page.selectOption('#measure', measure); return shown(); };
  seen.allocated = await choose('allocated');
  seen.live = await choose('live');
  seen.peak = await choose('peak');
  seen.freed = await choose('freed');
  // The chart goes as high as the peak, however short that was.
  seen.chartAtPeak = await page.evaluate(() => allocsample.charted().flat().filter(([at]) => at === allocsample.about.peak_s)
    .reduce((sum, [, level]) => sum + level, 0));
  seen.chartHighest = await page.evaluate(() => Math.max(...allocsample.charted().map((levels) => Math.max(...levels.map(([, level]) => level)))));
  await choose('allocated');
  // Tables: every grouping has the same sum.
  await page.click('#tab-table');
  seen.functions = Object.fromEntries(await page.evaluate(() => allocsample.rows().map((row) => [row.name, row.bytes])));
  seen.sums = {};
  for (const by of await page.$$eval('#by option', (all) => all.map((it) => it.value))) {
    await page.selectOption('#by', by);
    seen.sums[by] = await page.evaluate(() => allocsample.rows().reduce((sum, row) => sum + row.bytes, 0));
  }
  await page.selectOption('#by', 'function');
  await page.click('#table th:first-child');
  await page.click('#table th:first-child');
  seen.sortedByName = await page.$$eval('#table tbody tr:not(.total) td:first-child', (all) => all.map((it) => it.firstChild.textContent));
  // The heat map's table: rows and columns add up to the same.
  await page.click('#tab-heat');
  const heatRows = () => page.$$eval('#heat-table tbody tr', (all) => all.map((it) => Number(it.dataset.bytes)));
  seen.heat = await heatRows();
  // Its rows are the table of modules, its columns that of types and sizes, and the functions of each module that of functions.
  seen.heatIsTables = await page.evaluate(() => {
    const near = (sums, by, wanted = () => true) => {
      allocsample.by(by);
      const rows = allocsample.rows().filter((row) => wanted(row) && row.bytes > 0);
      return rows.length === sums.size && rows.every((row) => Math.abs(sums.get(row.key) - row.bytes) < 0.01);
    };
    const whole = allocsample.heatSums();
    const result = { modules: near(whole.rows, 'module'), kinds: near(whole.columns, 'kind'), functions: true };
    for (const module of whole.rows.keys()) {
      allocsample.drill(module);
      result.functions &&= near(allocsample.heatSums().rows, 'function', (row) => allocsample.moduleOfRow(row) === module);
    }
    allocsample.drill(null);
    allocsample.by('function');
    return result;
  });
  await page.click('#heat-table tbody tr:first-child');
  seen.heatOfModule = await heatRows();
  // A drag over the first half of the timeline selects it; both halves together are the whole.
  const box = await page.locator('#timeline').boundingBox();
  const left = box.x + 76, width = box.width - 96, y = box.y + 100;
  await page.mouse.move(left + 2, y);
  await page.mouse.down();
  await page.mouse.move(left + width / 4, y, { steps: 5 });
  await page.mouse.move(left + width / 2, y, { steps: 5 });
  await page.mouse.up();
  await page.waitForFunction(() => allocsample.state.to < allocsample.state.from + 200);
  seen.half = await shown();
  seen.range = await page.evaluate(() => [allocsample.state.from, allocsample.state.to]);
  await page.evaluate(() => allocsample.select(0, allocsample.state.to));
  const first = await shown();
  await page.evaluate(() => allocsample.select(allocsample.state.to + 1, 1e9));
  seen.halves = first + await shown();
  // Keys: Escape shows everything again, / goes to the search, which filters.
  await page.keyboard.press('Escape');
  seen.afterEscape = await shown();
  await page.keyboard.press('/');
  await page.keyboard.type(process.argv[3] ?? 'main');
  seen.found = await shown();
  await page.keyboard.press('Escape');
  // Every tab by its key; the heaps add up to the whole, each in its own track.
  const tabs = await page.$$eval('#tabs button', (all) => all.map((it) => it.id.slice(4)));
  seen.views = [];
  for (let i = 0; i < tabs.length; i++) {
    await page.keyboard.press(String((i + 1) % 10));
    seen.views.push(await page.evaluate(() => allocsample.state.view));
  }
  seen.tabs = tabs;
  seen.heaps = {};
  for (const heap of await page.$$eval('#heap option', (all) => all.map((it) => it.value).filter((it) => it >= 0))) {
    await page.selectOption('#heap', heap);
    seen.heaps[await page.$eval('#heap', (it) => it.selectedOptions[0].textContent)] = await shown();
  }
  await page.keyboard.press('Escape');
  // Cards, collections and sources say what the command says.
  await page.click('#tab-leaks');
  await page.selectOption('#verdict', 'all');
  seen.cards = await page.$$eval('.card', (all) => all.map((it) => [it.dataset.verdict, Number(it.dataset.live), it.querySelector('.sentence').textContent]));
  seen.leakHeader = await page.$eval('#totals [data-name=leaks]', (it) => [Number(it.dataset.value), it.textContent]);
  // The button of a card shows what it is about.
  seen.cardFrames = [];
  for (let i = 0; i < Math.min(5, seen.cards.length); i++) {
    await page.locator('.card button').nth(i).click();
    seen.cardFrames.push([await page.evaluate(() => allocsample.state.view), await shown()]);
    await page.keyboard.press('Escape');
    await page.click('#tab-leaks');
    await page.selectOption('#verdict', 'all');
  }
  await page.evaluate(() => allocsample.setMeasure('allocated'));
  if (tabs.includes('collections')) {
    await page.click('#tab-collections');
    seen.collections = await page.$$eval('#gc-table tbody tr', (all) => all.map((it) => [it.cells[0].textContent, it.cells[1].textContent, Number(it.dataset.collections), Number(it.dataset.total)]));
  }
  if (tabs.includes('sources')) {
    await page.click('#tab-sources');
    seen.source = await page.$$eval('#source tr.hot', (all) => all.map((it) => [it.cells[0].textContent, Number(it.dataset.own), it.cells[3].textContent]));
    seen.path = await page.$eval('#path', (it) => it.textContent);
  }
  if (tabs.includes('changes')) {
    await page.click('#tab-changes');
    seen.difference = await page.$eval('#change-total', (it) => Number(it.dataset.difference));
    seen.changes = await page.$$eval('#change-table tbody tr', (all) => all.map((it) => [Number(it.dataset.difference), it.dataset.significant === 'true']));
    seen.changeFrames = await page.locator('#change-flame .box').count();
  }
  if (tabs.includes('changes') && tabs.includes('ledger')) {
    await page.click('#tab-ledger');
    seen.residentDifference = await page.$eval('#ledger-total', (it) => Number(it.dataset.difference));
    seen.ledgerChanges = await page.$$eval('#ledger-changes tbody tr', (all) => all.map((it) => [it.cells[0].textContent, Number(it.dataset.difference), it.dataset.verdict]));
  }
  await page.keyboard.press('d');
  await page.click('#tab-flame');
  seen.frames = await page.locator('#flame .box').count();
  await followLinks();
  await page.emulateMedia({ media: 'print' });
  // Elements that only a name could have brought in.
  seen.foreign = await page.locator('img, b, u, main script, header script').count();
} catch (error) {
  seen.errors.push(String(error));
}
await context.close();
fs.rmSync(data, { recursive: true, force: true });
console.log(JSON.stringify(seen));
