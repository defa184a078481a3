// One durable subscription: where it reads, what is in flight, and moving it.

import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import type { FlightRow, SeekAnswer, SeekPlan, SubscriptionAnswer } from '../answers';
import { ApiError, pathOf, post, send } from '../api';
import { Chart } from '../chart';
import { useGet, useLive, useStore } from '../hooks';
import { Ago, Facts, quoted, spanOfSeconds, Tag } from '../parts/controls';
import { Action, Confirm } from '../parts/dialog';
import { Fresh, Problem, Shape } from '../parts/notices';
import { go, route, to } from '../router';
import { Table } from '../table';
import type { Column } from '../table';
import { count, rate, visible } from '../text';
import { full, now, parse, span, zoneName } from '../when';
import { words } from '../words';
import { StateTag } from './subscriptions';

type Open = 'pause' | 'resume' | 'seek' | 'set' | 'delete' | { readonly settle: 'ack' | 'nack' | 'term'; readonly seqs: readonly number[] } | null;

export function SubscriptionPage(): JSX.Element {
  const { path } = useStore(route);
  const topic = path[1] ?? '';
  const name = path[2] ?? '';
  const address = pathOf('topics', topic, 'subscriptions', name);
  const first = useGet<SubscriptionAnswer>(address);
  const live = useLive<SubscriptionAnswer>('subscription', { topic, name });
  const data = live.data ?? first.data;
  const [open, setOpen] = useState<Open>(null);
  const close = (): void => {
    setOpen(null);
    first.reload();
  };
  const which = `${quoted(topic)} ${quoted(name)}`;
  return (
    <>
      <header class="page-head">
        <h1 class="mono">
          <a class="up" href={to('subs')}>{words.subscriptions}</a> {visible(topic)} / {visible(name)}
        </h1>
        {data && <StateTag row={data} />}
        <span class="gap" />
        {data && (
          <>
            <Action verb="manage" over={topic} owner={data.owner} onClick={() => setOpen(data.paused ? 'resume' : 'pause')}>
              {data.paused ? words.resume : words.pause}…
            </Action>
            <Action verb="manage" over={topic} owner={data.owner} onClick={() => setOpen('seek')}>
              {words.seek}…
            </Action>
            <Action verb="manage" over={topic} owner={data.owner} onClick={() => setOpen('set')}>
              {words.set}…
            </Action>
            <Action verb="delete" over={topic} owner={data.owner} isDestructive onClick={() => setOpen('delete')}>
              {words.deleteSubscription}…
            </Action>
          </>
        )}
      </header>
      <Problem error={first.error} retry={first.reload} />
      {!data && !first.error && <Shape />}
      {data && (
        <>
          <Fresh>
            <Lead data={data} />
            <Reading data={data} />
          </Fresh>
          <Lag data={data} />
          <Seats data={data} />
          <Flights data={data} settle={(how, seqs) => setOpen({ settle: how, seqs })} />
          <Options data={data} />
        </>
      )}
      {data && (open === 'pause' || open === 'resume') && (
        <Confirm
          title={`${open === 'pause' ? words.pause : words.resume} ${topic} / ${name}`}
          act={open === 'pause' ? words.pause : words.resume}
          command={`signalhub sub ${open} ${which}`}
          perform={async () => {
            await post(`${address}/${open}`, {});
          }}
          onClose={close}
        >
          <p>{open === 'pause' ? words.pauseExplained : words.resumeExplained}</p>
        </Confirm>
      )}
      {data && open === 'seek' && <Seek data={data} address={address} which={which} onClose={close} />}
      {data && open === 'set' && <SetOptions data={data} address={address} which={which} onClose={close} />}
      {data && open === 'delete' && (
        <Confirm
          title={`${words.deleteSubscription} ${topic} / ${name}`}
          act={words.deleteSubscription}
          isDestructive
          typed={name}
          command={`signalhub sub delete ${which}`}
          perform={async () => {
            await send('DELETE', address, {});
            go(to('subs'));
          }}
          onClose={close}
        >
          <p>
            {words.deleteSubscriptionExplained} {count(data.lag)} messages are unsettled.
          </p>
        </Confirm>
      )}
      {data && typeof open === 'object' && open !== null && (
        <Confirm
          title={`${SETTLE[open.settle]} ${open.seqs.length === 1 ? `seq ${open.seqs[0]}` : `${open.seqs.length} messages`}`}
          act={SETTLE[open.settle]}
          isDestructive={open.settle === 'term'}
          perform={async () => {
            await post(`${address}/settle`, { verdict: open.settle, seqs: open.seqs, generation: data.generation });
          }}
          onClose={close}
        >
          <p>{words.settleExplained}</p>
        </Confirm>
      )}
    </>
  );
}

const SETTLE = { ack: words.ack, nack: words.nack, term: words.term };

/** How the lag changes per second: over the last minute where it is known, because a second is too short for a slow topic. */
function trendOf({ history, trend }: SubscriptionAnswer): number | null {
  const end = history.at(-1);
  const since = end && history.find((one) => one.at >= end.at - 60_000);
  const seconds = since ? (end.at - since.at) / 1000 : 0;
  return since && seconds >= 20 ? (end.lag - since.lag) / seconds : trend;
}

function Lead({ data }: { readonly data: SubscriptionAnswer }): JSX.Element {
  const trend = trendOf(data) ?? 0;
  return (
    <dl class="stats">
      <div class="stat"><dt>Lag</dt><dd>{count(data.lag)}</dd><dd class="note">{data.oldestAt === null ? 'nothing waits' : <>oldest <Ago at={data.oldestAt} /></>}</dd></div>
      <div class="stat"><dt>Settled per second</dt><dd>{rate(data.settledRate)}</dd><dd class="note">{rate(data.deliveredRate)} delivered</dd></div>
      <div class="stat"><dt>Trend</dt><dd class={trend > 0.05 && data.lag > 0 ? 'warn' : ''}>{trendOf(data) === null ? '–' : `${trend > 0 ? '+' : ''}${rate(trend)}/s`}</dd><dd class="note">{trend > 0.05 ? 'growing' : trend < -0.05 ? 'shrinking' : 'steady'}</dd></div>
      <div class="stat"><dt>In flight</dt><dd>{count(data.inFlight)}</dd><dd class="note">window {count(data.window)}</dd></div>
      <div class="stat"><dt>Consumers</dt><dd>{count(data.consumers)}</dd><dd class="note">{data.mode.replace('_', ' ')}</dd></div>
      <div class="stat"><dt>Dead letters</dt><dd class={data.deadLettered > 0 ? 'warn' : ''}>{count(data.deadLettered)}</dd><dd class="note">{data.exhausted > 0 ? `${count(data.exhausted)} exhausted` : data.poison.replace('_', ' ')}</dd></div>
    </dl>
  );
}

/** Whether it will ever be done, at the rate of now. */
function forecast(data: SubscriptionAnswer): string {
  const trend = trendOf(data) ?? 0;
  if (data.lag === 0) return 'Everything is settled.';
  if (data.paused) return 'It is paused: nothing is delivered until somebody resumes it.';
  if (data.blocked) return `It is blocked by ${count(data.exhausted)} that failed too often: acknowledge or terminate them below to go on.`;
  if (trend < -0.05) return `At this rate it has caught up in ${span((data.lag / -trend) * 1000)}.`;
  if (trend > 0.05) return `At this rate it never catches up: the lag doubles in ${span((data.lag / trend) * 1000)}.`;
  return (data.settledRate ?? 0) > 0 ? 'At this rate the lag stays as it is.' : 'Nothing is being settled.';
}

/** first ── floor ▒ in flight ▒ next ──────── head */
function Reading({ data }: { readonly data: SubscriptionAnswer }): JSX.Element {
  const low = Math.min(data.first, data.floor + 1);
  const size = Math.max(1, data.head - low + 1);
  const share = (seq: number): string => `${Math.max(0, Math.min(100, ((seq - low) / size) * 100)).toFixed(2)}%`;
  const text = `first ${data.first}, floor ${data.floor}, next ${data.next}, head ${data.head}`;
  return (
    <section class="panel">
      <h2>Position</h2>
      <div class="reading" role="img" aria-label={text}>
        <i class="done" style={{ width: share(data.floor + 1) }} />
        <i class="flying" style={{ left: share(data.floor + 1), width: `calc(${share(data.next)} - ${share(data.floor + 1)})` }} />
      </div>
      <Facts
        rows={[
          ['First', count(data.first)],
          ['Floor', count(data.floor)],
          ['In flight above it', count(data.inFlight)],
          ['Next', count(data.next)],
          ['Head', count(data.head)],
          ['To read', count(Math.max(0, data.head - data.next + 1))],
        ]}
      />
      <p>{forecast(data)}</p>
      {data.heldUp && (
        <p class="notice bad">
          <strong>Held up.</strong> {data.heldUp}
        </p>
      )}
    </section>
  );
}

function Lag({ data }: { readonly data: SubscriptionAnswer }): JSX.Element | null {
  const kept = data.history;
  const key = `${kept.length} ${kept.at(-1)?.at ?? 0}`;
  const chart = useMemo(() => ({ t: kept.map((one) => one.at), lines: [{ label: 'lag', values: kept.map((one) => one.lag) }] }), [key]);
  const end = kept.at(-1);
  if (!end || kept.length < 3) return null;
  return <Chart title="Lag, 15 minutes" t={chart.t} lines={chart.lines} from={end.at - 900_000} to={end.at} show={count} height={120} />;
}

function Seats({ data }: { readonly data: SubscriptionAnswer }): JSX.Element {
  return (
    <section class="panel">
      <h2>{words.consumers}</h2>
      {data.seats.length === 0 ? (
        <p class="dim">{words.noConsumers}</p>
      ) : (
        <ul class="names">
          {data.seats.map((one) => (
            <li key={one.subscriptionId}>
              <span class="mono">
                {visible(one.consumer)} <a href={to('sessions', { q: one.session })}>{one.session.slice(0, 14)}</a>
              </span>
              <span>
                {count(one.inFlight)} of {count(one.window)} in flight {one.blocked && <Tag tone="warn">blocked</Tag>}
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

const PHASES = { ready: 'calm', sent: 'good', waiting: 'warn', exhausted: 'bad' } as const;

function Flights({ data, settle }: { readonly data: SubscriptionAnswer; readonly settle: (how: 'ack' | 'nack' | 'term', seqs: readonly number[]) => void }): JSX.Element {
  const [selected, select] = useState<ReadonlySet<string>>(new Set());
  const chosen = data.flights.filter((one) => selected.has(String(one.seq))).map((one) => one.seq);
  const columns = useMemo<readonly Column<FlightRow>[]>(
    () => [
      { id: 'seq', head: 'Seq', width: '100px', end: true, card: 'title', mono: true, cell: (row) => <a href={to('log', row.key ? { stream: data.topic, key: row.key } : { stream: data.topic })}>{count(row.seq)}</a> },
      { id: 'phase', head: 'Phase', width: '110px', cell: (row) => <Tag tone={PHASES[row.phase]}>{row.phase}</Tag> },
      { id: 'attempt', head: 'Attempt', width: '76px', end: true, cell: (row) => row.attempt },
      { id: 'failures', head: 'Failures', width: '80px', end: true, cell: (row) => row.failures },
      { id: 'consumer', head: 'Consumer', width: 'minmax(100px, 1fr)', mono: true, cell: (row) => (row.consumer ? visible(row.consumer) : '–') },
      { id: 'sent', head: 'Sent', width: '100px', end: true, cell: (row) => (row.sentAt ? span(now() - row.sentAt) : '–') },
      { id: 'due', head: 'Due in', width: '90px', end: true, cell: (row) => (row.dueAt ? span(row.dueAt - now()) : '–') },
      { id: 'key', head: 'Key', width: 'minmax(90px, 1fr)', mono: true, cell: (row) => (row.key ? visible(row.key) : '–') },
      { id: 'reason', head: 'Reason', width: 'minmax(120px, 2fr)', cell: (row) => (row.reason ? visible(row.reason) : '–') },
    ],
    [data.topic],
  );
  return (
    <section class="panel grows">
      <h2>
        {words.flights} <span class="badge calm">{count(data.flightsTotal)}</span>
      </h2>
      {data.flights.length === 0 ? (
        <p class="dim">{words.noFlights}</p>
      ) : (
        <Table
          name="flights"
          label={words.flights}
          columns={columns}
          rows={data.flights}
          rowKey={(row) => String(row.seq)}
          selected={selected}
          onSelect={select}
          tools={
            <>
              <span class="dim">{count(chosen.length)} selected</span>
              {(['ack', 'nack', 'term'] as const).map((how) => (
                <Action key={how} verb="manage" over={data.topic} owner={data.owner} small disabled={chosen.length === 0} onClick={() => settle(how, chosen)}>
                  {SETTLE[how]}…
                </Action>
              ))}
            </>
          }
        />
      )}
    </section>
  );
}

function Options({ data }: { readonly data: SubscriptionAnswer }): JSX.Element {
  return (
    <section class="panel">
      <h2>Options</h2>
      <Facts
        rows={[
          ['Mode', data.mode.replace('_', ' ')],
          ['Window', count(data.window)],
          ['Ack timeout', span(data.ackTimeoutMs)],
          ['Max deliveries', data.maxDeliveries === 0 ? 'no limit' : count(data.maxDeliveries)],
          ['Back-off', `${span(data.backoffMs)} to ${span(data.backoffCapMs)}`],
          ['Poison policy', data.poison.replace('_', ' ')],
          data.poison === 'dead_letter' ? ['Dead letters go to', <a href={to('letters', { topic: data.deadLetter })}>{data.deadLetter}</a>] : null,
          ['Rate limit', data.ratePerSecond > 0 ? `${rate(data.ratePerSecond)}/s` : 'none'],
          ['Expires when idle for', data.idleExpiryMs > 0 ? spanOfSeconds(data.idleExpiryMs / 1000) : 'never'],
          data.idleSince ? ['Idle', <Ago at={data.idleSince} />] : null,
          ['Delivered', count(data.delivered)],
          ['Settled', count(data.settled)],
          ['Redelivered', count(data.redelivered)],
          ['Nacked', count(data.nacked)],
          ['Timed out', count(data.timeouts)],
          ['Lost by policy', count(data.lost)],
          ['Generation', count(data.generation)],
          ['Owner', data.owner || '–'],
        ]}
      />
      <p>
        <a href={to('actions', { text: data.subscription })}>What operators did to it</a>
      </p>
    </section>
  );
}

type Target = 'earliest' | 'latest' | 'time' | 'seq' | 'last';
const TARGETS: readonly (readonly [Target, string])[] = [
  ['earliest', 'earliest message'],
  ['latest', 'latest message'],
  ['time', 'time'],
  ['seq', 'seq'],
  ['last', 'last n messages'],
];

function Seek({ data, address, which, onClose }: { readonly data: SubscriptionAnswer; readonly address: string; readonly which: string; readonly onClose: () => void }): JSX.Element {
  const [target, setTarget] = useState<Target>('time');
  const [time, setTime] = useState(full(now() - 3_600_000).slice(0, 19));
  const [seq, setSeq] = useState(String(Math.max(1, data.floor + 1)));
  const [last, setLast] = useState('100');
  const [round, again] = useState(0);
  const [plan, setPlan] = useState<SeekPlan | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const at = parse(time);
  const where = whereOf(target, at, Number(seq), Number(last));
  const key = JSON.stringify(where);
  useEffect(() => {
    setPlan(null);
    setError(null);
    if (where === null) return undefined;
    let gone = false;
    const timer = setTimeout(() => {
      post<SeekAnswer>(`${address}/seek`, { to: where, dryRun: true })
        .then((answer) => !gone && setPlan(answer.plan))
        .catch((refused: unknown) => !gone && setError(refused instanceof ApiError ? refused : null));
    }, 250);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [key, round]);
  return (
    <Confirm
      title={`${words.seek} ${data.topic} / ${data.subscription}`}
      act={words.seek}
      isReady={plan !== null}
      command={where === null ? undefined : `signalhub sub seek ${which} ${positionOf(target, at, seq, last)}`}
      perform={async () => {
        try {
          await post(`${address}/seek`, { plan: { epoch: plan?.epoch, next: plan?.next, generation: plan?.generation } });
        } catch (refused) {
          // Floor or generation changed meanwhile: what would happen is looked up again.
          if (refused instanceof ApiError && refused.status === 409) again(round + 1);
          throw refused;
        }
      }}
      onClose={onClose}
    >
      <fieldset class="radios">
        <legend>To</legend>
        {TARGETS.map(([one, text]) => (
          <label key={one}>
            <input type="radio" name="target" checked={target === one} onChange={() => setTarget(one)} /> {text}
          </label>
        ))}
      </fieldset>
      {target === 'time' && (
        <label class="field">
          <span>Time ({zoneName()})</span>
          <input class="mono" value={time} aria-invalid={at === null} onInput={(event) => setTime(event.currentTarget.value)} />
          {at === null && <small class="bad-text">Write 2026-11-16 17:00:00</small>}
        </label>
      )}
      {target === 'seq' && (
        <label class="field">
          <span>Seq, {count(data.first)} to {count(data.head + 1)}</span>
          <input class="mono" inputMode="numeric" value={seq} onInput={(event) => setSeq(event.currentTarget.value)} />
        </label>
      )}
      {target === 'last' && (
        <label class="field">
          <span>How many of the last messages come again</span>
          <input class="mono" inputMode="numeric" value={last} onInput={(event) => setLast(event.currentTarget.value)} />
        </label>
      )}
      <Problem error={error} />
      <div class="plan" role="status" aria-live="polite">
        {plan ? (
          <>
            <p>
              {words.preview} at head {count(plan.head)}: next is <b>{count(plan.next)}</b>.
            </p>
            <p>
              Replays <b>{count(plan.willReplay)}</b> settled messages, skips <b>{count(plan.willSkip)}</b>.
            </p>
            <p class="dim">
              {count(plan.inFlight)} deliveries in flight are void. {words.seekExplained}
            </p>
          </>
        ) : (
          <p class="dim">{error ? '' : where === null ? 'Choose where to.' : words.loading}</p>
        )}
      </div>
    </Confirm>
  );
}

function whereOf(target: Target, at: number | null, seq: number, last: number): Record<string, unknown> | string | null {
  if (target === 'earliest' || target === 'latest') return target;
  if (target === 'time') return at === null ? null : { time: at };
  if (target === 'seq') return Number.isInteger(seq) && seq >= 1 ? { seq } : null;
  return Number.isInteger(last) && last >= 1 ? { last } : null;
}

function positionOf(target: Target, at: number | null, seq: string, last: string): string {
  if (target === 'earliest' || target === 'latest') return target;
  if (target === 'time') return `time:${new Date(at ?? 0).toISOString()}`;
  return target === 'seq' ? `seq:${seq}` : `last:${last}`;
}

function SetOptions({ data, address, which, onClose }: { readonly data: SubscriptionAnswer; readonly address: string; readonly which: string; readonly onClose: () => void }): JSX.Element {
  const [timeout, setTimeoutText] = useState(String(data.ackTimeoutMs / 1000));
  const [deliveries, setDeliveries] = useState(String(data.maxDeliveries));
  const [window, setWindow] = useState(String(data.window));
  const [poison, setPoison] = useState(data.poison);
  const [limit, setLimit] = useState(String(data.ratePerSecond));
  const changes: Record<string, unknown> = {};
  const options: string[] = [];
  const changed = (name: string, before: number | string, after: number | string, option: string): void => {
    if (before === after) return;
    changes[name] = after;
    options.push(option);
  };
  changed('ackTimeoutMs', data.ackTimeoutMs, Math.round(Number(timeout) * 1000), `--ack-timeout ${timeout}s`);
  changed('maxDeliveries', data.maxDeliveries, Number(deliveries), `--max-deliveries ${deliveries}`);
  changed('window', data.window, Number(window), `--window ${window}`);
  changed('poison', data.poison, poison, `--poison ${poison}`);
  changed('ratePerSecond', data.ratePerSecond, Number(limit), `--rate ${limit}`);
  const isValid = [timeout, deliveries, window, limit].every((one) => one.trim() !== '' && Number(one) >= 0);
  return (
    <Confirm
      title={`${words.set} of ${data.topic} / ${data.subscription}`}
      act={words.set}
      isReady={isValid && options.length > 0}
      command={options.length > 0 ? `signalhub sub set ${which} ${options.join(' ')}` : undefined}
      perform={async () => {
        await post(`${address}/set`, changes);
      }}
      onClose={onClose}
    >
      <div class="form-grid">
        <label class="field"><span>Ack timeout, seconds</span><input inputMode="decimal" value={timeout} onInput={(event) => setTimeoutText(event.currentTarget.value)} /></label>
        <label class="field"><span>Max deliveries</span><input inputMode="numeric" value={deliveries} onInput={(event) => setDeliveries(event.currentTarget.value)} /></label>
        <label class="field"><span>Window</span><input inputMode="numeric" value={window} onInput={(event) => setWindow(event.currentTarget.value)} /></label>
        <label class="field"><span>Rate limit per second, 0 for none</span><input inputMode="decimal" value={limit} onInput={(event) => setLimit(event.currentTarget.value)} /></label>
        <label class="field">
          <span>Poison policy</span>
          <select value={poison} onChange={(event) => setPoison(event.currentTarget.value)}>
            {['block', 'drop', 'dead_letter'].map((one) => (
              <option key={one} value={one}>{one.replace('_', ' ')}</option>
            ))}
          </select>
        </label>
      </div>
    </Confirm>
  );
}

