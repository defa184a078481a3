// What pages use to get their data.
//
//   useStore(store)                       the value, again whenever it changes
//   useGet<T>(path, query?, every?)       { data, error, loading, reload }; null as path asks nothing
//   useLive<T>(what, params)              { data, at }; frozen while the view is frozen
//   usePages<Row>(path, query, pick)      rows of a list with a cursor, more() for the next page
//   useClock(everyMs)                     renders again as time passes

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, heardAt } from './api';
import type { Query } from './api';
import { watch } from './feed';
import type { Seen } from './feed';
import { Store } from './store';

/** The view is frozen: live frames wait and are counted. */
export const frozen = new Store(false);
export const waiting = new Store(0);
frozen.watch(() => waiting.set(0));

export function useStore<T>(store: Store<T>): T {
  const [value, set] = useState(store.value);
  useEffect(() => {
    const update = (): void => set(() => store.value);
    update();
    return store.watch(update);
  }, [store]);
  return value;
}

export function useClock(everyMs: number): void {
  const [, set] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => set((n) => n + 1), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
}

export interface Loaded<T> {
  readonly data: T | null;
  readonly error: ApiError | null;
  readonly loading: boolean;
  readonly reload: () => void;
}

const problem = (error: unknown): ApiError =>
  error instanceof ApiError ? error : new ApiError(-1, String(error), 'page', 'This is a fault of the page; reload it.', {});
const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === 'AbortError';

/** Loads at once, again every `every` ms while the tab is seen, and after reload(). */
export function useGet<T>(path: string | null, query: Query = {}, every = 0): Loaded<T> {
  const [state, set] = useState<{ data: T | null; error: ApiError | null; loading: boolean; of: string }>({ data: null, error: null, loading: true, of: '' });
  const [round, again] = useState(0);
  const key = path === null ? '' : JSON.stringify([path, query]);
  const isFrozen = useStore(frozen);
  const loaded = useRef('');
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = async (): Promise<void> => {
      try {
        if (!document.hidden) {
          const data = await get<T>(path, query, abort.signal);
          set({ data, error: null, loading: false, of: key });
        }
      } catch (error) {
        if (isAbort(error)) return;
        set((old) => ({ data: old.of === key ? old.data : null, error: problem(error), loading: false, of: key }));
      }
      if (!abort.signal.aborted && every > 0 && !frozen.value) timer = setTimeout(load, every);
    };
    set((old) => (old.of === key ? old : { data: null, error: null, loading: true, of: key }));
    // A frozen view loads what it has not shown yet, and then no more.
    if (!isFrozen || loaded.current !== `${key} ${round}`) void load();
    loaded.current = `${key} ${round}`;
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, every, round, isFrozen && every > 0]);
  const reload = useCallback(() => again((n) => n + 1), []);
  return { data: state.of === key ? state.data : null, error: state.of === key ? state.error : null, loading: state.of !== key || state.loading, reload };
}

export interface Live<T> {
  readonly data: T | null;
  readonly at: number;
  readonly error: ApiError | null;
}

export function useLive<T>(what: string | null, params: Record<string, unknown> = {}): Live<T> {
  const [seen, set] = useState<{ seen: Seen; of: string } | null>(null);
  const key = what === null ? '' : JSON.stringify([what, params]);
  useEffect(() => {
    if (what === null) return undefined;
    let held: Seen | null = null;
    const stop = watch(what, params, (next) => {
      if (frozen.value) {
        held = next;
        waiting.set(waiting.value + 1);
      } else set({ seen: next, of: key });
    });
    const thawed = frozen.watch(() => {
      if (!frozen.value && held) set({ seen: held, of: key });
    });
    return () => {
      stop();
      thawed();
    };
  }, [key]);
  if (!seen || seen.of !== key) return { data: null, at: 0, error: null };
  const { data, at, error } = seen.seen;
  const refused = error ? new ApiError(-1, error.error, error.errorCode, error.resolution, error.details) : null;
  return { data: data as T | null, at, error: refused };
}

/** Rows that come one after the other, such as a tail of the log. */
export function useTail<Row>(filter: Record<string, unknown> | null, take: (rows: readonly Row[], skipped: number) => void): void {
  const key = filter === null ? '' : JSON.stringify(filter);
  const current = useRef(take);
  current.current = take;
  useEffect(() => {
    if (filter === null) return undefined;
    return watch('tail', { filter }, (seen) => {
      const rows = (seen.rows ?? []) as unknown as readonly Row[];
      if (frozen.value) waiting.set(waiting.value + rows.length);
      else if (rows.length > 0 || seen.skipped) current.current(rows, seen.skipped ?? 0);
    });
  }, [key]);
}

export interface Pages<Row, Answer> extends Loaded<Answer> {
  readonly rows: readonly Row[];
  /** The newest answer, with the totals. */
  readonly more: () => void;
  readonly hasMore: boolean;
  readonly fetching: boolean;
}

export function usePages<Row, Answer extends { readonly next: string | null }>(
  path: string | null,
  query: Query,
  pick: (answer: Answer) => readonly Row[],
  cursorName = 'cursor',
): Pages<Row, Answer> {
  const first = useGet<Answer>(path, query);
  const [rest, setRest] = useState<{ of: Answer | null; rows: readonly Row[]; next: string | null; error: ApiError | null; fetching: boolean }>({ of: null, rows: [], next: null, error: null, fetching: false });
  const mine = rest.of === first.data;
  const next = mine && first.data ? rest.next : (first.data?.next ?? null);
  const busy = useRef(false);
  const more = useCallback(() => {
    const base = first.data;
    if (!base || next === null || busy.current || path === null) return;
    busy.current = true;
    setRest((old) => ({ of: base, rows: old.of === base ? old.rows : [], next, error: null, fetching: true }));
    get<Answer>(path, { ...query, [cursorName]: next })
      .then((answer) => {
        setRest((old) => (old.of === base ? { of: base, rows: [...old.rows, ...pick(answer)], next: answer.next, error: null, fetching: false } : old));
      })
      .catch((error: unknown) => setRest((old) => (old.of === base ? { ...old, error: problem(error), fetching: false } : old)))
      .finally(() => {
        busy.current = false;
      });
  }, [first.data, next, path, JSON.stringify(query)]);
  const rows = first.data ? (mine ? [...pick(first.data), ...rest.rows] : pick(first.data)) : [];
  return { ...first, error: first.error ?? (mine ? rest.error : null), rows, more, hasMore: next !== null, fetching: mine && rest.fetching };
}

/** How long ago the hub was last heard, in ms; 0 while it is fresh. */
export function useStaleness(): number {
  useClock(1000);
  const at = useStore(heardAt);
  const age = at === 0 ? 0 : Date.now() - at;
  return age > 5000 ? age : 0;
}
