/**
 * The life of a page: hidden, frozen, kept for going back, shown again.
 *
 * Timers of hidden pages run late, so whenever the page may have slept, the connection is looked at
 * at once.
 */

export interface Sleeper {
  /** It may have slept: check the connection, or make a new one without waiting. */
  woke(): void;
  /** It is kept for going back: leave without a word until it is shown again. */
  left(): void;
}

/** Follow the page, if there is one; returns a function that ends it. */
export function followPage(sleeper: Sleeper): () => void {
  const page = globalThis as unknown as Partial<Window & typeof globalThis>;
  const { document } = page;
  if (!document?.addEventListener || !page.addEventListener) {
    return () => undefined;
  }
  const woke = () => {
    if (document.visibilityState !== 'hidden') {
      sleeper.woke();
    }
  };
  const left = (event: Event) => {
    if ((event as PageTransitionEvent).persisted) {
      sleeper.left();
    }
  };
  const controller = new AbortController();
  const options = { signal: controller.signal };
  for (const type of ['visibilitychange', 'resume']) {
    document.addEventListener(type, woke, options);
  }
  for (const type of ['online', 'pageshow']) {
    page.addEventListener(type, woke, options);
  }
  page.addEventListener('pagehide', left, options);
  return () => controller.abort();
}

const SUFFIX = 'signalhub.suffix';

/**
 * An address of this tab's own: the given one with a random suffix, which stays the same while the
 * tab is open. A hub has one connection for each address.
 */
export function addressPerTab(address: string): string {
  const name = `${SUFFIX} ${address}`;
  let stored: Storage | undefined;
  try {
    stored = globalThis.sessionStorage;
  } catch {
    // Sandboxed frames, and browsers that keep nothing, have none: then it is new with each load.
  }
  let suffix = stored?.getItem(name);
  if (!suffix) {
    suffix = Math.random().toString(36).slice(2, 10).padEnd(8, '0');
    stored?.setItem(name, suffix);
  }
  return address.replace(/\)$/, `-${suffix})`);
}
