/** The examples of the guide run. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import * as sdk from '../src/node.js';
import { TestHub, root } from './support/hub.js';

const page = readFileSync(`${root}docs/guides/javascript.md`, 'utf8');
const blocks = page
  .split('```js\n')
  .slice(1)
  .map((rest) => rest.split('```')[0]!);

let hub: TestHub;
let me: sdk.Client;

before(async () => {
  hub = await TestHub.start();
  me = await sdk.connect(hub.url, '@(demo/alice)');
});

after(async () => {
  await me.close();
  await hub.stop();
});

const AsyncFunction = (async () => undefined).constructor as new (
  ...source: string[]
) => (...given: unknown[]) => Promise<void>;

test('there are examples', () => assert.ok(blocks.length > 8));

for (const [index, block] of blocks.entries()) {
  test(`example ${index + 1}: ${block.trim().split('\n')[0]}`, async () => {
    const shown: unknown[] = [];
    const names = {
      ...sdk,
      me,
      url: hub.url,
      console: { log: (...words: unknown[]) => shown.push(words) },
    };
    await new AsyncFunction(...Object.keys(names), block)(...Object.values(names));
    // Each shows something, unless it shows nothing at all.
    if (/for await|receipt|reply/.test(block) && block.includes('console.log')) {
      assert.ok(shown.length);
    }
  });
}
