// Dead letters: what failed for good, why, and putting it back, as it was or edited.

import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import type { JobStarted, Letter, Letters, LettersPreview, LetterTopics } from '../answers';
import { ApiError, post, sendText } from '../api';
import { useGet, usePages, useStore } from '../hooks';
import { everyRow } from '../lists';
import { quoted, SearchField, Tag, Time } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Empty, Problem, Shape } from '../parts/notices';
import { Glimpse } from '../parts/payload';
import { replaceQuery, route, to } from '../router';
import { Table } from '../table';
import type { Column } from '../table';
import { count, indented, tokens, visible } from '../text';
import { zoneName } from '../when';
import { words } from '../words';
import { JobProgress } from './system';

const COLUMNS = (): readonly Column<Letter>[] => [
  { id: 'seq', head: 'Seq', width: '76px', end: true, cell: (row) => <a href={to('log', { stream: '', entry: row.position, from: row.position })}>{count(row.seq)}</a> },
  { id: 'from', head: 'From', width: 'minmax(150px, 2fr)', card: 'title', mono: true, cell: (row) => <a href={to(['subs', row.source, row.subscription])}>{visible(row.source)} / {visible(row.subscription)}</a> },
  { id: 'attempts', head: 'Attempts', width: '80px', end: true, cell: (row) => count(row.attempts) },
  { id: 'reason', head: 'Reason', width: 'minmax(160px, 2.4fr)', cell: (row) => <>{row.redrivenBefore && <span title={words.redrivenBefore}><Tag tone="warn">again</Tag> </span>}{row.reason ? visible(row.reason) : '–'}</> },
  { id: 'last', head: `Last failure (${zoneName()})`, width: '184px', mono: true, cell: (row) => <Time at={row.lastFailure} /> },
  { id: 'first', head: 'First failure', width: '184px', mono: true, hidden: true, cell: (row) => <Time at={row.firstFailure} /> },
  { id: 'key', head: 'Key', width: 'minmax(90px, 1fr)', mono: true, cell: (row) => visible(row.key ?? '') },
  { id: 'type', head: 'Type', width: 'minmax(90px, 1fr)', cell: (row) => visible(row.type ?? '') },
  { id: 'content', head: 'Content', width: 'minmax(140px, 2fr)', hidden: true, cell: (row) => <Glimpse text={row.payload} withheld={row.withheld} /> },
];

export function LettersPage(): JSX.Element {
  const { query } = useStore(route);
  const topic = query.get('topic');
  const topics = useGet<LetterTopics>(topic ? null : '/letters/topics');
  useEffect(() => {
    const first = topics.data?.topics.find((one) => one.waiting > 0) ?? topics.data?.topics[0];
    if (!topic && first) replaceQuery({ topic: first.topic });
  }, [topics.data, topic]);
  return (
    <>
      <header class="page-head">
        <h1>{words.letters}</h1>
        <nav class="tabs" aria-label={words.tabs}>
          <a href={to('letters', { topic })} aria-current="page">Of topics</a>
          <a href={to('failed')}>Of hosts</a>
        </nav>
      </header>
      <Problem error={topics.error} retry={topics.reload} />
      {topic ? <OfTopic key={topic} topic={topic} /> : topics.loading ? <Shape /> : topics.data?.topics.length === 0 ? <None /> : null}
    </>
  );
}

function None(): JSX.Element {
  return (
    <Empty title={words.noLetters} command="signalhub sub ls">
      Subscriptions with the policy block stop instead: see <a href={to('subs', { state: 'blocked' })}>blocked subscriptions</a>.
    </Empty>
  );
}

type Chosen = { readonly seqs: readonly number[] } | { readonly filter: Record<string, string> } | { readonly all: true };
type Open = { readonly what: 'redrive' | 'purge'; readonly chosen: Chosen } | { readonly what: 'edit'; readonly letter: Letter } | null;

function OfTopic({ topic }: { readonly topic: string }): JSX.Element {
  const { query } = useStore(route);
  const reason = query.get('reason');
  const subscription = query.get('subscription');
  const asked = { topic, reason, subscription, limit: 200 };
  const pages = usePages<Letter, Letters>('/letters', asked, (answer) => answer.rows, 'before');
  const [selected, select] = useState<ReadonlySet<string>>(new Set());
  const [open, setOpen] = useState<Open>(null);
  const [job, setJob] = useState<string | null>(null);
  const columns = useMemo(COLUMNS, [zoneName()]);
  const data = pages.data;
  const chosen = pages.rows.filter((row) => selected.has(String(row.seq)));
  const filter = { ...(reason ? { reason } : {}), ...(subscription ? { subscription } : {}) };
  const matching: Chosen = Object.keys(filter).length > 0 ? { filter } : { all: true };
  const most = Math.max(1, ...(data?.byReason.map((one) => one.count) ?? []));
  const close = (): void => {
    setOpen(null);
    select(new Set());
    pages.reload();
  };
  return (
    <>
      {job && <JobProgress job={job} onDone={pages.reload} />}
      <Problem error={pages.error} retry={pages.reload} />
      {pages.loading && <Shape lines={12} />}
      {data && data.byReason.length > 0 && (
        <section class="panel">
          <h2>By reason</h2>
          <ul class="bars">
            {data.byReason.slice(0, 8).map((one) => (
              <li key={one.reason}>
                <button type="button" class="bar" aria-pressed={reason === one.reason} onClick={() => replaceQuery({ reason: reason === one.reason ? null : one.reason })}>
                  <span>{visible(one.reason)}</span>
                  <i style={{ width: `${((one.count / most) * 100).toFixed(1)}%` }} aria-hidden="true" />
                  <b>{count(one.count)}</b>
                </button>
              </li>
            ))}
          </ul>
        </section>
      )}
      {data && (
        <Table
          name="letters"
          label={words.letters}
          columns={columns}
          rows={pages.rows}
          total={data.waiting}
          rowKey={(row) => String(row.seq)}
          onOpen={(row) => setOpen({ what: 'edit', letter: row })}
          onEnd={pages.more}
          selected={selected}
          onSelect={select}
          everything={() => everyRow<Letter, Letters>('/letters', asked, (answer) => answer.rows, 'before')}
          empty={reason || subscription ? <Empty title={words.noMatch} /> : <None />}
          tools={
            <>
              <SearchField name="topic" label="Topic" mono />
              <SearchField name="subscription" label="Subscription" mono />
              <span class="dim totals">
                {count(data.waiting)} waiting · {count(data.ever)} ever
              </span>
              <span class="dim" role="status">
                {count(chosen.length)} selected
              </span>
              <Action verb="manage" over={topic} small disabled={chosen.length === 0} onClick={() => setOpen({ what: 'redrive', chosen: { seqs: chosen.map((row) => row.seq) } })}>
                {words.redrive}…
              </Action>
              <Action verb="manage" over={topic} small disabled={chosen.length !== 1} onClick={() => chosen[0] && setOpen({ what: 'edit', letter: chosen[0] })}>
                {words.editAndRedrive}…
              </Action>
              <Action verb="delete" over={topic} small isDestructive disabled={chosen.length === 0} onClick={() => setOpen({ what: 'purge', chosen: { seqs: chosen.map((row) => row.seq) } })}>
                {words.purge}…
              </Action>
              <Action verb="manage" over={topic} small disabled={pages.rows.length === 0} onClick={() => setOpen({ what: 'redrive', chosen: matching })}>
                {words.redrive} all that match…
              </Action>
              <Action verb="delete" over={topic} small isDestructive disabled={pages.rows.length === 0} onClick={() => setOpen({ what: 'purge', chosen: matching })}>
                {words.purge} all that match…
              </Action>
            </>
          }
        />
      )}
      {open && open.what !== 'edit' && data && <Bulk what={open.what} chosen={open.chosen} topic={topic} epoch={data.epoch} through={data.through} onJob={setJob} onClose={close} />}
      {open?.what === 'edit' && data && <Edit letter={open.letter} topic={topic} epoch={data.epoch} onJob={setJob} onClose={close} />}
    </>
  );
}

const TYPED_ABOVE = 1000;

interface BulkProps {
  readonly what: 'redrive' | 'purge';
  readonly chosen: Chosen;
  readonly topic: string;
  readonly epoch: string;
  readonly through: number;
  readonly onJob: (job: string) => void;
  readonly onClose: () => void;
}

function Bulk({ what, chosen, topic, epoch, through, onJob, onClose }: BulkProps): JSX.Element {
  const [preview, setPreview] = useState<LettersPreview | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const base = { topic, ...chosen, epoch, ...('seqs' in chosen ? {} : { through }) };
  useEffect(() => {
    post<LettersPreview>(`/letters/${what}`, { ...base, dryRun: true })
      .then(setPreview)
      .catch((refused: unknown) => setError(refused instanceof ApiError ? refused : null));
  }, []);
  const text = what === 'redrive' ? words.redrive : words.purge;
  const options = 'seqs' in chosen ? chosen.seqs.map((seq) => `--seq ${seq}`).join(' ') : 'filter' in chosen ? `--all ${Object.entries(chosen.filter).map(([name, value]) => `--where ${quoted(`${name}=${value}`)}`).join(' ')} --through ${through}` : `--all --through ${through}`;
  return (
    <Confirm
      title={`${text}: ${topic}`}
      act={preview ? `${text} ${count(preview.count)}` : text}
      isDestructive={what === 'purge'}
      isReady={preview !== null && preview.count > 0}
      typed={preview && (what === 'purge' || preview.count > TYPED_ABOVE) ? topic : undefined}
      command={`signalhub dlq ${what} ${quoted(topic)} ${options}`}
      wide
      perform={async () => {
        const answer = await post<Partial<JobStarted>>(`/letters/${what}`, { ...base, ...(preview ? { through: preview.through } : {}) });
        if (answer.job) onJob(answer.job);
      }}
      onClose={onClose}
    >
      <p>{what === 'redrive' ? words.redriveExplained : words.purgeExplained}</p>
      <Problem error={error} />
      {!preview && !error && <Shape lines={4} />}
      {preview && (
        <>
          <p role="status">
            <b>{count(preview.count)}</b> letters up to seq {count(preview.through)}
            {preview.skipped > 0 && `; ${count(preview.skipped)} are skipped`}.
          </p>
          {preview.byReason && preview.byReason.length > 0 && (
            <ul class="names">
              {preview.byReason.slice(0, 6).map((one) => (
                <li key={one.reason}>
                  <span>{visible(one.reason)}</span>
                  <b>{count(one.count)}</b>
                </li>
              ))}
            </ul>
          )}
          <div class="plain-scroll" tabIndex={0} role="region" aria-label="First letters">
            <table class="plain">
              <thead>
                <tr>
                  <th scope="col" class="end">Seq</th>
                  <th scope="col">From</th>
                  <th scope="col">Reason</th>
                </tr>
              </thead>
              <tbody>
                {preview.first.map((row) => (
                  <tr key={row.seq}>
                    <td class="end">{count(row.seq)}</td>
                    <td class="mono">{visible(`${row.stream ?? ''} / ${row.subscription ?? ''}`)}</td>
                    <td>{visible(row.reason ?? '–')}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </Confirm>
  );
}

function Edit({ letter, topic, epoch, onJob, onClose }: { readonly letter: Letter; readonly topic: string; readonly epoch: string; readonly onJob: (job: string) => void; readonly onClose: () => void }): JSX.Element {
  const original = letter.payload === null ? '' : indented(letter.payload);
  const [text, setText] = useState(original);
  const [type, setType] = useState(letter.type ?? '');
  const [key, setKey] = useState(letter.key ?? '');
  const isJson = tokens(text) !== null;
  const isDataChanged = text !== original;
  const isChanged = isDataChanged || type !== (letter.type ?? '') || key !== (letter.key ?? '');
  const isWhole = letter.payload !== null && !letter.cut;
  // Data is put in as text: a number that went through JSON.parse might come out as another.
  const edits = [isDataChanged ? `"data":${text}` : '', type !== (letter.type ?? '') ? `"type":${JSON.stringify(type)}` : '', key !== (letter.key ?? '') ? `"key":${key === '' ? 'null' : JSON.stringify(key)}` : ''].filter(Boolean).join(',');
  return (
    <Confirm
      title={`${topic} ${letter.seq}`}
      act={isChanged ? words.editAndRedrive : words.redrive}
      isReady={!isDataChanged || (isJson && isWhole)}
      command={`signalhub dlq redrive ${quoted(topic)} --seq ${letter.seq}${edits ? ` --edit ${quoted(`${letter.seq}={${edits}}`)}` : ''}`}
      wide
      perform={async () => {
        const body = `{"topic":${JSON.stringify(topic)},"seqs":[${letter.seq}],"epoch":${JSON.stringify(epoch)}${edits ? `,"edits":{"${letter.seq}":{${edits}}}` : ''}}`;
        const answer = await sendText<Partial<JobStarted>>('POST', '/letters/redrive', body);
        if (answer.job) onJob(answer.job);
      }}
      onClose={onClose}
    >
      <p>
        <b>{visible(letter.source)} / {visible(letter.subscription)}</b>, seq {count(letter.originalSeq)}: {visible(letter.reason ?? 'no reason given')} <span class="dim">({count(letter.attempts)} attempts)</span>
      </p>
      <div class="form-grid">
        <label class="field">
          <span>Type</span>
          <input class="mono" value={type} onInput={(event) => setType(event.currentTarget.value)} />
        </label>
        <label class="field">
          <span>Key</span>
          <input class="mono" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
      </div>
      <div class="compare">
        <div>
          <h3>Original</h3>
          <pre tabIndex={0} aria-label="Original">{letter.withheld ? words.withheld : marked(original, text, 'gone')}</pre>
        </div>
        <label class="field">
          <span>Data, as JSON</span>
          <textarea class="mono" rows={12} spellcheck={false} aria-invalid={!isJson} disabled={!isWhole} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          {!isJson && text !== '' && <small class="bad-text" role="status">{words.invalidJson}</small>}
          {!isChanged && <small class="dim">{words.unchanged}</small>}
          {letter.cut && <small class="dim">This letter is too long to edit here; use the command.</small>}
        </label>
      </div>
    </Confirm>
  );
}

/** The lines of one text that the other has not are marked. */
function marked(text: string, other: string, mark: string): JSX.Element[] {
  const others = new Set(other.split('\n'));
  return text.split('\n').map((line, index) => (
    <span key={index} class={others.has(line) ? '' : mark}>
      {line}
      {'\n'}
    </span>
  ));
}

