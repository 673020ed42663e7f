// Opens a page with and without DecompressionStream, as a browser of 2022 is, and prints what it says as JSON.
// usage: node packed.mjs PAGE.html   (VIEWERS: a directory with node_modules; CHROMIUM: the browser)
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const { chromium } = createRequire(`${process.env.VIEWERS}/package.json`)('playwright-core');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, timeout: 300_000, args: ['--no-sandbox', '--disable-gpu'] });
const seen = { errors: [] };
for (const which of ['today', 'old']) {
  const page = await browser.newPage();
  page.setDefaultTimeout(300_000);
  page.on('pageerror', (error) => seen.errors.push(String(error)));
  if (which === 'old') await page.addInitScript(() => { delete window.DecompressionStream; });
  await page.goto(pathToFileURL(path.resolve(process.argv[2])).href);
  await page.waitForFunction(() => window.allocsample || document.querySelector('#headline.failed'));
  seen[which] = await page.$eval('#headline', (it) => ({ text: it.textContent, bytes: Number(it.dataset.bytes ?? -1) }));
}
await browser.close();
console.log(JSON.stringify(seen));
