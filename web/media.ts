// What the browser and the user prefer: narrow screens, dark or light, single keys.

import { Store, save, saved } from './store';

const small = matchMedia('(max-width: 639px)');
export const narrow = new Store(small.matches);
small.addEventListener('change', () => narrow.set(small.matches));

export type Theme = 'system' | 'dark' | 'light';

const kept = saved('theme');
export const theme = new Store<Theme>(kept === 'dark' || kept === 'light' ? kept : 'system');
/** Counts changes of what is seen, so that charts draw again. */
export const painted = new Store(0);

function paint(): void {
  if (theme.value === 'system') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = theme.value;
  painted.set(painted.value + 1);
}

theme.watch(() => {
  save('theme', theme.value);
  paint();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint);
paint();

/** Single keys may be switched off (WCAG 2.1.4). */
export const singleKeys = new Store(saved('keys') !== 'off');
singleKeys.watch(() => save('keys', singleKeys.value ? 'on' : 'off'));
