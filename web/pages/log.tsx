// The log and, behind its end, the lake: one list by one cursor, the newest entry first.
//
// The address holds the filter: stream, key, type, sender, text, all (entries of every kind), from
// (a time, epoch.offset or nothing for now), live, and entry (the one that is open).

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Counts, History, HistoryEntry, HistoryRow } from '../answers';
import { ApiError, get, pathOf } from '../api';
import type { Query } from '../api';
import { useGet, useStore, useTail } from '../hooks';
import { ChoiceField, copy, Facts, quoted, SearchField, Tag, Time } from '../parts/controls';
import type { Tone } from '../parts/controls';
import { Empty, Problem, Shape } from '../parts/notices';
import { Glimpse, Payload } from '../parts/payload';
import { replaceQuery, route, to } from '../router';
import { me } from '../session';
import { Table } from '../table';
import type { Column } from '../table';
import { bytes, count, visible } from '../text';
import { full, now, parse, seconds, zone, zoneName } from '../when';
import { words } from '../words';

const ROWS_MAX = 10_000;
const PAGE = 200;
const ID_PAGES = 20;

const MARKS: Record<string, Tone> = { acked: 'good', written: 'good', delivered: 'good', handed_over: 'good', pending: 'calm', failed: 'bad', dead_lettered: 'bad', expired: 'warn', dropped: 'warn' };

function Became({ row }: { readonly row: HistoryRow }): JSX.Element {
  if (row.removed) return <Tag tone="calm">{row.removed}</Tag>;
  if (!row.became) return <span class="dim">–</span>;
  return (
    <span class="became">
      {row.became.slice(0, 4).map((one) => (
        <span key={one.recipient} title={`${one.recipient}: ${one.outcome}`}>
          <Tag tone={MARKS[one.outcome] ?? 'calm'}>{row.became?.length === 1 ? one.outcome.replaceAll('_', ' ') : ''}</Tag>
        </span>
      ))}
      {row.became.length > 4 && <span class="dim">+{row.became.length - 4}</span>}
    </span>
  );
}

function columnsOf(): readonly Column<HistoryRow>[] {
  return [
    { id: 'time', head: `Time (${zoneName()})`, width: '184px', mono: true, card: 'title', cell: (row) => <Time at={row.at} /> },
    { id: 'type', head: 'Type', width: 'minmax(110px, 1.4fr)', cell: (row) => (row.type ? visible(row.type) : <span class="dim">{row.kind.toLowerCase()}</span>) },
    { id: 'key', head: 'Key', width: 'minmax(90px, 1fr)', mono: true, cell: (row) => visible(row.key ?? '') },
    { id: 'sender', head: 'Sender', width: 'minmax(120px, 1.4fr)', mono: true, hidden: true, cell: (row) => visible(row.sender ?? '') },
    { id: 'stream', head: 'Stream', width: 'minmax(100px, 1.2fr)', mono: true, cell: (row) => (row.stream ? visible(row.stream) : <span class="dim">{row.kind.toLowerCase().startsWith('room') ? 'room' : '–'}</span>) },
    { id: 'seq', head: 'Seq', width: '72px', end: true, cell: (row) => (row.seq > 0 ? count(row.seq) : '–') },
    { id: 'offset', head: 'Offset', width: '96px', end: true, hidden: true, cell: (row) => count(row.offset) },
    { id: 'payload', head: 'Content', width: 'minmax(110px, 2.4fr)', cell: (row) => <Glimpse text={row.payload} removed={row.removed} withheld={row.withheld} /> },
    { id: 'bytes', head: 'Size', width: '60px', end: true, cell: (row) => bytes(row.bytes) },
    { id: 'became', head: 'Became', width: '104px', cell: (row) => <Became row={row} /> },
    { id: 'tier', head: 'From', width: '64px', hidden: true, cell: (row) => row.tier },
  ];
}

interface List {
  readonly of: string;
  readonly rows: readonly HistoryRow[];
  readonly next: string | null;
  readonly last: History | null;
  readonly scanned: number;
  readonly error: ApiError | null;
  readonly busy: boolean;
  readonly skipped: number;
  readonly dropped: number;
}

const nothing = (of: string): List => ({ of, rows: [], next: null, last: null, scanned: 0, error: null, busy: true, skipped: 0, dropped: 0 });

/** Where to begin: a time, or just above an entry. */
function beginning(text: string): Query {
  const position = /^(\d+:)?(\d+)\.(\d+)$/.exec(text);
  if (position) return { before: `${position[1] ?? ''}${position[2]}.${BigInt(position[3] ?? '0') + 1n}` };
  const at = parse(text) ?? (/^\d{12,}$/.test(text) ? Number(text) : null);
  return at === null ? {} : { at };
}

export function LogPage(): JSX.Element {
  const { query } = useStore(route);
  useStore(zone);
  const filter = useMemo(
    () => ({ stream: query.get('stream'), key: query.get('key'), type: query.get('type'), sender: query.get('sender'), text: query.get('text'), ...(query.get('kinds') ? { kinds: query.get('kinds') } : query.get('all') ? { kinds: 'all' } : {}) }),
    [['stream', 'key', 'type', 'sender', 'text', 'all', 'kinds'].map((name) => query.get(name)).join('\u0000')],
  );
  const from = query.get('from') ?? query.get('at') ?? '';
  const id = query.get('id');
  const isLive = query.get('live') === '1' && from === '';
  const [round, again] = useState(0);
  const key = JSON.stringify([filter, from, id, round]);
  const [list, setList] = useState<List>(() => nothing(key));
  const abort = useRef<AbortController | null>(null);

  const load = async (before: string | null): Promise<void> => {
    const mine = new AbortController();
    abort.current?.abort();
    abort.current = mine;
    setList((old) => ({ ...(old.of === key ? old : nothing(key)), busy: true, error: null }));
    try {
      const ask = (position: Query): Promise<History> => get<History>('/history', { ...filter, ...position, limit: id ? 500 : PAGE }, mine.signal);
      let answer = await ask(before === null ? beginning(from) : { before });
      // The hub knows no index of ids: some pages are looked through, then "Continue" goes on.
      for (let page = 1; id && page < ID_PAGES && answer.next !== null && !answer.rows.some((row) => row.id === id); page++) {
        const older = await ask({ before: answer.next });
        answer = { ...older, scanned: answer.scanned + older.scanned };
      }
      if (id) answer = { ...answer, rows: answer.rows.filter((row) => row.id === id) };
      setList((old) => {
        const kept = before === null || old.of !== key ? [] : old.rows;
        const all = [...kept, ...answer.rows];
        const over = Math.max(0, all.length - ROWS_MAX);
        return { of: key, rows: over > 0 ? all.slice(over) : all, next: answer.next, last: answer, scanned: (before === null ? 0 : old.scanned) + answer.scanned, error: null, busy: false, skipped: 0, dropped: (before === null ? 0 : old.dropped) + over };
      });
    } catch (error) {
      if (mine.signal.aborted) return;
      setList((old) => ({ ...old, busy: false, error: error instanceof ApiError ? error : new ApiError(-1, String(error), 'page', '', {}) }));
    }
  };

  useEffect(() => {
    void load(null);
    return () => abort.current?.abort();
  }, [key]);

  useTail<HistoryRow>(isLive ? filter : null, (rows, skipped) => {
    setList((old) => {
      const known = new Set(old.rows.slice(0, 300).map((row) => row.position));
      const added = rows.filter((row) => !known.has(row.position)).sort((a, b) => b.epoch - a.epoch || b.offset - a.offset);
      return { ...old, rows: [...added, ...old.rows].slice(0, ROWS_MAX), skipped: old.skipped + skipped };
    });
  });

  const more = (): void => {
    // An incomplete page without rows is a search: it goes on when it is told to.
    if (!list.busy && list.next !== null && !list.error && !id && list.last?.reason !== 'time') void load(list.next);
  };
  const entry = query.get('entry');
  const columns = useMemo(columnsOf, [zone.value]);
  const searched = list.last?.searchedTo;
  const place = searched ? (searched.at ? seconds(searched.at) : searched.position) : 'the end';
  const isFiltered = id !== null || Object.values(filter).some(Boolean);
  return (
    <>
      <header class="page-head">
        <h1>{words.log}</h1>
        <span class="gap" />
        <label class="check-line">
          <input type="checkbox" checked={Boolean(query.get('all'))} onChange={(event) => replaceQuery({ all: event.currentTarget.checked ? '1' : null, kinds: null })} /> {words.allEntries}
        </label>
        <label class="check-line">
          <input type="checkbox" checked={isLive} onChange={(event) => replaceQuery({ live: event.currentTarget.checked ? '1' : null, from: null })} /> {words.tail}
        </label>
        <button type="button" class="small" onClick={() => again(round + 1)}>
          Refresh
        </button>
      </header>
      <div class="filter-bar">
        <SearchField name="stream" label="Stream" placeholder="topic or address" mono />
        <SearchField name="from" label="From" placeholder="now, or a time" mono />
        <SearchField name="key" label="Key" mono />
        <SearchField name="type" label="Type" mono />
        <SearchField name="sender" label="Sender" mono />
        <SearchField name="text" label="Text" placeholder="in the content" />
      </div>
      {id && (
        <p class="notice">
          {words.onlyId(id)} <a href={to('log')}>{words.everything}</a>
        </p>
      )}
      {from !== '' && Object.keys(beginning(from)).length === 0 && <p class="notice warn">Write a time (2026-11-16 17:00:00, {zoneName()}), or a position (1.70931).</p>}
      <Problem error={list.error} retry={() => again(round + 1)} />
      <div class="log-body">
        <div class="log-list">
          {list.of !== key || (list.busy && list.rows.length === 0) ? (
            <Shape lines={14} />
          ) : (
            <Table
              name="log"
              label={words.log}
              columns={columns}
              rows={list.rows}
              rowKey={(row) => row.position}
              onOpen={(row) => replaceQuery({ entry: row.position })}
              onEnd={more}
              current={entry ?? ''}
              rowClass={(row, index) => edgeOf(list.rows[index - 1], row, list.last)}
              tools={<span class="dim totals" role="status">{list.skipped > 0 && words.notShown(list.skipped)} {list.dropped > 0 && words.forgotten(count(ROWS_MAX))} {new Set(list.rows.map((row) => row.epoch)).size > 1 && words.newEpoch}</span>}
              empty={
                list.error ? undefined : (
                  <Empty title={list.last?.complete === false ? words.nothingFound(place, count(list.scanned)) : isFiltered ? words.nothingFound(place, count(list.scanned)) : words.logEmpty} command={isFiltered ? undefined : "signalhub publish orders '{\"order\": 17}' --durable"} />
                )
              }
            />
          )}
          <div class="log-foot" role="status">
            <span>
              {words.searchedBack(place, count(list.scanned))} · {count(list.rows.length)} found
              {list.last?.reason && list.last.reason !== 'time' && list.last.reason !== 'size' ? ` · ${list.last.reason}` : ''}
            </span>
            {list.busy ? (
              <button type="button" class="small" onClick={() => { abort.current?.abort(); setList((old) => ({ ...old, busy: false })); }}>
                {words.stopSearch}
              </button>
            ) : (
              list.next !== null && list.last?.complete === false && (
                <button type="button" class="small" onClick={() => void load(list.next)}>
                  {words.continueSearch}
                </button>
              )
            )}
            {list.last?.logFirst && me.value?.features.lake && <span class="dim">{words.logEnds(list.last.logFirst)}</span>}
          </div>
        </div>
        <Rail stream={filter.stream} rows={list.rows} />
        {entry && <Entry key={entry} position={entry} onClose={() => replaceQuery({ entry: null })} />}
      </div>
    </>
  );
}

/** A line above rows where the log ends, or where it began anew. */
function edgeOf(above: HistoryRow | undefined, row: HistoryRow, last: History | null): string {
  if (last?.gaps.some((gap) => gap.epoch === row.epoch && gap.last + 1 === row.offset)) return 'edge-gap';
  if (!above) return '';
  if (above.epoch !== row.epoch) return 'edge-epoch';
  return above.tier === 'log' && row.tier === 'lake' ? 'edge-lake' : '';
}

function Rail({ stream, rows }: { readonly stream: string | null; readonly rows: readonly HistoryRow[] }): JSX.Element | null {
  const { query } = useStore(route);
  const span = query.get('span') ?? '24h';
  const hours = span === '1h' ? 1 : span === '7d' ? 168 : span === '30d' ? 720 : span === '1y' ? 8760 : 24;
  const window = useMemo(() => ({ from: Math.floor((now() - hours * 3_600_000) / 60_000) * 60_000, to: Math.ceil(now() / 60_000) * 60_000 }), [hours, stream]);
  const { data, error } = useGet<Counts>('/history/counts', { stream, ...window, buckets: 48 });
  const begin = rows[0]?.at ?? 0;
  const end = rows.at(-1)?.at ?? 0;
  const most = Math.max(1, ...(data?.buckets.map((one) => one.count) ?? []));
  return (
    <aside class="rail" aria-label={words.rail}>
      <ChoiceField name="span" label="Rail" initial="24h" choices={['1h', '24h', '7d', '30d', '1y'].map((one) => ({ value: one, text: one }))} />
      {error && <p class="dim">{error.message}</p>}
      {data && data.buckets.length === 0 && <p class="dim">{words.nothingMeasured}</p>}
      <ol>
        {[...(data?.buckets ?? [])].reverse().map((one) => (
          <li key={one.at}>
            <button type="button" class={one.at <= begin && one.until >= end ? 'seen' : ''} title={`${full(one.at)} – ${full(one.until)}: ${count(one.count)} ${data?.unit}`} aria-label={`${seconds(one.until)}: ${count(one.count)} ${data?.unit}`} onClick={() => replaceQuery({ from: full(one.until), live: null })}>
              <i style={{ width: `${((one.count / most) * 100).toFixed(1)}%` }} />
            </button>
          </li>
        ))}
      </ol>
    </aside>
  );
}

function Entry({ position, onClose }: { readonly position: string; readonly onClose: () => void }): JSX.Element {
  const found = /^(?:(\d+):)?(\d+)\.(\d+)$/.exec(position);
  const address = found ? pathOf('history', found[1] ?? '0', found[2] ?? '', found[3] ?? '') : null;
  const { data, error, reload } = useGet<HistoryEntry>(address);
  const node = useRef<HTMLElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    node.current?.focus();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <aside
      class="drawer"
      ref={node}
      tabIndex={-1}
      aria-label={`${words.openEntry} ${position}`}
      onKeyDown={(event) => {
        if (event.key === 'Escape') onClose();
      }}
    >
      <header>
        <h2>
          {words.openEntry} <span class="mono">{position}</span>
        </h2>
        <button type="button" class="quiet small" onClick={() => void copy(location.href)}>
          {words.copyLink}
        </button>
        <button type="button" class="quiet" aria-label={words.close} onClick={onClose}>
          ✕
        </button>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && <EntryFacts data={data} />}
    </aside>
  );
}

function linked(text: string | null, query: Record<string, string>): ComponentChildren {
  return text ? <a class="mono" href={to('log', query)}>{visible(text)}</a> : '–';
}

function EntryFacts({ data }: { readonly data: HistoryEntry }): JSX.Element {
  const headers = Object.entries(data.headers ?? {});
  const isTopic = data.stream !== '' && !data.stream.startsWith('@');
  return (
    <>
      <Facts
        rows={[
          ['Accepted', <Time at={data.at} />],
          ['Kind', data.kind.toLowerCase()],
          ['Type', data.type ? visible(data.type) : '–'],
          ['Stream', data.stream ? <a class="mono" href={isTopic ? to(['topics', data.stream]) : to(['actors', data.stream])}>{visible(data.stream)}</a> : '–'],
          ['Seq', data.seq > 0 ? count(data.seq) : '–'],
          ['Key', linked(data.key, { stream: data.stream, key: data.key ?? '' })],
          ['Sender', linked(data.sender, { sender: data.sender ?? '' })],
          ['Id', <span class="mono">{data.id ?? '–'}</span>],
          data.expiresAt ? ['Expires', <Time at={data.expiresAt} />] : null,
          data.deliverAt ? ['Delivered from', <Time at={data.deliverAt} />] : null,
          ['Read from', data.tier],
        ]}
      />
      <Payload text={data.payload} size={data.bytes} cut={data.cut} withheld={data.withheld} removed={data.removed} isHex={data.encoding === 'hex'} name={`${data.position}.json`} />
      {headers.length > 0 && (
        <>
          <h3>Headers</h3>
          <Facts rows={headers.map(([name, value]) => [visible(name), <span class="mono">{visible(value)}</span>] as const)} />
        </>
      )}
      {data.metadata && data.metadata !== '{}' && (
        <>
          <h3>Metadata</h3>
          <Payload text={data.metadata} size={data.metadata.length} name="metadata.json" />
        </>
      )}
      {data.dead && (
        <>
          <h3>Dead letter</h3>
          <Facts
            rows={[
              ['From', <a href={to(['subs', data.dead.stream, data.dead.subscription])}>{visible(data.dead.stream)} / {visible(data.dead.subscription)}</a>],
              ['Seq there', count(data.dead.seq)],
              ['Attempts', count(data.dead.attempts)],
              ['Reason', data.dead.reason ? visible(data.dead.reason) : '–'],
              ['First failure', <Time at={data.dead.firstFailure} />],
              ['Last failure', <Time at={data.dead.lastFailure} />],
            ]}
          />
        </>
      )}
      <h3>{words.deliveries}</h3>
      {data.deliveries.length === 0 ? (
        <p class="dim">{words.noDeliveries}</p>
      ) : (
        <ul class="names">
          {data.deliveries.map((one) => (
            <li key={`${one.recipient} ${one.generation}`}>
              <span class="mono">{visible(one.recipient)}</span>
              <span>
                <Tag tone={MARKS[one.outcome] ?? 'calm'}>{one.outcome.replaceAll('_', ' ')}</Tag> attempt {one.attempts}
                {one.settledAt && one.firstSentAt ? ` after ${Math.max(0, one.settledAt - one.firstSentAt)} ms` : ''} {one.reason && <span class="dim">{visible(one.reason)}</span>}
              </span>
            </li>
          ))}
        </ul>
      )}
      {data.related.length > 0 && (
        <>
          <h3>{words.related}</h3>
          <ul class="names">
            {data.related.map((one) => (
              <li key={`${one.kind} ${one.position}`}>
                <a class="mono" href={to('log', { entry: one.position, from: one.position })}>
                  {one.position}
                </a>
                <span>
                  {one.kind} {one.stream && visible(one.stream)} <span class="dim">{visible(one.detail)}</span>
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
      <p class="row-of-buttons">
        <button type="button" class="small" onClick={() => void copy(JSON.stringify(data, null, 2))}>
          Copy JSON
        </button>
        {isTopic && data.seq > 0 && (
          <button type="button" class="small" onClick={() => void copy(`signalhub topic read ${quoted(data.stream)} --from seq:${data.seq} --limit 1`)}>
            Copy as command
          </button>
        )}
        {me.value?.features.tryIt && data.type && (
          <a class="button small" href={to('try', { ...(isTopic ? { publish: data.stream } : { to: data.stream }), type: data.type })}>
            {words.tryIt}
          </a>
        )}
        {me.value?.features.lake && isTopic && <a class="button small" href={to('replay', { where: `topic = '${data.stream}' AND seq = ${data.seq}`, target: data.stream })}>Replay…</a>}
      </p>
    </>
  );
}
