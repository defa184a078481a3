// The hub itself: health, settings, what operators did, and jobs.

import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Action as ActionRow, Actions, HealthAnswer, JobRow, JobsAnswer, SegmentRow, SegmentsAnswer, SettingRow, SettingsAnswer, WarningRow, WarningsAnswer } from '../answers';
import { pathOf, post } from '../api';
import { useGet, useLive, usePages, useStore } from '../hooks';
import { everyRow } from '../lists';
import { Ago, ChoiceField, Facts, Meter, SearchField, spanOfSeconds, Tag, Time } from '../parts/controls';
import type { Tone } from '../parts/controls';
import { Confirm } from '../parts/dialog';
import { Empty, Problem, Shape } from '../parts/notices';
import { route, to } from '../router';
import { Table } from '../table';
import type { Column } from '../table';
import { bytes, count, percent, rate, visible } from '../text';
import { span, zoneName } from '../when';
import { words } from '../words';

// Health.

export function HealthPage(): JSX.Element {
  const health = useGet<HealthAnswer>('/health', {}, 5000);
  const segments = useGet<SegmentsAnswer>('/segments', {}, 10_000);
  const warnings = useGet<WarningsAnswer>('/warnings', {}, 10_000);
  const data = health.data;
  return (
    <>
      <header class="page-head">
        <h1>{words.health}</h1>
        {data && <Tag tone={data.status === 'ok' ? 'good' : 'warn'}>{data.status === 'ok' ? words.healthy : words.degraded}</Tag>}
      </header>
      <Problem error={health.error} retry={health.reload} />
      {!data && !health.error && <Shape />}
      {data && (
        <>
          <section class="panel">
            <h2>Degradations</h2>
            {data.degradations.length === 0 ? (
              <p class="calm-line">
                <Tag tone="good">{words.noDegradations}</Tag>
              </p>
            ) : (
              <ul class="degradations">
                {data.degradations.map((one) => (
                  <li key={one.code}>
                    <p>
                      <Tag tone="warn">{one.code.replaceAll('_', ' ')}</Tag> <span class="dim">since <Ago at={one.since} /></span>
                    </p>
                    <p>{one.text}</p>
                    <p>{one.do}</p>
                    {data.details[one.code] !== undefined && <pre tabIndex={0} aria-label={`Details of ${one.code}`}>{visible(JSON.stringify(data.details[one.code], null, 2))}</pre>}
                  </li>
                ))}
              </ul>
            )}
          </section>
          <section class="panel">
            <h2>Process</h2>
            <Facts
              rows={[
                ['Release', data.release],
                ['Protocol', data.protocol],
                ['Python', data.python],
                ['Native part', data.native],
                ['Epoch', String(data.epoch)],
                ['Started', <Time at={data.startedAt} />],
                ['Up for', span(data.uptimeMs)],
                ['Process', String(data.pid)],
                ...storage(data.storage),
              ]}
            />
          </section>
        </>
      )}
      <Segments data={segments.data} />
      <Problem error={segments.error} retry={segments.reload} />
      <Warnings data={warnings.data} />
      <Problem error={warnings.error} retry={warnings.reload} />
    </>
  );
}

function storage(facts: Record<string, unknown> | null): (readonly [string, string])[] {
  return Object.entries(facts ?? {})
    .filter(([, value]) => value === null || typeof value !== 'object')
    .map(([name, value]) => [name.replace(/([A-Z])/g, ' $1').replace(/^./, (char) => char.toUpperCase()), typeof value === 'number' ? (/bytes/i.test(name) ? bytes(value) : count(value)) : visible(String(value))] as const);
}

const SEGMENTS: readonly Column<SegmentRow>[] = [
  { id: 'first', head: 'First', width: '110px', end: true, card: 'title', mono: true, cell: (row) => count(row.first) },
  { id: 'last', head: 'Before', width: '110px', end: true, mono: true, cell: (row) => count(row.last) },
  { id: 'epoch', head: 'Epoch', width: '110px', end: true, hidden: true, cell: (row) => String(row.epoch) },
  { id: 'bytes', head: 'Size', width: '100px', end: true, cell: (row) => bytes(row.bytes) },
  { id: 'sealed', head: 'State', width: '100px', cell: (row) => <Tag tone={row.sealed ? 'good' : 'calm'}>{row.sealed ? 'sealed' : 'open'}</Tag> },
  { id: 'landed', head: 'In the lake', width: '110px', cell: (row) => (row.landed === null ? '–' : <Tag tone={row.landed ? 'good' : 'calm'}>{row.landed ? 'yes' : 'not yet'}</Tag>) },
  { id: 'created', head: 'Created', width: '184px', mono: true, cell: (row) => <Time at={row.createdAt} /> },
  { id: 'chain', head: 'Chain', width: 'minmax(140px, 1fr)', mono: true, cell: (row) => (row.chain ? row.chain.slice(0, 24) : '–') },
];

function Segments({ data }: { readonly data: SegmentsAnswer | null }): JSX.Element | null {
  if (!data) return null;
  return (
    <section class="panel grows">
      <h2>{words.segments}</h2>
      <p class="dim">
        Offsets {count(data.first)} – {count(data.head)}, {bytes(data.bytes)} of {bytes(data.retentionBytes)}, kept for {spanOfSeconds(data.retentionS)}.
      </p>
      <Table name="segments" label={words.segments} columns={SEGMENTS} rows={data.rows} rowKey={(row) => `${row.epoch}.${row.first}`} empty={<Empty title="The log is empty." />} />
    </section>
  );
}

function Warnings({ data }: { readonly data: WarningsAnswer | null }): JSX.Element | null {
  const columns = useMemo<readonly Column<WarningRow>[]>(
    () => [
      { id: 'at', head: `Time (${zoneName()})`, width: '184px', mono: true, cell: (row) => <Time at={row.at} /> },
      { id: 'level', head: 'Level', width: '100px', cell: (row) => <Tag tone={row.level === 'warning' ? 'warn' : 'bad'}>{row.level}</Tag> },
      { id: 'text', head: 'What', width: 'minmax(200px, 3fr)', card: 'title', cell: (row) => visible(row.text) },
      { id: 'facts', head: 'Facts', width: 'minmax(120px, 2fr)', mono: true, cell: (row) => (Object.keys(row.facts).length > 0 ? visible(JSON.stringify(row.facts)) : '–') },
      { id: 'logger', head: 'Logger', width: '150px', mono: true, hidden: true, cell: (row) => row.logger },
    ],
    [zoneName()],
  );
  if (!data) return null;
  return (
    <section class="panel grows">
      <h2>{words.warnings}</h2>
      {data.rows.length === 0 ? <p class="dim">{words.noWarnings}</p> : <Table name="warnings" label={words.warnings} columns={columns} rows={data.rows} rowKey={(row) => `${row.at} ${row.text}`} />}
    </section>
  );
}

// Settings.

const SETTINGS: readonly Column<SettingRow>[] = [
  { id: 'name', head: 'Setting', width: 'minmax(180px, 1.4fr)', card: 'title', mono: true, cell: (row) => row.name },
  { id: 'value', head: 'Value', width: 'minmax(140px, 1.4fr)', mono: true, cell: (row) => (row.changed ? <b>{visible(row.value)}</b> : visible(row.value)) },
  { id: 'default', head: 'Default', width: 'minmax(120px, 1fr)', mono: true, cell: (row) => visible(row.default) },
  { id: 'source', head: 'From', width: '130px', cell: (row) => row.source ?? (row.changed ? 'set' : 'default') },
  { id: 'text', head: 'What', width: 'minmax(200px, 3fr)', cell: (row) => row.text },
];

export function SettingsPage(): JSX.Element {
  const { query } = useStore(route);
  const { data, error, reload } = useGet<SettingsAnswer>('/settings');
  const wanted = (query.get('q') ?? '').toLowerCase();
  const rows = data?.rows.filter((row) => (!query.get('changed') || row.changed) && (!wanted || row.name.toLowerCase().includes(wanted) || row.text.toLowerCase().includes(wanted))) ?? [];
  return (
    <>
      <header class="page-head">
        <h1>{words.settings}</h1>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape lines={12} />}
      {data && (
        <Table
          name="settings"
          label={words.settings}
          columns={SETTINGS}
          rows={rows}
          rowKey={(row) => row.name}
          empty={<Empty title={words.noMatch} command="signalhub settings show" />}
          tools={
            <>
              <SearchField name="q" label="Setting" mono />
              <ChoiceField name="changed" label="Show" choices={[{ value: '', text: 'all' }, { value: '1', text: words.onlyChanged }]} />
              <span class="dim totals">{count(rows.length)} settings</span>
            </>
          }
        />
      )}
    </>
  );
}

// Actions.

const ACTIONS = (): readonly Column<ActionRow>[] => [
  { id: 'at', head: `Time (${zoneName()})`, width: '184px', mono: true, cell: (row) => <Time at={row.at} /> },
  { id: 'by', head: 'Who', width: 'minmax(110px, 1fr)', cell: (row) => visible(row.by ?? row.address ?? '–') },
  { id: 'verb', head: 'Verb', width: '90px', cell: (row) => row.verb },
  { id: 'request', head: 'What', width: 'minmax(130px, 1fr)', mono: true, card: 'title', cell: (row) => visible(row.request ?? row.verb) },
  { id: 'over', head: 'Over', width: 'minmax(130px, 1.6fr)', mono: true, cell: (row) => visible(row.over) },
  { id: 'detail', head: 'Detail', width: 'minmax(140px, 2fr)', cell: (row) => (row.removed ? words.removed(row.removed) : visible(row.detail ?? row.phase ?? '–')) },
  { id: 'address', head: 'From', width: 'minmax(110px, 1fr)', mono: true, hidden: true, cell: (row) => visible(row.address ?? '–') },
  { id: 'position', head: 'Entry', width: '120px', mono: true, cell: (row) => <a href={to('log', { entry: row.position, from: row.position, all: 1 })}>{row.position}</a> },
];

export function ActionsPage(): JSX.Element {
  const { query } = useStore(route);
  const asked = { by: query.get('by'), verb: query.get('verb'), text: query.get('text'), limit: 200 };
  const pages = usePages<ActionRow, Actions>('/actions', asked, (answer) => answer.rows, 'before');
  const newest = useLive<{ readonly offset?: number }>('actions').data?.offset;
  const columns = useMemo(ACTIONS, [zoneName()]);
  useEffect(() => {
    const shown = Number(pages.rows[0]?.position.split('.').at(-1) ?? -1);
    if (newest !== undefined && pages.data && newest > shown) pages.reload();
  }, [newest]);
  return (
    <>
      <header class="page-head">
        <h1>{words.actions}</h1>
      </header>
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading ? (
        <Shape lines={10} />
      ) : (
        <Table
          name="actions"
          label={words.actions}
          columns={columns}
          rows={pages.rows}
          rowKey={(row) => row.position}
          onEnd={pages.more}
          everything={() => everyRow<ActionRow, Actions>('/actions', asked, (answer) => answer.rows, 'before')}
          empty={<Empty title={asked.by || asked.verb || asked.text ? words.noMatch : words.noActions} />}
          tools={
            <>
              <SearchField name="by" label="Who" />
              <ChoiceField name="verb" label="Verb" choices={['', 'manage', 'delete', 'control', 'admin'].map((one) => ({ value: one, text: one || 'all' }))} />
              <SearchField name="text" label="Text" />
            </>
          }
        />
      )}
    </>
  );
}

// Jobs.

const JOB_TONES: Record<JobRow['state'], Tone> = { running: 'calm', done: 'good', failed: 'bad', interrupted: 'warn', cancelled: 'warn' };

export function JobsPage(): JSX.Element {
  const { data, error, reload } = useGet<JobsAnswer>('/jobs', {}, 2000);
  return (
    <>
      <header class="page-head">
        <h1>{words.jobs}</h1>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data?.rows.length === 0 && <Empty title={words.noJobs} command="signalhub jobs" />}
      {data?.rows.map((row) => <Job key={row.job} row={row} onChange={reload} />)}
    </>
  );
}

/** One job as it goes on; stays when it has ended, with what failed. */
export function JobProgress({ job, onDone }: { readonly job: string; readonly onDone?: () => void }): JSX.Element | null {
  const first = useGet<JobRow>(pathOf('jobs', job), {}, 2000);
  const live = useLive<JobRow>('job', { job }).data;
  const row = live ?? first.data;
  const state = row?.state;
  useEffect(() => {
    if (state && state !== 'running') onDone?.();
  }, [state]);
  return row ? <Job row={row} onChange={first.reload} /> : <Problem error={first.error} retry={first.reload} />;
}

function Job({ row, onChange }: { readonly row: JobRow; readonly onChange: () => void }): JSX.Element {
  const [isAsking, setAsking] = useState(false);
  const share = row.of && row.done !== null ? row.done / row.of : null;
  return (
    <section class="panel job" aria-label={`${words.jobs}: ${row.job}`}>
      <header>
        <Tag tone={JOB_TONES[row.state]}>{row.state}</Tag>
        <b>{row.operation.replaceAll('_', ' ')}</b> <span class="mono">{visible(row.target)}</span>
        <span class="dim">
          {row.job} · {row.subject ?? row.identity ?? ''} · <Ago at={row.beganAt} />
        </span>
        <span class="gap" />
        {row.state === 'running' && row.cancellable && (
          <button type="button" class="small" onClick={() => setAsking(true)}>
            {words.cancelJob}…
          </button>
        )}
      </header>
      {row.done !== null && (
        <p class="job-progress" role="status">
          {share !== null && <Meter used={row.done} limit={row.of ?? 1} label={percent(share)} isProgress />}
          <span class="numbers">
            {count(row.done)}
            {row.of !== null && ` of ${count(row.of)}`}
            {row.rate !== null && row.state === 'running' && ` · ${rate(row.rate)}/s`}
            {row.etaMs !== null && row.state === 'running' && ` · ${span(row.etaMs)} left`}
          </span>
        </p>
      )}
      {row.detail && <p>{visible(row.detail)}</p>}
      {row.failures.length > 0 && (
        <details>
          <summary>{count(row.failures.length)} failed</summary>
          <ul class="names">
            {row.failures.map((one, index) => (
              <li key={index}>{visible(one)}</li>
            ))}
          </ul>
        </details>
      )}
      {isAsking && (
        <Confirm
          title={words.cancelJob}
          act={words.cancelJob}
          isDestructive
          perform={async () => {
            await post(pathOf('jobs', row.job, 'cancel'), {});
            onChange();
          }}
          onClose={() => setAsking(false)}
        >
          <p>What is done stays done.</p>
        </Confirm>
      )}
    </section>
  );
}

