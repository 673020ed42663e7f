// One picture of a page: node picture.mjs PAGE.html OUT.png '#what the address says' light|dark WIDTHxHEIGHT 'what to do first'
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const [, , file, out, address, scheme = 'light', size = '1360x1000', action = ''] = process.argv;
const { chromium } = createRequire(`${process.env.PLAYWRIGHT}/package.json`)('playwright-core');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] });
const [width, height] = size.split('x').map(Number);
const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme });
await page.goto(pathToFileURL(path.resolve(file)).href + address);
await page.waitForFunction(() => window.allocsample);
await page.evaluate(action);
// Let the charts draw.
await page.waitForTimeout(600);
await page.screenshot({ path: out });
await browser.close();
