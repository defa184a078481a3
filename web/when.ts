// The only file that formats or reads a time. All times are ms since 1970; all texts show their zone.
//
//   full(ms)   2026-11-16 17:32:40.178Z   or, in the local zone, 2026-11-16 23:02:40.178+05:30
//   parse(text) reads what full() writes, and shorter forms in the zone that is chosen
//   span(ms)   3 s, 5 m 12 s, 2 h 4 m

import { Store, save, saved } from './store';

export type Zone = 'utc' | 'local';

export const zone = new Store<Zone>(saved('zone') === 'local' ? 'local' : 'utc');

export function choose(next: Zone): void {
  save('zone', next);
  zone.set(next);
}

/** What a column of times is headed with. */
export function zoneName(): string {
  return zone.value === 'utc' ? 'UTC' : Intl.DateTimeFormat().resolvedOptions().timeZone;
}

const two = (n: number): string => String(n).padStart(2, '0');
const three = (n: number): string => String(n).padStart(3, '0');

interface Fields {
  readonly date: string;
  readonly time: string;
  readonly ms: string;
  readonly offset: string;
}

function fields(ms: number): Fields {
  const date = new Date(ms);
  if (zone.value === 'utc') {
    const iso = date.toISOString();
    return { date: iso.slice(0, -14), time: iso.slice(-13, -5), ms: iso.slice(-4, -1), offset: 'Z' };
  }
  const minutes = -date.getTimezoneOffset();
  const size = Math.abs(minutes);
  return {
    date: `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`,
    time: `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`,
    ms: three(date.getMilliseconds()),
    offset: `${minutes < 0 ? '-' : '+'}${two(Math.floor(size / 60))}:${two(size % 60)}`,
  };
}

const valid = (ms: number | null | undefined): ms is number => typeof ms === 'number' && Math.abs(ms) < 8.64e15;

export function full(ms: number | null | undefined): string {
  if (!valid(ms)) return '–';
  const f = fields(ms);
  return `${f.date} ${f.time}.${f.ms}${f.offset}`;
}

/** To the second, for what did not happen at a millisecond. */
export function seconds(ms: number | null | undefined): string {
  if (!valid(ms)) return '–';
  const f = fields(ms);
  return `${f.date} ${f.time}${f.offset}`;
}

/** Time of the day, for what is surely of today. */
export function clock(ms: number): string {
  const f = fields(ms);
  return f.offset === 'Z' ? `${f.time} UTC` : `${f.time} UTC${f.offset}`;
}

/** A tick of an axis; `step` is the distance of ticks in seconds. */
export function tick(atSeconds: number, step: number): string {
  const f = fields(atSeconds * 1000);
  if (step >= 86_400) return f.date.slice(5);
  if (step >= 60) return f.time === '00:00:00' ? f.date.slice(5) : f.time.slice(0, 5);
  return f.time;
}

const TEXT = /^(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?)?\s*(Z|UTC|[+-]\d\d:\d\d)?$/;

/** Reads a time; without a zone it is in the chosen one. `null` for what is none. */
export function parse(text: string): number | null {
  const found = TEXT.exec(text.trim());
  if (!found) return null;
  const [, year, month, day, hour = '0', minute = '0', second = '0', fraction = '0', offset] = found;
  const numbers = [Number(year), Number(month) - 1, Number(day), Number(hour), Number(minute), Number(second), Number(fraction.padEnd(3, '0'))] as const;
  const asUtc = Date.UTC(...numbers);
  const back = new Date(asUtc);
  const exists = back.getUTCDate() === numbers[2] && back.getUTCHours() === numbers[3] && back.getUTCMinutes() === numbers[4] && back.getUTCSeconds() === numbers[5];
  if (!exists) return null;
  if (offset === 'Z' || offset === 'UTC' || (!offset && zone.value === 'utc')) return asUtc;
  if (!offset) return new Date(...numbers).getTime();
  const sign = offset.startsWith('-') ? 1 : -1;
  return asUtc + sign * (Number(offset.slice(1, 3)) * 60 + Number(offset.slice(4, 6))) * 60_000;
}

export function span(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return '–';
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 1) return ms === 0 ? '0 ms' : `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return pair(Math.floor(s / 60), 'm', Math.floor(s % 60), 's');
  if (s < 86_400) return pair(Math.floor(s / 3600), 'h', Math.floor((s % 3600) / 60), 'm');
  return pair(Math.floor(s / 86_400), 'd', Math.floor((s % 86_400) / 3600), 'h');
}

function pair(large: number, of: string, small: number, ofSmall: string): string {
  return small === 0 ? `${large} ${of}` : `${large} ${of} ${small} ${ofSmall}`;
}

export const RANGES = { '5m': 300, '15m': 900, '1h': 3600, '6h': 21_600, '24h': 86_400, '7d': 604_800 } as const;

/** How far our clock is behind the hub's; ages are counted on the hub's. */
let ahead = 0;

export function hubTimeIs(ms: number): void {
  ahead = ms - Date.now();
}

export function now(): number {
  return Date.now() + ahead;
}

export function ago(ms: number | null | undefined): string {
  return valid(ms) ? `${span(Math.max(0, now() - ms))} ago` : '–';
}
