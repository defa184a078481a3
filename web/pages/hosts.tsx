// Durable actors: hosts, calls with their steps, alarms, and what failed for good.

import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Call, CallRow, Calls, CallStep, Host, HostRows, Hosts } from '../answers';
import { pathOf, post } from '../api';
import { useGet, useStore } from '../hooks';
import { Ago, ChoiceField, quoted, SearchField, Tabs, Tag, Time } from '../parts/controls';
import type { Tone } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Empty, Problem, Shape } from '../parts/notices';
import { Payload } from '../parts/payload';
import { go, route, to } from '../router';
import { Table } from '../table';
import type { Column } from '../table';
import { count, visible } from '../text';
import { now, span } from '../when';
import { words } from '../words';

/** When a deadline is; what is late says so. */
const untilThen = (at: number): string => (at > now() ? `in ${span(at - now())}` : `${span(now() - at)} ago`);

const TABS = [
  { path: ['hosts'], text: words.hosts },
  { path: ['calls'], text: words.calls },
  { path: ['alarms'], text: words.alarms },
  { path: ['failed'], text: words.failed },
];

function Head({ current, children }: { readonly current: string; readonly children?: preact.ComponentChildren }): JSX.Element {
  return (
    <header class="page-head">
      <h1>{words.durable}</h1>
      <Tabs tabs={TABS} current={current} />
      <span class="gap" />
      {children}
    </header>
  );
}

interface Missing {
  readonly silent: readonly string[];
  readonly away?: readonly string[];
  readonly failed: Readonly<Record<string, string>>;
}

function Silence({ silent, away, failed }: Missing): JSX.Element | null {
  const wrong = Object.entries(failed).map(([host, why]) => `${host} (${why})`);
  if (silent.length === 0 && (away ?? []).length === 0 && wrong.length === 0) return null;
  return (
    <p class="notice warn" role="status">
      {silent.length > 0 && words.silent(silent.join(', '))} {away && away.length > 0 && words.awayHosts(away.join(', '))}{' '}
      {wrong.length > 0 && visible(words.failedHosts(wrong.join(', ')))}
    </p>
  );
}

const HOST_TONES: Record<Host['state'], Tone> = { present: 'good', away: 'calm', silent: 'warn' };
// Since the start of the host.
const COUNTERS: readonly (readonly [string, string])[] = [
  ['requests', 'Requests'],
  ['request_errors', 'Errors'],
  ['alarms', 'Alarms'],
  ['timeouts', 'Timeouts'],
  ['dead', 'Failed'],
  ['turns', 'Turns'],
];

export function HostsPage(): JSX.Element {
  const { data, error, reload } = useGet<Hosts>('/hosts', {}, 5000);
  const columns = useMemo<readonly Column<Host>[]>(
    () => [
      { id: 'host', head: 'Host', width: 'minmax(110px, 2fr)', card: 'title', mono: true, cell: (row) => visible(row.host) },
      { id: 'state', head: 'State', width: '124px', cell: (row) => <Tag tone={HOST_TONES[row.state]}>{row.state === 'away' && row.awaySince ? `away ${span(now() - row.awaySince)}` : row.state}</Tag> },
      { id: 'kinds', head: 'Kinds', width: 'minmax(110px, 2fr)', cell: (row) => row.kinds.join(', ') || '–' },
      { id: 'waiting', head: 'Waiting', width: '68px', end: true, cell: (row) => count(row.waiting) },
      { id: 'oldest', head: 'Oldest', width: '76px', end: true, cell: (row) => (row.oldestAt ? span(now() - row.oldestAt) : '–') },
      ...COUNTERS.map(([name, head]) => ({ id: name, head, width: '66px', end: true, cell: (row: Host) => count(row.counters[name]) })),
      { id: 'moves', head: 'Moves', width: '60px', end: true, hidden: true, cell: (row) => count(Object.values(row.moves).reduce((sum, n) => sum + n, 0)) },
    ],
    [],
  );
  return (
    <>
      <Head current="hosts" />
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && (
        <>
          <Silence silent={data.silent} failed={data.failed} />
          <Table name="hosts" label={words.hosts} columns={columns} rows={data.hosts} rowKey={(row) => row.host} onOpen={(row) => go(to('calls', { host: row.host }))} empty={<Empty title={words.noHosts} command="signalhub actors run examples.shop:Order --name shop-1" />} />
        </>
      )}
    </>
  );
}

const OPEN_COLUMNS: readonly Column<CallRow>[] = [
  { id: 'age', head: 'Age', width: '90px', end: true, cell: (row) => (row.at ? span(now() - row.at) : '–') },
  { id: 'deadline', head: 'Deadline', width: '110px', end: true, cell: (row) => (row.deadline ? untilThen(row.deadline) : '–') },
];
const OPEN_STATES = ['stored', 'sent', 'accepted', 'waiting', 'retrying', 'offloaded', 'answered'];

export function CallsPage(): JSX.Element {
  const { query } = useStore(route);
  const state = query.get('state') ?? 'open';
  const asked = { state, text: query.get('text'), actor: query.get('actor'), host: query.get('host'), limit: 200 };
  const id = query.get('id');
  useEffect(() => {
    if (id) go(to(['calls', id]));
  }, [id]);
  const older = Number(query.get('older') ?? 0) * 1000;
  const { data, error, reload, loading } = useGet<Calls>('/calls', asked, state === 'open' ? 5000 : 0);
  const columns = useMemo<readonly Column<CallRow>[]>(
    () => [
      { id: 'call', head: 'Call', width: '230px', mono: true, cell: (row) => <a href={to(['calls', row.call])} title={row.call}>{visible(row.call.length > 28 ? `…${row.call.slice(-26)}` : row.call)}</a> },
      { id: 'caller', head: 'From', width: 'minmax(120px, 1.6fr)', mono: true, cell: (row) => visible(row.caller ?? '–') },
      { id: 'target', head: 'To', width: 'minmax(120px, 1.6fr)', mono: true, card: 'title', cell: (row) => visible(row.target ?? '–') },
      { id: 'method', head: 'Method', width: 'minmax(90px, 1fr)', mono: true, cell: (row) => visible(row.method ?? '–') },
      { id: 'state', head: 'State', width: '116px', cell: (row) => <Tag tone={row.state === 'failed' ? 'bad' : OPEN_STATES.includes(row.state) || row.state === 'deferred' ? 'calm' : 'good'}>{row.state}</Tag> },
      ...(state === 'open' ? OPEN_COLUMNS : []),
      { id: 'ended', head: 'Ended', width: '184px', mono: true, hidden: state === 'open', cell: (row) => <Time at={row.endedAt} /> },
      { id: 'host', head: 'Host', width: '100px', mono: true, cell: (row) => row.host ?? '–' },
    ],
    [state],
  );
  return (
    <>
      <Head current="calls">
        <button type="button" class="small" onClick={reload}>
          Refresh
        </button>
      </Head>
      <Problem error={error} retry={reload} />
      {data && <Silence silent={data.silent} away={data.away} failed={data.failed} />}
      {loading && <Shape lines={10} />}
      {!loading && data && (
        <Table
          name={`calls-${state}`}
          label={words.calls}
          columns={columns}
          rows={data.rows.filter((row) => older === 0 || (row.at !== null && now() - row.at >= older))}
          rowKey={(row) => `${row.call} ${row.host ?? ''}`}
          onOpen={(row) => go(to(['calls', row.call]))}
          empty={<Empty title={words.noCalls} command="signalhub actors calls" />}
          tools={
            <>
              <SearchField name="text" label="Call id" mono />
              <SearchField name="actor" label="Actor" placeholder="order/17" mono />
              <ChoiceField name="state" label="State" initial="open" choices={[{ value: 'open', text: 'open' }, { value: 'finished', text: 'executed lately' }, { value: 'ended', text: 'ended, from the log' }]} />
              <ChoiceField name="older" label="Older than" choices={[{ value: '', text: 'any age' }, { value: '5', text: '5 s' }, { value: '30', text: '30 s' }, { value: '300', text: '5 m' }]} />
            </>
          }
        />
      )}
    </>
  );
}

export function CallPage(): JSX.Element {
  const { path } = useStore(route);
  const id = path[1] ?? '';
  const { data, error, reload } = useGet<Call>(pathOf('calls', id), {}, 5000);
  return (
    <>
      <header class="page-head">
        <h1 class="mono">
          <a class="up" href={to('calls')}>{words.calls}</a> {visible(id)}
        </h1>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && (
        <>
          <Silence silent={data.silent} away={data.away} failed={data.failed} />
          <Timeline steps={data.steps} />
          {Object.keys(data.known).length > 0 && (
            <section class="panel">
              <h2>What hosts know</h2>
              {Object.entries(data.known).map(([host, known]) => (
                <div key={host}>
                  <h3 class="mono">{visible(host)}</h3>
                  <Payload text={JSON.stringify(known)} size={JSON.stringify(known).length} withheld={data.withheld} name={`${id}.json`} />
                </div>
              ))}
            </section>
          )}
          {data.steps.length === 0 && Object.keys(data.known).length === 0 && <Empty title="Neither a host nor the log knows this call." command={`signalhub actors calls ${quoted(id)}`} />}
        </>
      )}
    </>
  );
}

interface Bar {
  readonly call: string;
  readonly text: string;
  readonly from: number;
  readonly until: number | null;
  readonly outcome: string | null;
  readonly depth: number;
}

function barsOf(steps: readonly CallStep[]): Bar[] {
  const bars = new Map<string, Bar>();
  for (const step of steps) {
    const old = bars.get(step.call);
    const isEnd = step.what === 'answered' || (step.what === 'executed' && step.outcome !== null);
    bars.set(step.call, {
      call: step.call,
      text: old?.text ?? `${step.target ?? step.caller ?? '?'} ${step.method ?? ''}`,
      from: Math.min(old?.from ?? step.at, step.at),
      until: isEnd ? step.at : (old?.until ?? null),
      outcome: isEnd ? (step.outcome ?? old?.outcome ?? null) : (old?.outcome ?? null),
      depth: Math.max(old?.depth ?? 0, Math.max(0, step.chain.length - 1)),
    });
  }
  return [...bars.values()].sort((a, b) => a.from - b.from);
}

function Timeline({ steps }: { readonly steps: readonly CallStep[] }): JSX.Element | null {
  if (steps.length === 0) return null;
  const bars = barsOf(steps);
  const begin = Math.min(...steps.map((one) => one.at));
  const end = Math.max(begin + 1, ...steps.map((one) => one.at));
  const share = (at: number): string => `${(((at - begin) / (end - begin)) * 100).toFixed(2)}%`;
  return (
    <>
      <section class="panel">
        <h2>
          Calls <span class="dim">{span(end - begin)} in all</span>
        </h2>
        <ol class="timeline">
          {bars.map((bar) => (
            <li key={bar.call}>
              <a class="mono timeline-name" href={to(['calls', bar.call])} style={{ paddingLeft: `${Math.min(bar.depth, 6) * 12}px` }}>
                {visible(bar.text)}
              </a>
              <span class="timeline-track">
                <i class={bar.outcome === 'failed' ? 'failed' : bar.until === null ? 'open' : ''} style={{ left: share(bar.from), width: `max(3px, calc(${share(bar.until ?? end)} - ${share(bar.from)}))` }} />
              </span>
              <span class="numbers">
                {bar.until === null ? 'open' : span(bar.until - bar.from)} <span class="dim">{bar.outcome ?? ''}</span>
              </span>
            </li>
          ))}
        </ol>
      </section>
      <section class="panel">
        <h2>Steps</h2>
        <div class="plain-scroll" tabIndex={0} role="region" aria-label="Steps">
          <table class="plain">
            <thead>
              <tr>
                <th scope="col" class="end">After</th>
                <th scope="col">What</th>
                <th scope="col">From</th>
                <th scope="col">To</th>
                <th scope="col">Entry</th>
              </tr>
            </thead>
            <tbody>
              {steps.map((one, index) => (
                <tr key={index}>
                  <td class="end mono">{span(one.at - begin)}</td>
                  <td>
                    {one.what} {one.outcome && <span class="dim">{visible(one.outcome)}</span>}
                  </td>
                  <td class="mono">{visible(one.caller ?? '–')}</td>
                  <td class="mono">
                    {visible(one.target ?? '–')} {one.method && visible(one.method)}
                  </td>
                  <td>{one.position ? <a class="mono" href={to('log', { entry: one.position, from: one.position, all: 1 })}>{one.position}</a> : (one.host ?? '–')}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </section>
    </>
  );
}

type Row = Record<string, unknown>;
const textOf = (row: Row, name: string): string => (row[name] === null || row[name] === undefined ? '–' : visible(String(row[name])));
const numberOf = (row: Row, name: string): number | null => (typeof row[name] === 'number' ? row[name] : null);

interface Doing {
  readonly what: 'redrive' | 'purge' | 'move';
  readonly row: Row;
}

export function AlarmsPage(): JSX.Element {
  const { data, error, reload } = useGet<HostRows>('/alarms', {}, 10_000);
  const [doing, setDoing] = useState<Doing | null>(null);
  const columns = useMemo<readonly Column<Row>[]>(
    () => [
      { id: 'due', head: 'Due', width: '184px', mono: true, cell: (row) => <Time at={numberOf(row, 'dueMs')} /> },
      { id: 'actor', head: 'Actor', width: 'minmax(140px, 2fr)', mono: true, card: 'title', cell: (row) => textOf(row, 'actor') },
      { id: 'type', head: 'Type', width: '90px', cell: (row) => textOf(row, 'type') },
      { id: 'what', head: 'What', width: 'minmax(140px, 2fr)', mono: true, cell: (row) => textOf(row, 'continuation') },
      { id: 'attempts', head: 'Attempts', width: '82px', end: true, cell: (row) => textOf(row, 'attempts') },
      { id: 'status', head: 'Status', width: '110px', cell: (row) => <Tag tone={row['status'] === 'skipped' ? 'bad' : 'good'}>{textOf(row, 'status')}</Tag> },
      { id: 'error', head: 'Last error', width: 'minmax(120px, 2fr)', cell: (row) => textOf(row, 'lastError') },
      { id: 'host', head: 'Host', width: '100px', mono: true, cell: (row) => textOf(row, 'host') },
      { id: 'act', head: 'Action', width: '92px', cell: (row) => (row['status'] === 'skipped' ? <Action verb="control" over={String(row['host'])} small onClick={() => setDoing({ what: 'redrive', row })}>{words.redrive}…</Action> : '') },
    ],
    [],
  );
  return (
    <>
      <Head current="alarms" />
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && <Silence silent={data.silent} away={data.away} failed={data.failed} />}
      {data && <Table name="alarms" label={words.alarms} columns={columns} rows={data.rows} rowKey={(row) => `${String(row['host'])} ${String(row['id'])}`} empty={<Empty title={words.noAlarms} command="signalhub actors alarms" />} />}
      {doing && <HostConfirm doing={doing} onClose={() => { setDoing(null); reload(); }} />}
    </>
  );
}

export function FailedPage(): JSX.Element {
  const { data, error, reload } = useGet<HostRows>('/host-letters', {}, 10_000);
  const [doing, setDoing] = useState<Doing | null>(null);
  const columns = useMemo<readonly Column<Row>[]>(
    () => [
      { id: 'actor', head: 'Actor', width: 'minmax(110px, 2fr)', mono: true, card: 'title', cell: (row) => textOf(row, 'actor') },
      { id: 'origin', head: 'What', width: '64px', cell: (row) => textOf(row, 'origin') },
      { id: 'error', head: 'Error', width: 'minmax(150px, 3fr)', cell: (row) => textOf(row, 'error') },
      { id: 'since', head: 'Since', width: '96px', end: true, cell: (row) => <Ago at={numberOf(row, 'deadMs')} /> },
      { id: 'attempts', head: 'Attempts', width: '66px', end: true, cell: (row) => textOf(row, 'attempts') },
      { id: 'call', head: 'Call', width: '110px', mono: true, cell: (row) => (row['call'] ? <a href={to(['calls', String(row['call'])])}>{textOf(row, 'call')}</a> : '–') },
      { id: 'host', head: 'Host', width: '80px', mono: true, cell: (row) => textOf(row, 'host') },
      {
        id: 'act',
        head: 'Action',
        width: '240px',
        cell: (row) => (
          <>
            <Action verb="control" over={String(row['host'])} small onClick={() => setDoing({ what: 'redrive', row })}>{words.redrive}…</Action>{' '}
            <Action verb="control" over={String(row['host'])} small onClick={() => setDoing({ what: 'move', row })}>Move…</Action>{' '}
            <Action verb="delete" over={String(row['host'])} small isDestructive onClick={() => setDoing({ what: 'purge', row })}>{words.purge}…</Action>
          </>
        ),
      },
    ],
    [],
  );
  return (
    <>
      <Head current="failed">
        <a class="button small" href={to('letters')}>
          Dead letters of topics
        </a>
      </Head>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && <Silence silent={data.silent} away={data.away} failed={data.failed} />}
      {data && <Table name="failed" label={words.failed} columns={columns} rows={data.rows} rowKey={(row) => `${String(row['host'])} ${String(row['id'])}`} empty={<Empty title={words.noFailed} command="signalhub actors dead" />} />}
      {doing && <HostConfirm doing={doing} onClose={() => { setDoing(null); reload(); }} />}
    </>
  );
}

function HostConfirm({ doing: { what, row }, onClose }: { readonly doing: Doing; readonly onClose: () => void }): JSX.Element {
  const [target, setTarget] = useState('');
  const host = String(row['host']);
  const actor = String(row['actor'] ?? '');
  const id = String(row['id'] ?? '');
  const text = { redrive: words.redrive, purge: words.purge, move: words.moveActor }[what];
  const command = what === 'move' ? `signalhub actors move ${quoted(actor)} --to ${quoted(target || 'HOST')}` : `signalhub actors ${what} ${quoted(actor)} --id ${quoted(id)}`;
  return (
    <Confirm
      title={`${text}: ${actor}`}
      act={text}
      isDestructive={what === 'purge'}
      typed={what === 'purge' ? id : undefined}
      isReady={what !== 'move' || target.trim() !== ''}
      command={command}
      perform={async () => {
        await post(pathOf('hosts', host, what), what === 'move' ? { actor, to: target.trim() } : { actor, id });
      }}
      onClose={onClose}
    >
      <p>
        <span class="mono">{visible(actor)}</span> on <span class="mono">{visible(host)}</span>
      </p>
      {typeof row['error'] === 'string' && <pre tabIndex={0} aria-label="Error">{visible(row['error'])}</pre>}
      {what === 'move' && (
        <label class="field">
          <span>To the host</span>
          <input class="mono" value={target} onInput={(event) => setTarget(event.currentTarget.value)} />
        </label>
      )}
    </Confirm>
  );
}
