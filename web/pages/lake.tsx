// The lake: how far it is, its tables, the proof that nothing was lost, and replaying from it.

import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import type { Audit, AuditHour, Lake, LakeRows, LakeTable, JobStarted, ReplayPreview } from '../answers';
import { ApiError, get, pathOf, post } from '../api';
import { useGet, useStore } from '../hooks';
import { Command, copy, download, Facts, quoted, spanOfSeconds, Stat, Tabs, Tag, Time } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Empty, Fresh, Problem, Shape } from '../parts/notices';
import { Payload } from '../parts/payload';
import { go, route, to } from '../router';
import { me } from '../session';
import { Table } from '../table';
import type { Column } from '../table';
import { bytes, count, visible } from '../text';
import { span } from '../when';
import { words } from '../words';
import { JobProgress } from './system';

const TABS = [
  { path: ['lake'], text: words.lake },
  { path: ['proof'], text: words.proof },
  { path: ['replay'], text: words.replays },
];

function Head({ current, children }: { readonly current: string; readonly children?: preact.ComponentChildren }): JSX.Element {
  return (
    <header class="page-head">
      <h1>{words.lake}</h1>
      <Tabs tabs={TABS} current={current} />
      <span class="gap" />
      {children}
    </header>
  );
}

function NoLake(): JSX.Element {
  return (
    <Empty title={words.noLake} command="signalhub serve --pipeline">
      {words.noLakeExplained}
    </Empty>
  );
}

const isOff = (): boolean => me.value?.features.lake === false;

export function LakePage(): JSX.Element {
  const { data, error, reload } = useGet<Lake>(isOff() ? null : '/lake', {}, 5000);
  const columns = useMemo<readonly Column<LakeTable>[]>(
    () => [
      { id: 'name', head: 'Table', width: 'minmax(130px, 1fr)', card: 'title', mono: true, cell: (row) => <a href={to(['lake', row.name])}>{row.name}</a> },
      { id: 'about', head: 'What', width: 'minmax(180px, 3fr)', cell: (row) => row.about },
      { id: 'position', head: 'Position', width: '110px', end: true, cell: (row) => count(row.position) },
      { id: 'behind', head: 'Behind', width: '90px', end: true, cell: (row) => count(row.behind) },
      { id: 'files', head: 'Files', width: '70px', end: true, cell: (row) => count(row.files) },
      { id: 'size', head: 'Size', width: '100px', end: true, cell: (row) => bytes(row.bytes) },
      { id: 'kept', head: 'Kept', width: '110px', end: true, cell: (row) => (row.keptS === null ? 'as the lake' : spanOfSeconds(row.keptS)) },
    ],
    [],
  );
  return (
    <>
      <Head current="lake" />
      {isOff() && <NoLake />}
      <Problem error={error} retry={reload} />
      {!isOff() && !data && !error && <Shape />}
      {data && (
        <>
          <Fresh>
            <dl class="stats">
              <Stat label="Pipeline" value={<Tag tone={data.state === 'running' ? 'good' : data.state === 'off' ? 'calm' : 'warn'}>{data.state}</Tag>} note={data.reason ?? data.pipeline} />
              <Stat label="Behind" value={span(data.behindMs)} note={`${count(data.behind)} entries`} />
              <Stat label="Position" value={count(data.position)} note={`of ${count(data.head)}`} />
              <Stat label="Last batch" value={data.lastBatchMs === null ? '–' : span(data.lastBatchMs)} note={`${count(data.lastBatchRows)} rows`} />
              <Stat label="Failures" value={count(data.failures)} note={`${count(data.restarts)} restarts`} tone={data.failures > 0 ? 'warn' : undefined} />
              <Stat label="Quarantined" value={count(data.quarantined)} tone={data.quarantined > 0 ? 'warn' : undefined} />
            </dl>
          </Fresh>
          <p class="dim">
            In <span class="mono">{visible(data.where)}</span>. {words.eraseExplained} <Command text="signalhub erase --help" />
          </p>
          <Table name="tables" label="Tables" columns={columns} rows={data.tables} rowKey={(row) => row.name} onOpen={(row) => go(to(['lake', row.name]))} empty={<NoLake />} />
        </>
      )}
    </>
  );
}

export function TablePage(): JSX.Element {
  const { path } = useStore(route);
  const name = path[1] ?? '';
  const { data, error, reload } = useGet<LakeRows>(pathOf('lake', 'tables', name));
  return (
    <>
      <header class="page-head">
        <h1 class="mono">
          <a class="up" href={to('lake')}>{words.lake}</a> {visible(name)}
        </h1>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && (
        <>
          <p>{data.about}</p>
          <Command text={data.sql} />
          <section class="panel">
            <h2>Newest rows</h2>
            {data.withheld && <p class="notice">{words.withheld}</p>}
            <div class="plain-scroll" tabIndex={0} role="region" aria-label="Newest rows">
              <table class="plain tight">
                <thead>
                  <tr>
                    {data.columns.map((one) => (
                      <th key={one.name} scope="col">{one.name}</th>
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {data.rows.map((row, index) => (
                    <tr key={index}>
                      {data.columns.map((one) => (
                        <td key={one.name} class="mono">{visible((row[one.name] ?? '–').slice(0, 200))}</td>
                      ))}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </section>
          <section class="panel">
            <h2>Columns</h2>
            <Facts rows={data.columns.map((one) => [one.name, <span><span class="mono">{one.type}</span> <span class="dim">{one.about}</span></span>] as const)} />
          </section>
        </>
      )}
    </>
  );
}

const isProven = (verdict: string | null): boolean => verdict === 'proven' || verdict === 'ok';

export function ProofPage(): JSX.Element {
  const { data, error, reload } = useGet<Audit>(isOff() ? null : '/lake/audit', {}, 10_000);
  const [isAsking, setAsking] = useState(false);
  const [job, setJob] = useState<string | null>(null);
  const [failed, setFailed] = useState<ApiError | null>(null);
  const running = job ?? data?.job ?? null;
  const columns = useMemo<readonly Column<AuditHour>[]>(
    () => [
      { id: 'hour', head: 'Hour', width: '184px', mono: true, card: 'title', cell: (row) => <Time at={row.hour} /> },
      { id: 'offsets', head: 'Offsets', width: '140px', end: true, cell: (row) => `${count(row.fromOffset)} – ${count(row.toOffset)}` },
      { id: 'rows', head: 'Rows', width: '84px', end: true, cell: (row) => count(row.distinctRows) },
      { id: 'gaps', head: 'Gaps', width: '52px', end: true, cell: (row) => count(row.gaps) },
      { id: 'duplicates', head: 'Duplicates', width: '80px', end: true, cell: (row) => count(row.duplicates) },
      { id: 'reorders', head: 'Reorders', width: '70px', end: true, cell: (row) => count(row.reorders) },
      { id: 'pending', head: 'Pending', width: '64px', end: true, cell: (row) => count(row.pending) },
      { id: 'overdue', head: 'Overdue', width: '68px', end: true, cell: (row) => count(row.overdue) },
      { id: 'verdict', head: 'Verdict', width: '96px', cell: (row) => <Tag tone={isProven(row.verdict) ? 'good' : 'bad'}>{row.verdict}</Tag> },
      { id: 'chain', head: 'Chain', width: 'minmax(100px, 1fr)', mono: true, cell: (row) => (row.segmentSha256 ? <button type="button" class="quiet small mono" title={row.segmentSha256} onClick={() => void copy(row.segmentSha256 ?? '')}>{row.segmentSha256.slice(0, 12)}…</button> : '–') },
      { id: 'exceptions', head: 'Exceptions', width: 'minmax(100px, 2fr)', hidden: true, cell: (row) => row.exceptions.join('; ') || '–' },
    ],
    [],
  );
  const save = async (): Promise<void> => {
    try {
      download('proof.json', JSON.stringify(await get<unknown>('/lake/proof.json'), null, 2));
      setFailed(null);
    } catch (refused) {
      setFailed(refused instanceof ApiError ? refused : null);
    }
  };
  return (
    <>
      <Head current="proof">
        {!isOff() && (
          <>
            <button type="button" onClick={() => void save()}>{words.downloadProof}</button>
            <Action verb="audit" onClick={() => setAsking(true)} disabled={data?.isRunning ?? false}>{words.auditNow}…</Action>
          </>
        )}
      </Head>
      {isOff() && <NoLake />}
      <Problem error={error ?? failed} retry={reload} />
      {running && <JobProgress job={running} onDone={reload} />}
      {!isOff() && !data && !error && <Shape />}
      {data && data.hours.length > 0 && (
        <p class="verdict" role="status">
          <Tag tone={isProven(data.verdict) ? 'good' : 'bad'}>{data.verdict ?? 'unknown'}</Tag> up to offset {count(data.head)}, audited <Time at={data.at} />
        </p>
      )}
      {data && <Table name="proof" label={words.proof} columns={columns} rows={data.hours} rowKey={(row) => `${row.epoch} ${row.hour}`} empty={<Empty title={words.noAudit} command="signalhub audit">{words.auditExplained}</Empty>} />}
      {isAsking && (
        <Confirm
          title={words.auditNow}
          act={words.auditNow}
          command="signalhub audit"
          perform={async () => {
            setJob((await post<JobStarted>('/lake/audit', {})).job);
          }}
          onClose={() => setAsking(false)}
        >
          <p>{words.auditExplained}</p>
        </Confirm>
      )}
    </>
  );
}

export function ReplayPage(): JSX.Element {
  const { query } = useStore(route);
  const [where, setWhere] = useState(query.get('where') ?? "topic = 'orders' AND key = 'c-17'");
  const [target, setTarget] = useState(query.get('target') ? `topic:${query.get('target')}` : 'topic:orders');
  const [rate, setRate] = useState('1000');
  const [preview, setPreview] = useState<ReplayPreview | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const [job, setJob] = useState<string | null>(null);
  const body = { where, to: target, rate: Number(rate) };
  const look = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      setPreview(await post<ReplayPreview>('/replay', { ...body, dryRun: true }));
    } catch (refused) {
      setPreview(null);
      setError(refused instanceof ApiError ? refused : null);
    }
    setBusy(false);
  };
  const changed = <T,>(set: (value: T) => void) => (value: T): void => {
    set(value);
    setPreview(null);
  };
  return (
    <>
      <Head current="replay" />
      {isOff() ? (
        <NoLake />
      ) : (
        <form
          class="panel"
          onSubmit={(event) => {
            event.preventDefault();
            void look();
          }}
        >
          <p>{words.replayExplained}</p>
          <label class="field">
            <span>Where: a condition over the table messages</span>
            <textarea class="mono" rows={2} spellcheck={false} value={where} onInput={(event) => changed(setWhere)(event.currentTarget.value)} />
          </label>
          <div class="form-grid">
            <label class="field">
              <span>To: topic:NAME, subscription:TOPIC:NAME, or @(ACTOR)</span>
              <input class="mono" value={target} onInput={(event) => changed(setTarget)(event.currentTarget.value)} />
            </label>
            <label class="field">
              <span>Messages per second, 0 for no limit</span>
              <input inputMode="numeric" value={rate} onInput={(event) => changed(setRate)(event.currentTarget.value)} />
            </label>
          </div>
          <p class="row-of-buttons">
            <button type="submit" disabled={isBusy || where.trim() === '' || target.trim() === ''}>{isBusy ? words.working : words.preview}</button>
            <Action verb="republish" disabled={preview === null || preview.count === 0} onClick={() => setAsking(true)}>{words.replay}…</Action>
          </p>
          <Command text={`signalhub replay --where ${quoted(where)} --to ${quoted(target)} --rate ${rate}`} />
        </form>
      )}
      <Problem error={error} />
      {job && <JobProgress job={job} />}
      {preview && (
        <section class="panel">
          <h2>{count(preview.count)} messages</h2>
          <Facts rows={[['First', <span class="mono">{preview.first ?? '–'}</span>], ['Last', <span class="mono">{preview.last ?? '–'}</span>], ...Object.entries(preview.streams).map(([name, n]) => [visible(name), count(n)] as const), ...Object.entries(preview.leftOut).map(([why, n]) => [`Left out: ${why}`, count(n)] as const)]} />
          {preview.examples.map((one) => (
            <div key={one.position}>
              <h3 class="mono">
                {one.position} {visible(one.stream)} {visible(one.type ?? '')}
              </h3>
              {one.data !== null && <Payload text={one.data} size={one.data.length} />}
            </div>
          ))}
        </section>
      )}
      {isAsking && preview && (
        <Confirm
          title={words.replay}
          act={`${words.replay} ${count(preview.count)}`}
          typed={preview.count > 1000 ? target : undefined}
          command={`signalhub replay --where ${quoted(where)} --to ${quoted(target)} --rate ${rate}`}
          perform={async () => {
            setJob((await post<JobStarted>('/replay', body)).job);
          }}
          onClose={() => setAsking(false)}
        >
          <p>
            {count(preview.count)} messages go to <span class="mono">{visible(target)}</span>.
          </p>
        </Confirm>
      )}
    </>
  );
}

