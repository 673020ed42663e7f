// Opens a page of `convert --to html` in Chromium without any network, uses it, and prints what it shows as JSON.
// usage: node browser.mjs PAGE.html   (PLAYWRIGHT: a directory with node_modules/playwright-core)
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

const { chromium } = createRequire(`${process.env.PLAYWRIGHT}/package.json`)('playwright-core');
const file = pathToFileURL(path.resolve(process.argv[2])).href;
const data = fs.mkdtempSync(path.join(os.tmpdir(), 'allocsample-browser-'));
const context = await chromium.launchPersistentContext(data, { executablePath: process.env.CHROMIUM, headless: true,
  viewport: { width: 1400, height: 1000 }, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run'] });
const seen = { errors: [], requests: [], dialogs: 0 };
const page = context.pages()[0];
page.on('console', (message) => { if (message.type() === 'error') seen.errors.push(message.text()); });
page.on('pageerror', (error) => seen.errors.push(String(error)));
page.on('dialog', (dialog) => { seen.dialogs += 1; dialog.dismiss(); });
await context.route(() => true, (route) => {
  if (route.request().url() === file) return route.continue();
  seen.requests.push(route.request().url());
  return route.abort();
});
try {
  await page.goto(file);
  seen.boxes = await page.$$eval('#totals div', (all) => Object.fromEntries(all.map((it) => [it.dataset.name, Number(it.dataset.value)])));
  const shown = () => page.$eval('#shown', (it) => Number(it.dataset.bytes));
  const choose = async (measure) => { await page.selectOption('#measure', measure); return shown(); };
  seen.allocated = await shown();
  seen.live = await choose('live');
  seen.peak = await choose('peak');
  seen.freed = await choose('freed');
  await choose('allocated');
  // Tables: every grouping has the same sum.
  await page.click('#tab-table');
  seen.functions = Object.fromEntries(await page.evaluate(() => allocsample.rows().map((row) => [row.name, row.bytes])));
  seen.sums = {};
  for (const by of ['function', 'site', 'module', 'kind', 'thread']) {
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
  for (const key of ['1', '2', '3', '4', '5', '6']) await page.keyboard.press(key);
  seen.view = await page.evaluate(() => allocsample.state.view);
  await page.keyboard.press('d');
  await page.keyboard.press('1');
  seen.frames = await page.locator('#flame rect').count();
  await page.locator('#flame g.frame').nth(1).click();
  await page.emulateMedia({ media: 'print' });
  seen.images = await page.locator('img').count();
} catch (error) {
  seen.errors.push(String(error));
}
await context.close();
fs.rmSync(data, { recursive: true, force: true });
console.log(JSON.stringify(seen));
