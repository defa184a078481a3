// Small things that every page is made of: commands to copy, times, tags, ranges, search fields.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { useClock, useStore } from '../hooks';
import { route, replaceQuery, to } from '../router';
import { Store } from '../store';
import { ago, full, RANGES, span, zone } from '../when';
import { words } from '../words';

/** What was done last, for those who do not see it: read out, and shown for a moment. */
export const said = new Store('');
let silence: ReturnType<typeof setTimeout> | undefined;

export function tell(text: string): void {
  clearTimeout(silence);
  said.set(text);
  silence = setTimeout(() => said.set(''), 4000);
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Insecure origins have no clipboard.
    const area = document.createElement('textarea');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  tell(words.copied);
}

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function Command({ text }: { readonly text: string }): JSX.Element {
  return (
    <span class="command">
      <code>{text}</code>
      <button type="button" class="quiet small" onClick={() => void copy(text)} aria-label={`${words.copyCommand}: ${text}`}>
        {words.copy}
      </button>
    </span>
  );
}

/** A word of a shell, quoted if it has to be. */
export function quoted(word: string): string {
  return /^[\w./:=+@%-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function Time({ at, date = true }: { readonly at: number | null | undefined; readonly date?: boolean }): JSX.Element {
  useStore(zone);
  if (typeof at !== 'number') return <span class="dim">–</span>;
  const text = full(at);
  return (
    <time dateTime={new Date(at).toISOString()} title={text}>
      {date ? text : text.slice(11)}
    </time>
  );
}

/** How long ago something was; counts on by itself. */
export function Ago({ at }: { readonly at: number | null | undefined }): JSX.Element {
  useClock(1000);
  useStore(zone);
  if (typeof at !== 'number') return <span class="dim">–</span>;
  return <span title={full(at)}>{ago(at)}</span>;
}

export type Tone = 'good' | 'warn' | 'bad' | 'calm';
const SIGNS: Record<Tone, string> = { good: '●', warn: '▲', bad: '✖', calm: '○' };

/** A state: a sign and a word, never colour alone. */
export function Tag({ tone, children }: { readonly tone: Tone; readonly children: ComponentChildren }): JSX.Element {
  return (
    <span class={`tag ${tone}`}>
      <i aria-hidden="true">{SIGNS[tone]}</i> {children}
    </span>
  );
}

/** A text field that changes the query of the address a moment after the last key. */
export function SearchField({ name, label, placeholder, mono = false }: { readonly name: string; readonly label: string; readonly placeholder?: string; readonly mono?: boolean }): JSX.Element {
  const { query } = useStore(route);
  const given = query.get(name) ?? '';
  const [text, setText] = useState(given);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const written = useRef(given);
  useEffect(() => {
    if (given !== written.current) {
      written.current = given;
      setText(given);
    }
  }, [given]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const apply = (next: string): void => {
    clearTimeout(timer.current);
    written.current = next;
    replaceQuery({ [name]: next });
  };
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="search"
        class={mono ? 'mono' : ''}
        value={text}
        placeholder={placeholder}
        autoComplete="off"
        spellcheck={false}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => apply(next), 300);
        }}
        onKeyDown={(event) => event.key === 'Enter' && apply(event.currentTarget.value)}
      />
    </label>
  );
}

export interface Choice {
  readonly value: string;
  readonly text: string;
}

/** A choice that is kept in the query of the address. */
export function ChoiceField({ name, label, choices, initial = '' }: { readonly name: string; readonly label: string; readonly choices: readonly Choice[]; readonly initial?: string }): JSX.Element {
  const { query } = useStore(route);
  return (
    <label class="field">
      <span>{label}</span>
      <select value={query.get(name) ?? initial} onChange={(event) => replaceQuery({ [name]: event.currentTarget.value === initial ? null : event.currentTarget.value })}>
        {choices.map((one) => (
          <option key={one.value} value={one.value}>
            {one.text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Links that filter a list: all, behind, blocked … */
export function Filters({ name, choices }: { readonly name: string; readonly choices: readonly Choice[] }): JSX.Element {
  const { query } = useStore(route);
  const current = query.get(name) ?? '';
  return (
    <div class="filters" role="group">
      {choices.map((one) => (
        <button key={one.value} type="button" aria-pressed={current === one.value} onClick={() => replaceQuery({ [name]: one.value })}>
          {one.text}
        </button>
      ))}
    </div>
  );
}

export function Ranges({ initial = '15m' }: { readonly initial?: string }): JSX.Element {
  const { query } = useStore(route);
  const current = query.get('range') ?? initial;
  return (
    <div class="filters" role="group" aria-label={words.range}>
      {Object.keys(RANGES).map((one) => (
        <button key={one} type="button" aria-pressed={current === one} onClick={() => replaceQuery({ range: one === initial ? null : one })}>
          {one}
        </button>
      ))}
    </div>
  );
}

/** Tabs of a page; each is an address of its own. */
export function Tabs({ tabs, current }: { readonly tabs: readonly { readonly path: readonly string[]; readonly text: string }[]; readonly current: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={words.tabs}>
      {tabs.map((one) => (
        <a key={one.text} href={to(one.path)} aria-current={one.path.join('/') === current ? 'page' : undefined}>
          {one.text}
        </a>
      ))}
    </nav>
  );
}

/** How much of a limit is used; what is nearly used up is coloured, unless it is progress. */
export function Meter({ used, limit, label, isProgress = false }: { readonly used: number; readonly limit: number; readonly label: string; readonly isProgress?: boolean }): JSX.Element {
  const share = limit > 0 ? Math.min(1, used / limit) : 0;
  const tone = isProgress ? '' : share > 0.95 ? 'bad' : share > 0.85 ? 'warn' : '';
  return (
    <span class={`meter ${tone}`} role="img" aria-label={label}>
      {share > 0 && <i style={{ width: `${(share * 100).toFixed(1)}%` }} />}
    </span>
  );
}

export function Stat({ label, value, note, href, tone, stale }: { readonly label: string; readonly value: ComponentChildren; readonly note?: ComponentChildren | undefined; readonly href?: string; readonly tone?: Tone | undefined; readonly stale?: boolean }): JSX.Element {
  return (
    <div class={`stat ${stale ? 'stale' : ''}`}>
      <dt>{label}</dt>
      <dd class={tone ?? ''}>{href ? <a href={href}>{value}</a> : value}</dd>
      {note !== undefined && <dd class="note">{note}</dd>}
    </div>
  );
}

/** A list of names and values. */
export function Facts({ rows }: { readonly rows: readonly (readonly [string, ComponentChildren] | null)[] }): JSX.Element {
  return (
    <dl class="facts">
      {rows.map((one) =>
        one === null ? null : (
          <div key={one[0]}>
            <dt>{one[0]}</dt>
            <dd>{one[1] ?? '–'}</dd>
          </div>
        ),
      )}
    </dl>
  );
}

export function spanOfSeconds(s: number | null | undefined): string {
  return s === null || s === undefined ? '–' : span(s * 1000);
}
