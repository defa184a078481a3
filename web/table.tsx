// A list of any length: rows of one height, at most 60 of them in the document, whose nodes are used
// again while scrolling (key = index % pool). Below 640 px each row is a card.
//
//   <Table name="topics" label="Topics" columns={[{ id, head, width, cell }]} rows={rows} … />
//
// Keys while it has the focus: j k ↓ ↑ Home End move, Enter opens, Space selects, c copies the row.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useStore } from './hooks';
import { narrow } from './media';
import { copy, download } from './parts/controls';
import { save, saved } from './store';
import { words } from './words';

export interface Column<Row> {
  readonly id: string;
  readonly head: string;
  /** A track of CSS grid, such as '120px' or 'minmax(160px, 2fr)'. */
  readonly width: string;
  readonly cell: (row: Row) => ComponentChildren;
  readonly end?: boolean;
  readonly mono?: boolean;
  /** The name the list is sorted by when this head is pressed. */
  readonly sort?: string;
  /** Shown unless the user chooses otherwise. */
  readonly hidden?: boolean;
  /** On a card: its title, a line (the default), or left out. */
  readonly card?: 'title' | 'line' | 'none';
}

interface Props<Row> {
  readonly name: string;
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  readonly rows: readonly Row[];
  readonly total?: number;
  readonly rowKey: (row: Row) => string;
  readonly onOpen?: (row: Row) => void;
  readonly onEnd?: () => void;
  readonly sort?: string;
  readonly onSort?: (by: string) => void;
  readonly selected?: ReadonlySet<string>;
  readonly onSelect?: (keys: ReadonlySet<string>) => void;
  readonly rowClass?: (row: Row, index: number) => string;
  readonly empty?: ComponentChildren;
  readonly tools?: ComponentChildren;
  /** All rows of the filter, for the export. */
  readonly everything?: () => Promise<readonly Row[]>;
  readonly current?: string;
}

const ROW = 32;
const LINE = 22;
const POOL_MAX = 60;
const OVERSCAN = 6;

export function Table<Row>(props: Props<Row>): JSX.Element {
  const { name, columns, rows, rowKey, selected, onSelect } = props;
  const isNarrow = useStore(narrow);
  const [chosen, setChosen] = useState<readonly string[]>(() => choice(name, columns));
  const shown = columns.filter((one) => chosen.includes(one.id) && !(isNarrow && one.card === 'none'));
  const lines = shown.filter((one) => one.card !== 'title').length;
  const height = isNarrow ? 42 + Math.ceil(lines / 2) * LINE * 2 : ROW;
  const scroller = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(0);
  const wantsFocus = useRef(false);
  const pending = useRef(false);

  useLayoutEffect(() => {
    const node = scroller.current;
    if (!node) return undefined;
    const measure = (): void => setView((old) => (old.top === node.scrollTop && old.height === node.clientHeight ? old : { top: node.scrollTop, height: node.clientHeight }));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    return () => observer.disconnect();
  }, []);

  const visible = Math.ceil(view.height / height) + 1;
  const pool = Math.min(POOL_MAX, visible + 2 * OVERSCAN);
  const first = Math.max(0, Math.min(Math.floor(view.top / height) - OVERSCAN, rows.length - pool));
  const last = Math.min(rows.length, first + pool);

  useEffect(() => {
    if (rows.length > 0 && last > rows.length - pool) props.onEnd?.();
  }, [last, rows.length, pool, props.onEnd]);

  useEffect(() => {
    if (!wantsFocus.current) return;
    const row = scroller.current?.querySelector<HTMLElement>(`[data-index="${active}"]`);
    if (row) {
      wantsFocus.current = false;
      row.focus({ preventScroll: true });
    }
  });

  const onScroll = (): void => {
    if (pending.current) return;
    pending.current = true;
    requestAnimationFrame(() => {
      pending.current = false;
      const node = scroller.current;
      if (node) setView({ top: node.scrollTop, height: node.clientHeight });
    });
  };

  const move = (index: number): void => {
    const node = scroller.current;
    const next = Math.max(0, Math.min(rows.length - 1, index));
    if (!node || rows.length === 0) return;
    const head = isNarrow ? 0 : ROW;
    const top = next * height;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + height + head > node.scrollTop + node.clientHeight) node.scrollTop = top + height + head - node.clientHeight;
    wantsFocus.current = true;
    setActive(next);
    setView({ top: node.scrollTop, height: node.clientHeight });
  };

  const toggle = (row: Row): void => {
    if (!onSelect || !selected) return;
    const next = new Set(selected);
    if (!next.delete(rowKey(row))) next.add(rowKey(row));
    onSelect(next);
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || !target.dataset['index']) return;
    const row = rows[active];
    const acts: Record<string, () => void> = {
      j: () => move(active + 1),
      ArrowDown: () => move(active + 1),
      k: () => move(active - 1),
      ArrowUp: () => move(active - 1),
      PageDown: () => move(active + visible - 2),
      PageUp: () => move(active - visible + 2),
      Home: () => move(0),
      End: () => move(rows.length - 1),
      Enter: () => row !== undefined && props.onOpen?.(row),
      ' ': () => row !== undefined && toggle(row),
      c: () => row !== undefined && void copy(JSON.stringify(row, null, 2)),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };

  const template = [onSelect ? '32px' : '', ...shown.map((one) => one.width)].filter(Boolean).join(' ');
  const widths = shown.reduce((sum, one) => sum + Number(/\d+/.exec(one.width)?.[0] ?? 80) + 12, onSelect ? 56 : 12);
  const all = rows.length > 0 && selected !== undefined && rows.every((row) => selected.has(rowKey(row)));
  const items = [];
  for (let index = first; index < last; index++) {
    const row = rows[index] as Row;
    const key = rowKey(row);
    items.push(
      <div
        key={index % pool}
        class={`row ${props.onOpen ? 'opens' : ''} ${props.current === key ? 'current' : ''} ${selected?.has(key) ? 'selected' : ''} ${props.rowClass?.(row, index) ?? ''}`}
        role="row"
        aria-rowindex={index + 2}
        aria-selected={selected ? selected.has(key) : undefined}
        data-index={index}
        tabIndex={index === Math.min(active, rows.length - 1) ? 0 : -1}
        style={{ transform: `translateY(${index * height}px)`, height: `${height}px` }}
        onFocus={() => setActive(index)}
        onClick={(event) => {
          if ((event.target as HTMLElement).closest('a, button, input, label') || String(getSelection()) !== '') return;
          props.onOpen?.(row);
        }}
      >
        {onSelect && (
          <span role="cell" class="check">
            <input type="checkbox" tabIndex={-1} aria-label={words.select} checked={selected?.has(key) ?? false} onChange={() => toggle(row)} />
          </span>
        )}
        {shown.map((one) => (
          <span key={one.id} role="cell" class={`cell ${one.end ? 'end' : ''} ${one.mono ? 'mono' : ''} ${one.card === 'title' ? 'title' : ''}`} data-label={one.head}>
            {one.cell(row)}
          </span>
        ))}
      </div>,
    );
  }

  return (
    <div class={`table-frame ${isNarrow ? 'cards' : ''}`}>
      <div class="table-tools">
        <div class="table-own-tools">{props.tools}</div>
        <TableMenu {...props} chosen={chosen} choose={setChosen} />
      </div>
      {rows.length === 0 && props.empty !== undefined ? (
        props.empty
      ) : (
        <div class="table" role="table" aria-label={props.label} aria-rowcount={(props.total ?? rows.length) + 1} ref={scroller} onScroll={onScroll} onKeyDown={onKeyDown} style={{ '--columns': template, '--width': `${widths}px` }}>
          <div role="rowgroup" class="table-head">
            <div role="row" class="row" aria-rowindex={1}>
              {onSelect && (
                <span role="columnheader" class="check">
                  <input type="checkbox" aria-label={words.selectAll} checked={all} onChange={() => onSelect(new Set(all ? [] : rows.map(rowKey)))} />
                </span>
              )}
              {shown.map((one) => (
                <span key={one.id} role="columnheader" class={`cell ${one.end ? 'end' : ''}`} aria-sort={one.sort && props.sort === one.sort ? 'descending' : undefined}>
                  {one.sort && props.onSort ? (
                    <button type="button" class="sort" onClick={() => props.onSort?.(one.sort ?? '')}>
                      {one.head}
                      {props.sort === one.sort ? ' ↓' : ''}
                    </button>
                  ) : (
                    one.head
                  )}
                </span>
              ))}
            </div>
          </div>
          <div role="rowgroup" class="table-body" style={{ height: `${rows.length * height}px` }}>
            {items}
          </div>
        </div>
      )}
    </div>
  );
}

function choice<Row>(name: string, columns: readonly Column<Row>[]): readonly string[] {
  const kept = saved(`columns.${name}`)?.split(',') ?? [];
  const known = kept.filter((id) => columns.some((one) => one.id === id));
  return known.length > 0 ? known : columns.filter((one) => !one.hidden).map((one) => one.id);
}

interface MenuProps<Row> extends Props<Row> {
  readonly chosen: readonly string[];
  readonly choose: (ids: readonly string[]) => void;
}

function TableMenu<Row>({ name, columns, rows, chosen, choose, everything }: MenuProps<Row>): JSX.Element {
  const menu = useRef<HTMLDetailsElement>(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const close = (event: Event): void => {
      const node = menu.current;
      if (!node?.open) return;
      if (event instanceof KeyboardEvent ? event.key === 'Escape' : !node.contains(event.target as Node)) {
        node.open = false;
        if (event instanceof KeyboardEvent) node.querySelector('summary')?.focus();
      }
    };
    addEventListener('pointerdown', close);
    addEventListener('keydown', close);
    return () => {
      removeEventListener('pointerdown', close);
      removeEventListener('keydown', close);
    };
  }, []);
  const set = (id: string): void => {
    const next = columns.map((one) => one.id).filter((one) => (one === id ? !chosen.includes(id) : chosen.includes(one)));
    if (next.length === 0) return;
    save(`columns.${name}`, next.join(','));
    choose(next);
  };
  const exported = async (): Promise<void> => {
    setBusy(true);
    try {
      const taken = everything ? await everything() : rows;
      download(`${name}.jsonl`, taken.map((row) => JSON.stringify(row)).join('\n') + '\n');
    } finally {
      setBusy(false);
    }
  };
  const label = useMemo(() => words.tableMenu, []);
  return (
    <details class="menu" ref={menu}>
      <summary class="button quiet" aria-label={label} title={label}>
        ⋯
      </summary>
      <div class="menu-list">
        <fieldset>
          <legend>{words.columns}</legend>
          {columns.map((one) => (
            <label key={one.id}>
              <input type="checkbox" checked={chosen.includes(one.id)} onChange={() => set(one.id)} /> {one.head || one.id}
            </label>
          ))}
        </fieldset>
        <button type="button" class="quiet" onClick={() => void copy(JSON.stringify(rows, null, 2))}>
          {words.copyJson}
        </button>
        <button type="button" class="quiet" disabled={busy} onClick={() => void exported()}>
          {busy ? words.exporting : words.exportRows}
        </button>
      </div>
    </details>
  );
}
