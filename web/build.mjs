// Builds the dashboard into src/signalhub/web/static, byte for byte the same from the same sources.
//
//   node build.mjs           write the files
//   node build.mjs --check   compare them with what is there, write nothing
//
// The manifest has the SHA-256 of every file, and one of all sources: of the lines
// "HASH  PATH\n" of every source, sorted by path. tests/unit/test_web_assets.py reads it without Node.

import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = dirname(HERE);
const TARGET = join(ROOT, 'src', 'signalhub', 'web', 'static');
const CLIENT = join(ROOT, 'js', 'src', 'index.ts');
const SHIPPED = ['preact', 'uplot'];
const OPTIONS = {
  absWorkingDir: HERE,
  bundle: true,
  write: false,
  format: 'esm',
  target: ['es2022', 'chrome120', 'firefox121', 'safari17.4'],
  minify: true,
  charset: 'utf8',
  legalComments: 'none',
  logLevel: 'warning',
  outdir: TARGET,
  entryNames: '[name].[hash]',
  chunkNames: '[name].[hash]',
  assetNames: '[name].[hash]',
};

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const hashed = (name, bytes) => name.replace('.', `.${sha256(bytes).slice(0, 8).toUpperCase()}.`);

function* filesOf(folder) {
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      if (entry.name !== 'node_modules') yield* filesOf(path);
    } else if (!entry.name.endsWith('.md')) yield path;
  }
}

function sourcesHash() {
  const paths = [...filesOf(HERE)];
  if (existsSync(CLIENT)) paths.push(...filesOf(dirname(CLIENT)));
  const lines = paths
    .map((path) => [relative(ROOT, path).replaceAll('\\', '/'), sha256(readFileSync(path))])
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([path, hash]) => `${hash}  ${path}\n`);
  return sha256(lines.join(''));
}

async function bundled(options) {
  const { outputFiles } = await build({ ...OPTIONS, ...options });
  return outputFiles.map((file) => [relative(TARGET, file.path), Buffer.from(file.contents)]);
}

async function made() {
  const files = new Map();
  // The client for JavaScript is one file, for the page "Try it" and for pages of others.
  let client = '';
  if (existsSync(CLIENT)) {
    const [[, bytes]] = await bundled({ entryPoints: { signalhub: CLIENT }, mangleProps: /^_/ });
    client = hashed('signalhub.js', bytes);
    files.set(client, bytes);
  }
  const built = await bundled({
    entryPoints: ['app.tsx', 'style.css'],
    splitting: true,
    jsx: 'automatic',
    jsxImportSource: 'preact',
    define: { CLIENT_FILE: JSON.stringify(client) },
  });
  for (const [name, bytes] of built) files.set(name, bytes);
  const icon = readFileSync(join(HERE, 'icon.svg'));
  files.set(hashed('icons.svg', icon), icon);

  const named = (start, end) => [...files.keys()].find((one) => one.startsWith(start) && one.endsWith(end));
  const page = readFileSync(join(HERE, 'index.html'), 'utf8')
    .replace('{icon}', named('icons.', '.svg'))
    .replace('{style}', named('style.', '.css'))
    .replace('{app}', named('app.', '.js'));
  files.set('index.html', Buffer.from(page));
  files.set('LICENSES.txt', Buffer.from(licenses()));
  const manifest = {
    sources: sourcesHash(),
    app: named('app.', '.js'),
    style: named('style.', '.css'),
    client,
    files: Object.fromEntries([...files].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, bytes]) => [name, sha256(bytes)])),
  };
  files.set('manifest.json', Buffer.from(`${JSON.stringify(manifest, null, 2)}\n`));
  return files;
}

function licenses() {
  const parts = SHIPPED.map((name) => {
    const folder = join(HERE, 'node_modules', name);
    const { version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
  });
  return `The dashboard contains these packages.\n\n${parts.join('\n\n')}`;
}

function compare(files) {
  const wrong = [];
  for (const [name, bytes] of files) {
    const path = join(TARGET, name);
    if (!existsSync(path) || !readFileSync(path).equals(bytes)) wrong.push(name);
  }
  if (existsSync(TARGET)) wrong.push(...readdirSync(TARGET).filter((name) => !files.has(name)));
  if (wrong.length > 0) {
    console.error(`The built dashboard is out of date: ${wrong.join(', ')}. Run make web and commit the result.`);
    process.exit(1);
  }
}

const files = await made();
if (process.argv.includes('--check')) compare(files);
else {
  rmSync(TARGET, { recursive: true, force: true });
  mkdirSync(TARGET, { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(TARGET, name), bytes);
}
const size = (names) => (names.reduce((sum, name) => sum + gzipSync(files.get(name), { level: 9 }).length, 0) / 1024).toFixed(1);
const served = [...files.keys()].filter((name) => !['manifest.json', 'LICENSES.txt'].includes(name));
const first = served.filter((name) => name === 'index.html' || /^(app|style)\./.test(name));
console.log(`First load ${size(first)} KiB gzip, everything ${size(served)} KiB gzip.`);
