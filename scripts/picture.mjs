// One picture of a page: node picture.mjs PAGE.html OUT.png 'what to do first' light|dark
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const [, , file, out, action, scheme] = process.argv;
const { chromium } = createRequire(`${process.env.PLAYWRIGHT}/package.json`)('playwright-core');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] });
const page = await browser.newPage({ viewport: { width: 1360, height: 1000 }, colorScheme: scheme });
await page.goto(pathToFileURL(path.resolve(file)).href);
await page.evaluate(action);
// Let transitions end.
await page.waitForTimeout(600);
await page.screenshot({ path: out });
await browser.close();
