// Where in the page we are: everything after '#'. No topic, key or address ever reaches a proxy's log.
//
//   #/topics/orders?range=1h   →  { path: ['topics', 'orders'], query: URLSearchParams }
//
// go(href) adds to the history, replace(...) does not. Each part of a path is percent-encoded.

import { Store } from './store';

export interface Route {
  readonly path: readonly string[];
  readonly query: URLSearchParams;
}

export const route = new Store<Route>(read());

function read(): Route {
  const raw = location.hash.replace(/^#\/?/, '');
  const cut = raw.indexOf('?');
  const path = cut < 0 ? raw : raw.slice(0, cut);
  return {
    path: path.split('/').filter(Boolean).map(decoded),
    query: new URLSearchParams(cut < 0 ? '' : raw.slice(cut + 1)),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The href of a page: to('topics', 'orders') is '#/topics/orders'. Empty values are left out of the query. */
export function to(path: string | readonly string[], query: Record<string, string | number | null | undefined> = {}): string {
  const parts = typeof path === 'string' ? [path] : path;
  const given = Object.entries(query).filter(([, value]) => value !== '' && value !== null && value !== undefined);
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${parts.filter(Boolean).map(encodeURIComponent).join('/')}${search ? `?${search}` : ''}`;
}

export function go(href: string): void {
  location.hash = href.replace(/^#/, '');
}

/** Changes parts of the query and keeps the page; such a change is no step of the history. */
export function replaceQuery(changes: Record<string, string | null>): void {
  const { path, query } = route.value;
  const next = Object.fromEntries(query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === '') delete next[key];
    else next[key] = value;
  }
  history.replaceState(null, '', to(path, next));
  route.set(read());
}

addEventListener('hashchange', () => route.set(read()));

/** Takes a token out of the address before anything else sees it. */
export function tokenFromAddress(): string | null {
  const found = /(?:^#|[?&])t=([^&]+)/.exec(location.hash);
  if (!found?.[1]) return null;
  const rest = location.hash.replace(/(^#|[?&])t=[^&]+&?/, '$1').replace(/[?&]$/, '');
  history.replaceState(null, '', rest === '#' || rest === '' ? '#/' : rest);
  route.set(read());
  return decoded(found[1]);
}
