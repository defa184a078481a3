/**
 * Checks the built package: its size, its version, that it needs nothing, and that its types and
 * entries are found by Node and by bundlers.
 */

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { publint } from 'publint';

const GZIP_BYTES_MAX = 37 * 1024;

const here = fileURLToPath(new URL('.', import.meta.url));
const read = (name) => readFileSync(here + name, 'utf8');
const problems = [];

const size = gzipSync(read('dist/signalhub.min.js'), { level: 9 }).length;
console.log(`signalhub.min.js: ${size} bytes, gzip`);
if (size > GZIP_BYTES_MAX) {
  problems.push(`signalhub.min.js has ${size} bytes, gzip; at most ${GZIP_BYTES_MAX} are meant`);
}

const { version, dependencies, scripts } = JSON.parse(read('package.json'));
const [, release] = /__version__ = "(.*)"/.exec(read('../src/signalhub/wire/release.py'));
if (version !== release.replace(/\.dev(\d+)$/, '-dev.$1')) {
  problems.push(`the version is ${version}, that of the wheel ${release}`);
}
if (dependencies || Object.keys(scripts).some((name) => name.includes('install'))) {
  problems.push('the package has dependencies, or runs something when it is installed');
}
if (/https?:/.test(read('package-lock.json').replaceAll(/"(funding|url)": .*/g, ''))) {
  problems.push('package-lock.json has addresses of downloads');
}
for (const name of ['signalhub.js', 'signalhub.min.js']) {
  if (
    /(^|[;}\n])\s*(import|export)\b[^;]*?\bfrom ?["']|(^|[;}\n])\s*import ?["'(]/.test(
      read(`dist/${name}`),
    )
  ) {
    problems.push(`${name} imports something`);
  }
}

const { messages } = await publint({ pkgDir: here, strict: true });
problems.push(...messages.map((message) => `publint: ${JSON.stringify(message)}`));

const attw = spawnSync(
  process.execPath,
  ['node_modules/@arethetypeswrong/cli/dist/index.js', '--pack', '.', '--profile', 'esm-only'],
  { cwd: here, encoding: 'utf8' },
);
if (attw.status !== 0) {
  problems.push(`attw: ${attw.stdout}${attw.stderr}`);
}

for (const problem of problems) {
  console.error(problem);
}
process.exitCode = problems.length ? 1 : 0;
