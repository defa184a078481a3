// Durable subscriptions: who is behind, blocked, paused or idle.

import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import type { SubscriptionRow, SubscriptionsAnswer } from '../answers';
import { useLive, usePages, useStore } from '../hooks';
import { everyRow } from '../lists';
import { Filters, SearchField, Tag } from '../parts/controls';
import type { Tone } from '../parts/controls';
import { Empty, Problem, Shape } from '../parts/notices';
import { go, replaceQuery, route, to } from '../router';
import { Table } from '../table';
import type { Column } from '../table';
import { count, rate, visible } from '../text';
import { now, span } from '../when';
import { words } from '../words';

const TONES: Record<SubscriptionRow['state'], Tone> = { current: 'good', behind: 'warn', blocked: 'bad', paused: 'calm', idle: 'calm', held_up: 'bad' };

export function StateTag({ row }: { readonly row: SubscriptionRow }): JSX.Element {
  return <Tag tone={TONES[row.state]}>{row.state.replace('_', ' ')}</Tag>;
}

export const SUBSCRIPTION_COLUMNS: readonly Column<SubscriptionRow>[] = [
  { id: 'topic', head: 'Topic', width: 'minmax(110px, 2fr)', mono: true, sort: 'name', cell: (row) => <a href={to(['topics', row.topic])}>{visible(row.topic)}</a> },
  { id: 'subscription', head: 'Subscription', width: 'minmax(130px, 2fr)', card: 'title', mono: true, cell: (row) => <a href={to(['subs', row.topic, row.subscription])}>{visible(row.subscription)}</a> },
  { id: 'mode', head: 'Mode', width: '84px', cell: (row) => row.mode.replace('_', ' ') },
  { id: 'state', head: 'State', width: '92px', cell: (row) => <StateTag row={row} /> },
  { id: 'lag', head: 'Lag', width: '76px', end: true, sort: 'lag', cell: (row) => count(row.lag) },
  { id: 'trend', head: 'Trend/s', width: '66px', end: true, cell: (row) => (row.trend === null ? '–' : `${row.trend > 0 ? '+' : ''}${rate(row.trend)}`) },
  { id: 'oldest', head: 'Oldest', width: '84px', end: true, sort: 'oldest', cell: (row) => (row.oldestAt === null ? '–' : span(now() - row.oldestAt)) },
  { id: 'flight', head: 'In flight', width: '64px', end: true, cell: (row) => count(row.inFlight) },
  { id: 'consumers', head: 'Consumers', width: '76px', end: true, cell: (row) => count(row.consumers) },
  { id: 'settled', head: 'Settled/s', width: '70px', end: true, cell: (row) => rate(row.settledRate) },
  { id: 'again', head: 'Again/s', width: '70px', end: true, hidden: true, cell: (row) => rate(row.redeliveredRate) },
  { id: 'dead', head: 'Dead', width: '56px', end: true, cell: (row) => count(row.deadLettered) },
  { id: 'parked', head: 'Parked', width: '80px', end: true, hidden: true, cell: (row) => count(row.parked) },
  { id: 'owner', head: 'Owner', width: '100px', hidden: true, cell: (row) => row.owner || '–' },
];

const STATES = ['', 'behind', 'blocked', 'paused', 'idle', 'current'].map((one) => ({ value: one, text: one || 'all' }));

export function SubscriptionsPage(): JSX.Element {
  const { query } = useStore(route);
  const asked = { q: query.get('q'), topic: query.get('topic'), state: query.get('state'), sort: query.get('sort') ?? 'lag', limit: 200 };
  const pages = usePages<SubscriptionRow, SubscriptionsAnswer>('/subscriptions', asked, (answer) => answer.rows);
  // Values of the first rows follow what happens; their order changes only on demand.
  const ids = useMemo(() => pages.rows.slice(0, 100).map((row) => `${row.topic}/${row.subscription}`), [pages.data]);
  const live = useLive<Record<string, SubscriptionRow>>(ids.length > 0 ? 'subscriptions' : null, { ids }).data;
  const rows = useMemo(() => (live ? pages.rows.map((row) => live[`${row.topic}/${row.subscription}`] ?? row) : pages.rows), [live, pages.data, pages.rows.length]);
  const isFiltered = Boolean(asked.q || asked.topic || asked.state);
  return (
    <>
      <header class="page-head">
        <h1>{words.subscriptions}</h1>
        <Filters name="state" choices={STATES} />
      </header>
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading ? (
        <Shape lines={12} />
      ) : (
        <Table
          name="subscriptions"
          label={words.subscriptions}
          columns={SUBSCRIPTION_COLUMNS}
          rows={rows}
          total={pages.data?.total ?? 0}
          rowKey={(row) => `${row.topic}/${row.subscription}`}
          onOpen={(row) => go(to(['subs', row.topic, row.subscription]))}
          onEnd={pages.more}
          sort={asked.sort}
          onSort={(by) => replaceQuery({ sort: by === 'lag' ? null : by })}
          everything={() => everyRow<SubscriptionRow, SubscriptionsAnswer>('/subscriptions', asked, (answer) => answer.rows)}
          empty={<Empty title={isFiltered ? words.noMatch : words.noSubscriptions} command={isFiltered ? undefined : 'signalhub subscribe orders --as billing'} />}
          tools={
            <>
              <SearchField name="topic" label="Topic" placeholder="a topic" mono />
              <span class="dim totals">{count(pages.data?.total)} subscriptions</span>
              <button type="button" class="small" onClick={pages.reload}>
                Sort again
              </button>
            </>
          }
        />
      )}
    </>
  );
}
