// A value that several parts of the page watch. The only shared state there is; hooks.ts reads it.

export class Store<T> {
  #value: T;
  readonly #watchers = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const watcher of [...this.#watchers]) watcher();
  }

  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** What the user chose for this browser. Storage may be refused; then a choice lasts as long as the page. */
export function saved(key: string): string | null {
  try {
    return localStorage.getItem(`signalhub.${key}`);
  } catch {
    return null;
  }
}

export function save(key: string, value: string): void {
  try {
    localStorage.setItem(`signalhub.${key}`, value);
  } catch {
    // Private windows may refuse; nothing depends on it.
  }
}
