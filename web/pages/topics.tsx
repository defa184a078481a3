// Durable topics and one of them.

import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { TopicAnswer, TopicRow, TopicsAnswer } from '../answers';
import { pathOf, send } from '../api';
import { useGet, useLive, usePages, useStore } from '../hooks';
import { everyRow } from '../lists';
import { Facts, quoted, SearchField, spanOfSeconds, Tag } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Empty, Fresh, Problem, Shape } from '../parts/notices';
import { go, route, to } from '../router';
import { me } from '../session';
import { Table } from '../table';
import type { Column } from '../table';
import { bytes, count, rate, visible } from '../text';
import { words } from '../words';
import { SUBSCRIPTION_COLUMNS } from './subscriptions';

const COLUMNS: readonly Column<TopicRow>[] = [
  { id: 'topic', head: 'Topic', width: 'minmax(180px, 3fr)', card: 'title', mono: true, cell: (row) => <a href={to(['topics', row.topic])}>{visible(row.topic)}</a> },
  { id: 'messages', head: 'Messages', width: '110px', end: true, cell: (row) => count(row.messages) },
  { id: 'size', head: 'Size', width: '100px', end: true, cell: (row) => bytes(row.bytes) },
  { id: 'rate', head: 'In/s', width: '70px', end: true, cell: (row) => rate(row.rate) },
  { id: 'subscriptions', head: 'Subs', width: '64px', end: true, cell: (row) => count(row.subscriptions) },
  { id: 'lag', head: 'Worst lag', width: '100px', end: true, cell: (row) => count(row.worstLag) },
  { id: 'letters', head: 'Letters', width: '90px', end: true, cell: (row) => (row.letters > 0 ? <a href={to('letters', { topic: row.deadLetter ?? `${row.topic}.dlq` })}><Tag tone="warn">{count(row.letters)}</Tag></a> : '0') },
  { id: 'retention', head: 'Kept', width: '110px', end: true, cell: (row) => (row.retentionS ? spanOfSeconds(row.retentionS) : 'as the log') },
  { id: 'poison', head: 'Poison', width: '110px', cell: (row) => row.poison.replace('_', ' ') },
  { id: 'owner', head: 'Owner', width: '110px', hidden: true, cell: (row) => row.owner || '–' },
];

export function TopicsPage(): JSX.Element {
  const { query } = useStore(route);
  const asked = { q: query.get('q'), limit: 200 };
  const pages = usePages<TopicRow, TopicsAnswer>('/topics', asked, (answer) => answer.rows);
  const [isCreating, setCreating] = useState(false);
  return (
    <>
      <header class="page-head">
        <h1>{words.topics}</h1>
        <span class="gap" />
        <Action verb="create" onClick={() => setCreating(true)}>
          {words.createTopic}…
        </Action>
      </header>
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading ? (
        <Shape lines={12} />
      ) : (
        <Table
          name="topics"
          label={words.topics}
          columns={COLUMNS}
          rows={pages.rows}
          total={pages.data?.total ?? 0}
          rowKey={(row) => row.topic}
          onOpen={(row) => go(to(['topics', row.topic]))}
          onEnd={pages.more}
          everything={() => everyRow<TopicRow, TopicsAnswer>('/topics', asked, (answer) => answer.rows)}
          empty={
            <Empty title={asked.q ? words.noMatch : words.noTopics} command={asked.q ? undefined : 'signalhub topic create orders'}>
              {asked.q ? undefined : words.noTopicsExplained}
            </Empty>
          }
          tools={
            <>
              <SearchField name="q" label="Topic" placeholder="part of a name" mono />
              <span class="dim totals">{count(pages.data?.total)} topics</span>
              <button type="button" class="small" onClick={pages.reload}>
                Refresh
              </button>
            </>
          }
        />
      )}
      {isCreating && <TopicForm row={null} onClose={(name) => { setCreating(false); if (name) go(to(['topics', name])); }} />}
    </>
  );
}

export function TopicPage(): JSX.Element {
  const { path } = useStore(route);
  const topic = path[1] ?? '';
  const first = useGet<TopicAnswer>(pathOf('topics', topic));
  const live = useLive<TopicAnswer>('topic', { topic });
  const data = live.data ?? first.data;
  const [open, setOpen] = useState<'set' | 'delete' | null>(null);
  const done = (): void => {
    setOpen(null);
    first.reload();
  };
  return (
    <>
      <header class="page-head">
        <h1 class="mono">
          <a class="up" href={to('topics')}>{words.topics}</a> {visible(topic)}
        </h1>
        <span class="gap" />
        <a class="button" href={to('log', { stream: topic })}>Messages</a>
        {me.value?.features.tryIt && <a class="button" href={to('try', { publish: topic })}>Publish…</a>}
        <Action verb="create" over={topic} owner={data?.owner ?? ''} onClick={() => setOpen('set')} disabled={!data}>
          {words.changeTopic}…
        </Action>
        <Action verb="delete" over={topic} owner={data?.owner ?? ''} isDestructive onClick={() => setOpen('delete')} disabled={!data}>
          {words.deleteTopic}…
        </Action>
      </header>
      <Problem error={first.error} retry={first.reload} />
      {!data && !first.error && <Shape />}
      {data && (
        <>
          <Fresh>
            <dl class="stats">
              <div class="stat"><dt>Messages</dt><dd>{count(data.messages)}</dd><dd class="note">{count(data.first)} – {count(data.head)}</dd></div>
              <div class="stat"><dt>Size</dt><dd>{bytes(data.bytes)}</dd><dd class="note">{count(data.removed)} removed</dd></div>
              <div class="stat"><dt>In per second</dt><dd>{rate(data.rate)}</dd></div>
              <div class="stat"><dt>Worst lag</dt><dd>{count(data.worstLag)}</dd><dd class="note">{count(data.subscriptions)} subscriptions</dd></div>
              <div class="stat"><dt>Dead letters</dt><dd class={data.letters > 0 ? 'warn' : ''}>{count(data.letters)}</dd><dd class="note">{data.deadLetter ? <a href={to('letters', { topic: data.deadLetter })}>{data.deadLetter}</a> : data.poison.replace('_', ' ')}</dd></div>
            </dl>
          </Fresh>
          <section class="panel">
            <h2>Definition</h2>
            <Facts
              rows={[
                ['Kept for', data.retentionS ? spanOfSeconds(data.retentionS) : 'as long as the log'],
                ['Kept bytes', data.retentionBytes ? bytes(data.retentionBytes) : 'as much as the log'],
                ['Poison policy', data.poison.replace('_', ' ')],
                ['Dead letters go to', data.deadLetter ?? '–'],
                ['Epoch', <span class="mono">{data.epoch}</span>],
                ['Owner', data.owner || '–'],
              ]}
            />
          </section>
          <section class="panel grows">
            <h2>{words.subscriptions}</h2>
            <Table
              name="topic-subscriptions"
              label={`${words.subscriptions} of ${topic}`}
              columns={SUBSCRIPTION_COLUMNS.filter((one) => one.id !== 'topic')}
              rows={data.rows}
              total={data.subscriptions}
              rowKey={(row) => row.subscription}
              onOpen={(row) => go(to(['subs', row.topic, row.subscription]))}
              empty={<Empty title={words.noSubscriptions} command={`signalhub subscribe ${quoted(topic)} --as billing`} />}
            />
          </section>
        </>
      )}
      {open === 'set' && data && <TopicForm row={data} onClose={done} />}
      {open === 'delete' && data && (
        <Confirm
          title={`${words.deleteTopic} ${topic}`}
          act={words.deleteTopic}
          isDestructive
          typed={topic}
          command={`signalhub topic delete ${quoted(topic)}`}
          perform={async () => {
            await send('DELETE', pathOf('topics', topic), {});
            go(to('topics'));
          }}
          onClose={done}
        >
          <p>{words.deleteTopicExplained(count(data.messages), count(data.subscriptions))}</p>
        </Confirm>
      )}
    </>
  );
}

const POISONS = ['', 'block', 'drop', 'dead_letter'] as const;

function TopicForm({ row, onClose }: { readonly row: TopicRow | null; readonly onClose: (name?: string) => void }): JSX.Element {
  const [name, setName] = useState(row?.topic ?? '');
  const [hours, setHours] = useState(row?.retentionS ? String(row.retentionS / 3600) : '');
  const [poison, setPoison] = useState<string>(row?.poison ?? '');
  const [deadLetter, setDeadLetter] = useState(row?.deadLetter ?? '');
  const definition = {
    ...(hours.trim() ? { retention: { ageSeconds: Number(hours) * 3600, ...(row?.retentionBytes ? { bytes: row.retentionBytes } : {}) } } : {}),
    ...(poison ? { poison } : {}),
    ...(deadLetter.trim() ? { deadLetter: deadLetter.trim() } : {}),
  };
  const isReady = name.trim() !== '' && (hours.trim() === '' || Number(hours) > 0);
  const options = [hours.trim() ? `--retention ${hours.trim()}h` : '', poison ? `--poison ${poison}` : '', deadLetter.trim() ? `--dead-letter ${quoted(deadLetter.trim())}` : ''].filter(Boolean).join(' ');
  return (
    <Confirm
      title={row ? `${words.changeTopic} ${row.topic}` : words.createTopic}
      act={row ? words.changeTopic : words.createTopic}
      isReady={isReady}
      command={name.trim() ? `signalhub topic ${row ? 'set' : 'create'} ${quoted(name.trim())} ${options}`.trim() : undefined}
      perform={async () => {
        await send(row ? 'PATCH' : 'PUT', pathOf('topics', name.trim()), definition);
      }}
      onClose={() => onClose(name.trim())}
    >
      {!row && (
        <label class="field">
          <span>Name</span>
          <input class="mono" value={name} autofocus autoComplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
      )}
      <label class="field">
        <span>Keep messages for, in hours (empty: as long as the log)</span>
        <input inputMode="decimal" value={hours} onInput={(event) => setHours(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>Poison policy: what happens to messages that fail too often</span>
        <select value={poison} onChange={(event) => setPoison(event.currentTarget.value)}>
          {POISONS.map((one) => (
            <option key={one} value={one}>
              {one === '' ? 'the default' : one.replace('_', ' ')}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>Dead letters go to (empty: NAME.dlq)</span>
        <input class="mono" value={deadLetter} onInput={(event) => setDeadLetter(event.currentTarget.value)} />
      </label>
    </Confirm>
  );
}
