// Who is there: addresses, their sessions, and what waits for them.

import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { ActorAnswer, ActorRow, ActorsAnswer, SessionRow, SessionsAnswer } from '../answers';
import { pathOf, post } from '../api';
import { useGet, useLive, usePages, useStore } from '../hooks';
import { everyRow } from '../lists';
import { Ago, ChoiceField, Command, Facts, quoted, SearchField, Tabs, Tag, Time } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Empty, Fresh, Problem, Shape } from '../parts/notices';
import { Payload } from '../parts/payload';
import { go, route, to } from '../router';
import { me } from '../session';
import { Table } from '../table';
import type { Column } from '../table';
import { bytes, count, visible } from '../text';
import { now, span } from '../when';
import { words } from '../words';

const TABS = [
  { path: ['actors'], text: words.actors },
  { path: ['sessions'], text: words.sessions },
];

function state(row: ActorRow): JSX.Element {
  if (row.state === 'live') return <Tag tone="good">live</Tag>;
  if (row.state === 'hidden') return <Tag tone="warn">hidden</Tag>;
  return <Tag tone="calm">away{row.awaySince ? ` ${span(now() - row.awaySince)}` : ''}</Tag>;
}

const waitingOf = (row: ActorRow): JSX.Element | string => {
  const box = row.mailbox;
  if (!box) return '–';
  const isFull = box.waiting > 0 && box.waiting >= box.limit * 0.9;
  return isFull ? <Tag tone="warn">{count(box.waiting)}</Tag> : count(box.waiting);
};

const COLUMNS: readonly Column<ActorRow>[] = [
  { id: 'address', head: 'Address', width: 'minmax(200px, 3fr)', card: 'title', mono: true, cell: (row) => <a href={to(['actors', row.address])}>{visible(row.address)}</a> },
  { id: 'state', head: 'State', width: '110px', cell: state },
  { id: 'capabilities', head: 'Capabilities', width: 'minmax(120px, 2fr)', cell: (row) => row.capabilities.join(', ') || '–' },
  { id: 'session', head: 'Session', width: '130px', mono: true, cell: (row) => (row.session ? row.session.slice(0, 14) : '–') },
  { id: 'lease', head: 'Lease', width: '90px', end: true, cell: (row) => (row.expiresAt ? span(Math.max(0, row.expiresAt - now())) : '–') },
  { id: 'mailbox', head: 'Mailbox', width: '90px', end: true, cell: waitingOf },
  { id: 'oldest', head: 'Oldest', width: '100px', end: true, hidden: true, cell: (row) => (row.mailbox?.oldestAt ? span(now() - row.mailbox.oldestAt) : '–') },
  { id: 'queue', head: 'In queue', width: '90px', end: true, cell: (row) => count(row.queuedMessages) },
  { id: 'since', head: 'Registered', width: '200px', hidden: true, cell: (row) => <Time at={row.registeredAt} /> },
];

export function ActorsPage(): JSX.Element {
  const { query } = useStore(route);
  const asked = { q: query.get('q'), capability: query.get('capability'), state: query.get('state'), limit: 200 };
  const pages = usePages<ActorRow, ActorsAnswer>('/actors', asked, (answer) => answer.rows);
  const isFiltered = Boolean(asked.q || asked.capability || asked.state);
  return (
    <>
      <header class="page-head">
        <h1>{words.actors}</h1>
        <Tabs tabs={TABS} current="actors" />
      </header>
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading ? (
        <Shape lines={12} />
      ) : (
        <Table
          name="actors"
          label={words.actors}
          columns={COLUMNS}
          rows={pages.rows}
          total={pages.data?.total ?? 0}
          rowKey={(row) => row.address}
          onOpen={(row) => go(to(['actors', row.address]))}
          onEnd={pages.more}
          everything={() => everyRow<ActorRow, ActorsAnswer>('/actors', asked, (answer) => answer.rows)}
          empty={
            <Empty title={isFiltered ? words.noMatch : words.noActors} command={isFiltered ? undefined : "signalhub listen '@(demo/alice)'"} />
          }
          tools={
            <>
              <SearchField name="q" label="Address" placeholder="part of an address" mono />
              <SearchField name="capability" label="Capability" />
              <ChoiceField name="state" label="State" choices={[{ value: '', text: 'all' }, { value: 'live', text: 'live' }, { value: 'hidden', text: 'hidden' }, { value: 'away', text: 'away' }]} />
              {pages.data && (
                <span class="dim totals">
                  {count(pages.data.live)} live · {count(pages.data.away)} away · limit {count(pages.data.limit)}
                </span>
              )}
              <button type="button" class="small" onClick={pages.reload}>
                Refresh
              </button>
            </>
          }
        />
      )}
    </>
  );
}

export function ActorPage(): JSX.Element {
  const { path } = useStore(route);
  const address = path[1] ?? '';
  const loaded = useGet<ActorAnswer>(pathOf('actors', address), {}, 5000);
  const live = useLive<Record<string, ActorRow | null>>('actors', { addresses: [address] }).data?.[address];
  const data = loaded.data ? { ...loaded.data, ...(live ?? {}) } : null;
  const [closing, setClosing] = useState<string | null>(null);
  return (
    <>
      <header class="page-head">
        <h1 class="mono">
          <a class="up" href={to('actors')}>{words.actors}</a> {visible(address)}
        </h1>
        {data && state(data)}
        <span class="gap" />
        <a class="button" href={to('log', { sender: address })}>What it sent</a>
        <a class="button" href={to('log', { stream: address })}>Its mailbox</a>
        {me.value?.features.tryIt && <a class="button" href={to('try', { to: address })}>{words.tryIt}</a>}
        {data?.session && (
          <Action verb="sessions" isDestructive onClick={() => setClosing(data.session)}>
            {words.closeSession}…
          </Action>
        )}
      </header>
      <Problem error={loaded.error} retry={loaded.reload} />
      {!data && !loaded.error && <Shape />}
      {data && (
        <Fresh>
          <div class="halves">
            <section class="panel">
              <h2>Registration</h2>
              <Facts
                rows={[
                  ['Capabilities', data.capabilities.join(', ') || '–'],
                  ['Version', data.version === null ? '–' : count(data.version)],
                  ['Session', <span class="mono">{data.session ?? '–'}</span>],
                  ['Identity', data.identity ?? '–'],
                  ['Comes from', data.source ?? '–'],
                  ['Registered', <Time at={data.registeredAt} />],
                  ['Lease ends', data.expiresAt ? <span>in {span(Math.max(0, data.expiresAt - now()))}</span> : '–'],
                  data.awaySince ? ['Away', <Ago at={data.awaySince} />] : null,
                  ['In its queue', `${count(data.queuedMessages)} messages, ${bytes(data.queuedBytes)}`],
                  data.pausing.length > 0 ? ['Makes wait', data.pausing.join(', ')] : null,
                ]}
              />
              {data.metadata && data.metadata !== '{}' && <Payload text={data.metadata} size={data.metadata.length} name="metadata.json" />}
            </section>
            <section class="panel">
              <h2>Mailbox</h2>
              {data.mailbox ? (
                <Facts
                  rows={[
                    ['Waiting', `${count(data.mailbox.waiting)} of ${count(data.mailbox.limit)}`],
                    ['Oldest', <Ago at={data.mailbox.oldestAt} />],
                    ['In flight', count(data.mailbox.inFlight)],
                    ['Head', count(data.mailbox.head)],
                    ['Floor', count(data.mailbox.floor)],
                    ['First', count(data.mailbox.first)],
                    ['Failed for good', count(data.mailbox.dead)],
                    data.mailbox.isHost ? ['Host of', data.mailbox.kinds.join(', ')] : null,
                  ]}
                />
              ) : (
                <p class="dim">None: this actor is not durable. Asks to it fail while it is away.</p>
              )}
              <h2>Subscriptions</h2>
              {data.subscriptions.length + data.consumers.filter((one) => one.topic !== address).length === 0 && <p class="dim">None.</p>}
              <ul class="names">
                {data.subscriptions.map((one) => (
                  <li key={`plain ${one.topic}`}>
                    <span class="mono">{one.topic}</span> <span class="dim">plain</span>
                  </li>
                ))}
                {data.consumers.filter((one) => one.topic !== address).map((one) => (
                  <li key={`${one.topic} ${one.subscription} ${one.consumer}`}>
                    <a class="mono" href={to(['subs', one.topic, one.subscription])}>
                      {one.topic} / {one.subscription}
                    </a>
                    <span>
                      {count(one.inFlight)} of {count(one.window)} in flight {one.blocked && <Tag tone="warn">blocked</Tag>}
                    </span>
                  </li>
                ))}
              </ul>
              <Command text={`signalhub discover ${quoted(address)}`} />
            </section>
          </div>
        </Fresh>
      )}
      {closing && <CloseSession id={closing} onClose={() => { setClosing(null); loaded.reload(); }} />}
    </>
  );
}

function CloseSession({ id, onClose }: { readonly id: string; readonly onClose: () => void }): JSX.Element {
  return (
    <Confirm
      title={words.closeSession}
      act={words.closeSession}
      isDestructive
      command={`signalhub session close ${quoted(id)}`}
      perform={async () => {
        await post(pathOf('sessions', id, 'close'), {});
      }}
      onClose={onClose}
    >
      <p>
        <span class="mono">{id}</span>
      </p>
      <p>{words.closeExplained}</p>
    </Confirm>
  );
}

export function SessionsPage(): JSX.Element {
  const { query } = useStore(route);
  const asked = { q: query.get('q'), limit: 200 };
  const pages = usePages<SessionRow, SessionsAnswer>('/sessions', asked, (answer) => answer.rows);
  const [closing, setClosing] = useState<string | null>(null);
  const columns = useMemo<readonly Column<SessionRow>[]>(
    () => [
      { id: 'identity', head: 'Identity', width: 'minmax(150px, 3fr)', card: 'title', mono: true, cell: (row) => visible(row.identity ?? row.sessionId) },
      { id: 'session', head: 'Session', width: '124px', mono: true, cell: (row) => row.sessionId.slice(0, 16) },
      { id: 'addresses', head: 'Addresses', width: 'minmax(120px, 2fr)', cell: (row) => (row.addresses.length === 0 ? '–' : <><a href={to(['actors', row.addresses[0] ?? ''])}>{visible(row.addresses[0] ?? '')}</a>{row.addressesTotal > 1 ? ` +${row.addressesTotal - 1}` : ''}</>) },
      { id: 'subject', head: 'Subject', width: '110px', hidden: true, cell: (row) => row.subject ?? '–' },
      { id: 'since', head: 'Since', width: '80px', end: true, cell: (row) => span(now() - row.connectedAt) },
      { id: 'seen', head: 'Seen', width: '64px', end: true, cell: (row) => `${span(now() - row.lastSeenAt)}` },
      { id: 'source', head: 'Comes from', width: '100px', cell: (row) => row.source ?? '–' },
      { id: 'sent', head: 'Sent to it', width: '76px', end: true, cell: (row) => count(row.sent) },
      { id: 'queue', head: 'In queue', width: '116px', end: true, cell: (row) => (row.blocked ? <Tag tone="warn">{`${count(row.queuedMessages)} · ${bytes(row.queuedBytes)}`}</Tag> : row.queuedMessages === 0 ? '0' : `${count(row.queuedMessages)} · ${bytes(row.queuedBytes)}`) },
      { id: 'pauses', head: 'Pausing', width: '80px', end: true, hidden: true, cell: (row) => count(row.pauses) },
      { id: 'client', head: 'Client', width: '130px', hidden: true, cell: (row) => row.client ?? '–' },
      { id: 'close', head: 'Action', width: '72px', cell: (row) => <Action verb="sessions" small isDestructive onClick={() => setClosing(row.sessionId)}>Close…</Action> },
    ],
    [],
  );
  return (
    <>
      <header class="page-head">
        <h1>{words.sessions}</h1>
        <Tabs tabs={TABS} current="sessions" />
      </header>
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading ? (
        <Shape lines={12} />
      ) : (
        <Table
          name="sessions"
          label={words.sessions}
          columns={columns}
          rows={pages.rows}
          total={pages.data?.total ?? 0}
          rowKey={(row) => row.sessionId}
          onEnd={pages.more}
          everything={() => everyRow<SessionRow, SessionsAnswer>('/sessions', asked, (answer) => answer.rows)}
          empty={<Empty title={asked.q ? words.noMatch : words.noSessions} command={asked.q ? undefined : "signalhub listen '@(demo/alice)'"} />}
          tools={
            <>
              <SearchField name="q" label="Identity or address" mono />
              <span class="dim totals">{count(pages.data?.total)} sessions</span>
              <button type="button" class="small" onClick={pages.reload}>
                Refresh
              </button>
            </>
          }
        />
      )}
      {closing && <CloseSession id={closing} onClose={() => { setClosing(null); pages.reload(); }} />}
    </>
  );
}
