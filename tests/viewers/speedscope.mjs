// Opens a profile in speedscope (npm's speedscope, in Chromium, without a network), lets it write what it has read, and prints
// the sums of that as JSON. The file that it writes is made from its own model of calls, not from the one that it read.
// usage: node speedscope.mjs PROFILE   (VIEWERS: a directory with node_modules; CHROMIUM: the browser)
import fs from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const { chromium } = createRequire(`${process.env.VIEWERS}/package.json`)('playwright-core');
const app = path.join(process.env.VIEWERS, 'node_modules/speedscope/dist/release/index.html');
const file = path.resolve(process.argv[2]);
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'allocsample-speedscope-'));
const script = path.join(scratch, 'profile.js');
const text = fs.readFileSync(file).toString('base64');
fs.writeFileSync(script, `speedscope.loadFileFromBase64(${JSON.stringify(path.basename(file))}, ${JSON.stringify(text)})`);
const context = await chromium.launchPersistentContext(path.join(scratch, 'browser'), { executablePath: process.env.CHROMIUM,
  headless: true, acceptDownloads: true, timeout: 300_000, viewport: { width: 1400, height: 800 },
  args: ['--no-sandbox', '--disable-background-networking', '--no-first-run', '--use-angle=swiftshader', '--enable-unsafe-swiftshader'] });
context.setDefaultTimeout(300_000);
const seen = { errors: [] };
const page = context.pages()[0];
page.on('pageerror', (error) => seen.errors.push(String(error)));
page.on('dialog', (dialog) => { seen.errors.push(dialog.message()); dialog.dismiss(); });
await context.route((url) => url.protocol !== 'file:', (route) => route.abort());
try {
  await page.goto(`${pathToFileURL(app).href}#localProfilePath=${script}`);
  // The toolbar says which profile of how many is shown as soon as there is one.
  await page.waitForFunction(() => /Left Heavy/.test(document.body.innerText) && !/^Loading/.test(document.title) && document.title !== 'speedscope');
  seen.title = await page.title();
  const [download] = await Promise.all([page.waitForEvent('download'), page.keyboard.press('Control+s')]);
  const copy = path.join(scratch, 'copy.json');
  await download.saveAs(copy);
  const { profiles } = JSON.parse(fs.readFileSync(copy, 'utf8'));
  seen.profiles = profiles.map((profile) => ({ name: profile.name, unit: profile.unit, total: profile.endValue - profile.startValue,
    last: profile.events.at(-1)?.at ?? profile.startValue }));
} catch (error) {
  seen.errors.push(String(error));
}
await context.close();
fs.rmSync(scratch, { recursive: true, force: true });
console.log(JSON.stringify(seen));
