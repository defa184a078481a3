// Keys that work everywhere: / and Ctrl-K search, g and a letter go to a page, '.' freezes, ? lists them.
// Lists have their own (table.tsx). Single keys do nothing in fields, and can be switched off.

import { frozen } from './hooks';
import { singleKeys } from './media';
import { go, to } from './router';
import { Store } from './store';

export interface Place {
  readonly key: string;
  readonly path: string;
}

export const PLACES: readonly Place[] = [
  { key: 'o', path: '' },
  { key: 'a', path: 'actors' },
  { key: 't', path: 'topics' },
  { key: 's', path: 'subs' },
  { key: 'l', path: 'log' },
  { key: 'd', path: 'letters' },
  { key: 'r', path: 'rooms' },
  { key: 'c', path: 'hosts' },
  { key: 'k', path: 'lake' },
  { key: 'y', path: 'try' },
  { key: 'h', path: 'health' },
];

/** What is open above the page. */
export const overlay = new Store<'search' | 'keys' | null>(null);

let afterG = false;
let forget: ReturnType<typeof setTimeout> | undefined;

const isField = (target: EventTarget | null): boolean => target instanceof HTMLElement && target.matches('input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]');

addEventListener('keydown', (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    overlay.set('search');
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target) || document.querySelector('dialog[open]')) return;
  if (!singleKeys.value) return;
  if (afterG) {
    afterG = false;
    const place = PLACES.find((one) => one.key === event.key);
    if (place) {
      event.preventDefault();
      event.stopPropagation();
      go(to(place.path));
      return;
    }
  }
  if (event.key === 'g') {
    afterG = true;
    clearTimeout(forget);
    forget = setTimeout(() => {
      afterG = false;
    }, 1500);
    event.preventDefault();
  } else if (event.key === '/') {
    event.preventDefault();
    overlay.set('search');
  } else if (event.key === '.') {
    event.preventDefault();
    frozen.set(!frozen.value);
  } else if (event.key === '?') {
    event.preventDefault();
    overlay.set('keys');
  }
}, { capture: true });
