// Who we are. The token is in this tab only (sessionStorage), is sent in a header only, and is renewed
// at half of its life. When it ends the page keeps what it shows and asks for another.
//
//   me.value       what GET /me said, or null before the first answer
//   access.value   'unknown' | 'open' | 'needed' | 'ended' | 'unreachable'
//   may('manage', 'orders') → true if the hub would not refuse it; the hub decides again

import { ApiError, get, post } from './api';
import type { MeAnswer, RefreshedAnswer } from './answers';
import { Store } from './store';
import { hubTimeIs } from './when';

export type Access = 'unknown' | 'open' | 'needed' | 'ended' | 'unreachable';

const KEY = 'signalhub.token';

export const me = new Store<MeAnswer | null>(null);
export const access = new Store<Access>('unknown');
export const token = new Store<string | null>(read());

let renewal: ReturnType<typeof setTimeout> | undefined;

function read(): string | null {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keep(next: string | null): void {
  try {
    if (next === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, next);
  } catch {
    // Then the token lasts as long as the page.
  }
  token.set(next);
}

/** Asks the hub who we are; throws nothing. */
export async function enter(next: string | null = token.value): Promise<ApiError | null> {
  const before = token.value;
  keep(next);
  try {
    const answer = await get<MeAnswer>('/me');
    hubTimeIs(answer.serverTime);
    me.set(answer);
    access.set('open');
    renewLater(answer.expiresAt, answer.serverTime);
    return null;
  } catch (error) {
    const refused = error instanceof ApiError ? error : new ApiError(0, String(error), '', '', {});
    if (refused.status === 0) access.set(me.value ? access.value : 'unreachable');
    else if (me.value) {
      keep(before);
      access.set('ended');
    } else {
      if (refused.status === 401) keep(null);
      access.set('needed');
    }
    return refused;
  }
}

export function leave(): void {
  clearTimeout(renewal);
  keep(null);
  me.set(null);
  access.set('needed');
}

/** The hub has refused our token. */
export function ended(): void {
  if (access.value === 'open') access.set('ended');
}

function renewLater(expiresAt: number | null, now: number): void {
  clearTimeout(renewal);
  if (expiresAt === null || token.value === null) return;
  // Timers of hidden tabs may be late by a minute.
  const half = Math.max(5_000, (expiresAt - now) / 2);
  renewal = setTimeout(renew, Math.min(half, 2 ** 30));
}

async function renew(): Promise<void> {
  try {
    const answer = await post<RefreshedAnswer>('/session/refresh', {});
    keep(answer.token);
    await enter(answer.token);
  } catch {
    renewal = setTimeout(renew, 30_000);
  }
}

/** Is an operation allowed, over a stream where it has one? What one owns needs no permission. */
export function may(verb: string, over?: string, owner = ''): boolean {
  const answer = me.value;
  if (!answer) return false;
  if (owner !== '' && owner === answer.subject) return true;
  return answer.operations.some((one) => {
    if (one === verb || one === '*') return true;
    if (!one.startsWith(`${verb}:`)) return false;
    return over === undefined || matches(one.slice(verb.length + 1), over);
  });
}

function matches(pattern: string, name: string): boolean {
  const parts = pattern.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'));
  return new RegExp(`^${parts.join('.*')}$`, 's').test(name);
}
