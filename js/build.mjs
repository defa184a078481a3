/**
 * Builds the package into `dist/`: one readable module, a small one, one for Node, and the types.
 * With `--tests`, the tests into `build/test` instead, because Node 20 reads no TypeScript.
 */

import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { spawnSync } from 'node:child_process';
import * as esbuild from 'esbuild';

const here = fileURLToPath(new URL('.', import.meta.url));
const common = {
  absWorkingDir: here,
  bundle: true,
  format: 'esm',
  target: 'es2022',
  legalComments: 'none',
  logLevel: 'warning',
};

async function buildTests() {
  rmSync(`${here}build/test`, { recursive: true, force: true });
  const names = readdirSync(`${here}test`).filter((name) => name.endsWith('.test.ts'));
  await esbuild.build({
    ...common,
    entryPoints: names.map((name) => `test/${name}`),
    outdir: 'build/test',
    platform: 'node',
    splitting: true,
    packages: 'external',
    sourcemap: 'inline',
  });
}

async function buildPackage() {
  rmSync(`${here}dist`, { recursive: true, force: true });
  mkdirSync(`${here}dist`);
  const browser = { ...common, entryPoints: ['src/index.ts'], platform: 'browser' };
  await Promise.all([
    esbuild.build({ ...browser, outfile: 'dist/signalhub.js' }),
    esbuild.build({
      ...browser,
      outfile: 'dist/signalhub.min.js',
      minify: true,
      // Names that begin with an underscore are nobody else's.
      mangleProps: /^_/,
    }),
    esbuild.build({
      ...common,
      entryPoints: ['src/node.ts'],
      platform: 'node',
      outfile: 'dist/signalhub.node.js',
    }),
  ]);
  const types = spawnSync(
    process.execPath,
    ['node_modules/typescript/bin/tsc', '--project', 'tsconfig.types.json'],
    { cwd: here, stdio: 'inherit' },
  );
  process.exitCode = types.status ?? 1;
}

await (process.argv.includes('--tests') ? buildTests() : buildPackage());
