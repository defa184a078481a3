/** A queue that does not move its elements, and a heap. */

/** First in, first out. */
export class Queue<T> {
  private _items: T[] = [];
  private _head = 0;

  constructor(items: Iterable<T> = []) {
    this.set(items);
  }

  get length(): number {
    return this._items.length - this._head;
  }

  get first(): T | undefined {
    return this._items[this._head];
  }

  push(item: T): void {
    this._items.push(item);
  }

  shift(): T | undefined {
    const item = this._items[this._head];
    if (this._head < this._items.length) {
      this._items[this._head++] = undefined as T;
      if (this._head > 64 && 2 * this._head > this._items.length) {
        this.set(this);
      }
    }
    return item;
  }

  /** Replace everything. */
  set(items: Iterable<T>): void {
    this._items = [...items];
    this._head = 0;
  }

  [Symbol.iterator](): Iterator<T> {
    return this._items.slice(this._head)[Symbol.iterator]();
  }
}

/** The least element first; of two equal ones, the one with the lower `order`. */
export class Heap<T> {
  private _items: [number, number, T][] = [];

  get length(): number {
    return this._items.length;
  }

  get first(): [number, number, T] | undefined {
    return this._items[0];
  }

  push(key: number, order: number, item: T): void {
    const items = this._items;
    let at = items.push([key, order, item]) - 1;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (!this._swapped(above, at)) {
        break;
      }
      at = above;
    }
  }

  pop(): [number, number, T] | undefined {
    const items = this._items;
    const first = items[0];
    const last = items.pop();
    if (items.length && last) {
      items[0] = last;
      for (let at = 0; ; ) {
        let below = 2 * at + 1;
        if (below + 1 < items.length && this._isBefore(below + 1, below)) {
          below++;
        }
        if (below >= items.length || !this._swapped(at, below)) {
          break;
        }
        at = below;
      }
    }
    return first;
  }

  /** Keep only what is still wanted. */
  keep(isWanted: (item: T, order: number, key: number) => boolean): void {
    const items = this._items.filter(([key, order, item]) => isWanted(item, order, key));
    this._items = [];
    for (const [key, order, item] of items) {
      this.push(key, order, item);
    }
  }

  private _isBefore(one: number, other: number): boolean {
    const [a, b] = [this._items[one]!, this._items[other]!];
    return a[0] < b[0] || (a[0] === b[0] && a[1] < b[1]);
  }

  private _swapped(above: number, below: number): boolean {
    const items = this._items;
    if (!this._isBefore(below, above)) {
      return false;
    }
    [items[above], items[below]] = [items[below]!, items[above]!];
    return true;
  }
}
