// Texts that strangers wrote, shown as they are. JSON is read token by token: no number is ever
// converted, no member reordered, and what cannot be seen is written out.
//
//   tokens(json)  →  tokens of the indented text, or null if it is no JSON
//   visible(text) →  the text with control and direction characters spelt out
//   hex(text), count(n), bytes(n), rate(n), percent(x)

export type Kind = 'name' | 'string' | 'number' | 'word' | 'mark';

export interface Token {
  readonly kind: Kind;
  readonly text: string;
}

// Control characters, direction marks, invisible joiners, tags: each can make a text look like another.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const spelt = (char: string): string => `\u27e8U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}\u27e9`;

export function visible(text: string): string {
  return text.replace(UNSEEN, spelt);
}

const SCAN = /[ \t\r\n]+|"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/y;
const DEPTH_MAX = 200;

/** Splits JSON text into the tokens of its indented form, or returns null if it is no JSON. */
export function tokens(json: string): Token[] | null {
  const out: Token[] = [];
  const open: string[] = [];
  let expects: 'value' | 'first' | 'name' | 'colon' | 'more' | 'end' | 'member' = 'value';
  let at = 0;
  const mark = (text: string): void => void out.push({ kind: 'mark', text });
  const line = (): string => `\n${'  '.repeat(open.length)}`;
  while (at < json.length) {
    SCAN.lastIndex = at;
    const found = SCAN.exec(json);
    if (!found) return null;
    const text = found[0];
    at += text.length;
    const char = text.charAt(0);
    if (' \t\r\n'.includes(char)) continue;
    const isValue = !'}],:'.includes(char);
    if (expects === 'colon') {
      if (char !== ':') return null;
      mark(': ');
      expects = 'value';
    } else if (expects === 'name' || expects === 'member') {
      if (char === '}' && expects === 'member') {
        open.pop();
        mark('}');
        expects = open.length > 0 ? 'more' : 'end';
      } else if (char === '"') {
        mark(line());
        out.push({ kind: 'name', text: visible(text) });
        expects = 'colon';
      } else return null;
    } else if ((expects === 'value' || expects === 'first') && isValue) {
      if (expects === 'first') mark(line());
      if (char === '{' || char === '[') {
        if (open.length >= DEPTH_MAX) return null;
        open.push(char);
        mark(char);
        expects = char === '{' ? 'member' : 'first';
      } else {
        out.push({ kind: char === '"' ? 'string' : 'tfn'.includes(char) ? 'word' : 'number', text: visible(text) });
        expects = open.length > 0 ? 'more' : 'end';
      }
    } else if (expects === 'first' && char === ']') {
      open.pop();
      mark(']');
      expects = open.length > 0 ? 'more' : 'end';
    } else if (expects === 'more') {
      const inside = open[open.length - 1];
      if (char === ',') {
        mark(',');
        if (inside === '{') expects = 'name';
        else {
          mark(line());
          expects = 'value';
        }
      } else if ((char === '}' && inside === '{') || (char === ']' && inside === '[')) {
        open.pop();
        mark(line() + char);
        expects = open.length > 0 ? 'more' : 'end';
      } else return null;
    } else return null;
  }
  return expects === 'end' ? out : null;
}

/** The indented text of JSON, or the text itself if it is none. */
export function indented(json: string): string {
  return tokens(json)?.map((one) => one.text).join('') ?? visible(json);
}

/** Sixteen bytes to a line, for what is no JSON. */
export function hex(text: string, max = 4096): string {
  const all = new TextEncoder().encode(text).subarray(0, max);
  const lines: string[] = [];
  for (let at = 0; at < all.length; at += 16) {
    const part = [...all.subarray(at, at + 16)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const chars = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${codes.padEnd(47)}  ${chars}`);
  }
  return lines.join('\n');
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const grouped = (n: number): string => whole.format(n).replaceAll(',', '\u202f');

/** A count, with thin spaces: 16 461. */
export function count(n: number | null | undefined): string {
  return typeof n === 'number' && Number.isFinite(n) ? grouped(n) : '–';
}

/** A rate per second, as precise as it is useful. */
export function rate(n: number | null | undefined): string {
  if (typeof n !== 'number' || !Number.isFinite(n)) return '–';
  if (n === 0) return '0';
  if (Math.abs(n) < 10) return n.toFixed(n < 0.1 ? 2 : 1);
  return Math.abs(n) < 1000 ? n.toFixed(n < 100 ? 1 : 0) : grouped(n);
}

export function bytes(n: number | null | undefined): string {
  if (typeof n !== 'number' || !Number.isFinite(n)) return '–';
  if (n < 1024) return `${Math.round(n)} B`;
  let value = n;
  for (const unit of ['KiB', 'MiB', 'GiB', 'TiB']) {
    value /= 1024;
    if (value < 1024 || unit === 'TiB') return `${value < 100 ? value.toFixed(1) : Math.round(value)} ${unit}`;
  }
  return '–';
}

export function percent(x: number | null | undefined): string {
  return typeof x === 'number' && Number.isFinite(x) ? `${(x * 100).toFixed(x > 0.1 ? 0 : 1)} %` : '–';
}
