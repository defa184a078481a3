// What goes on, what needs attention, and how it has been.

import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import type { Attention, BusyName, OverviewAnswer, SeriesAnswer } from '../answers';
import { Chart } from '../chart';
import type { ChartLine } from '../chart';
import { useGet, useLive, useStore } from '../hooks';
import { Ago, Command, Meter, Ranges, SearchField, Stat, Tag } from '../parts/controls';
import { Empty, Fresh, Problem, Shape } from '../parts/notices';
import { route, to } from '../router';
import { me } from '../session';
import { bytes, count, rate } from '../text';
import { now, parse, RANGES, span } from '../when';
import { words } from '../words';

const NAMES = ['in', 'out', 'stored', 'tell_p99', 'ask_p50', 'ask_p99', 'sync_p99', 'lag_total', 'log_bytes', 'rss', 'loop_lag_p99', 'cpu'];

export function OverviewPage(): JSX.Element {
  const live = useLive<OverviewAnswer>('overview');
  const first = useGet<OverviewAnswer>('/overview');
  const data = live.data ?? first.data;
  if (!data) return first.error ? <Page><Problem error={first.error} retry={first.reload} /></Page> : <Page><Shape lines={9} /></Page>;
  return (
    <Page>
      <Fresh>
        <Numbers data={data} />
      </Fresh>
      <AttentionList rows={data.attention} total={data.attentionTotal} />
      <Charts />
      <Busy data={data} />
      <Limits data={data} />
    </Page>
  );
}

function Page({ children }: { readonly children: preact.ComponentChildren }): JSX.Element {
  return (
    <>
      <header class="page-head">
        <h1>{words.overview}</h1>
        <Ranges />
        <span class="until">
          <SearchField name="until" label={words.until} placeholder={words.now} mono />
        </span>
      </header>
      {children}
    </>
  );
}

function Numbers({ data }: { readonly data: OverviewAnswer }): JSX.Element {
  const one = (name: string): number | null => data.sample[name] ?? null;
  const lake = me.value?.features.lake;
  const blocked = one('blocked') ?? 0;
  // The red is that of the blocked ones, which need not be those with the worst lag.
  const worstNote = [
    (one('lag_worst') ?? 0) > 0 ? `oldest ${span((one('oldest_worst') ?? 0) * 1000)}` : '',
    blocked > 0 ? `${count(blocked)} blocked` : '',
  ].filter(Boolean).join(', ') || undefined;
  const actorLimit = data.limits.find((row) => row.resource === 'actors' || row.resource === 'registrations')?.limit;
  return (
    <dl class="stats eight">
      <Stat label="In / s" value={rate(one('in'))} />
      <Stat label="Out / s" value={rate(one('out'))} />
      <Stat label="Stored / s" value={rate(one('stored'))} href={to('log')} />
      <Stat label="Ask p99" value={span(one('ask_p99'))} />
      <Stat label="Sync p99" value={span(one('sync_p99'))} />
      <Stat label="Sessions" value={count(one('sessions'))} note={`actors: ${count(one('actors'))}${actorLimit ? ` of ${count(actorLimit)}` : ''}`} href={to('sessions')} />
      <Stat label="Worst lag" value={count(one('lag_worst'))} note={worstNote} href={to('subs', { sort: 'lag' })} tone={blocked > 0 ? 'bad' : undefined} />
      <Stat label="Lake behind" value={lake ? span((one('lake_lag_s') ?? 0) * 1000) : 'off'} note={lake ? `${count(one('lake_lag'))} entries` : undefined} href={to('lake')} />
    </dl>
  );
}

function AttentionList({ rows, total }: { readonly rows: readonly Attention[]; readonly total: number }): JSX.Element {
  return (
    <section class="panel">
      <h2>
        {words.attention}
        {total > 0 ? <span class="badge">{total}</span> : null}
      </h2>
      {rows.length === 0 ? (
        <p class="calm-line">
          <Tag tone="good">{words.nothingWrong}</Tag>
        </p>
      ) : (
        <ul class="attention">
          {rows.map((row) => (
            <li key={`${row.code} ${row.topic} ${row.subscription} ${row.address} ${row.text}`}>
              <Tag tone={row.level === 'error' ? 'bad' : 'warn'}>{row.code.replaceAll('_', ' ')}</Tag>
              <span class="attention-text">{row.text}</span>
              <span class="dim">
                <Ago at={row.since} />
              </span>
              <a class="button small" href={row.link.startsWith('#') ? row.link : `#${row.link}`} aria-label={`${words.look}: ${row.text}`}>
                {words.look}
              </a>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Charts(): JSX.Element {
  const { query } = useStore(route);
  const name = query.get('range') ?? '15m';
  const seconds = RANGES[name as keyof typeof RANGES] ?? 900;
  const step = Math.max(1, Math.round(seconds / 900));
  const fixedTo = parse(query.get('until') ?? '') ?? 0;
  const window = useMemo(() => ({ from: fixedTo ? fixedTo - seconds * 1000 : -seconds * 1000, to: fixedTo }), [seconds, fixedTo]);
  const every = fixedTo ? 0 : Math.max(5000, step * 1000);
  const { data, error, reload } = useGet<SeriesAnswer>('/series', { names: NAMES.join(','), ...rangeOf(window, every), step }, every);
  const series = useMemo(() => data, [data]);
  const until = fixedTo || (series?.t.at(-1) ?? now());
  const from = until - seconds * 1000;
  const lines = useMemo(() => {
    const pick = (label: string, of: string): ChartLine => ({ label, values: series?.series[of] ?? [] });
    return {
      flow: [pick('in', 'in'), pick('out', 'out'), pick('stored', 'stored')],
      latency: [pick('ask p50', 'ask_p50'), pick('ask p99', 'ask_p99'), pick('tell p99', 'tell_p99'), pick('sync p99', 'sync_p99')],
      lag: [pick('unsettled in all', 'lag_total')],
      size: [pick('log', 'log_bytes'), pick('memory', 'rss')],
    };
  }, [series]);
  if (error && !series) return <Problem error={error} retry={reload} />;
  if (!series) return <Shape />;
  const common = { t: series.t, from, to: until, marks: series.marks };
  return (
    <div class="charts">
      <Chart title="Messages per second" lines={lines.flow} show={rate} {...common} />
      <Chart title="Latency" lines={lines.latency} show={(ms) => (ms === null || ms === undefined ? '–' : span(ms))} {...common} />
      <Chart title="Lag of subscriptions" lines={lines.lag} show={count} {...common} />
      <Chart title="Log and memory" lines={lines.size} show={bytes} {...common} />
    </div>
  );
}

/** Whole steps, so that equal requests are equal; the hub takes `from` relative to now if it is negative. */
function rangeOf(window: { from: number; to: number }, every: number): { from: number; to?: number } {
  if (window.to) return window;
  const at = now();
  return { from: Math.floor((at + window.from) / Math.max(every, 60_000)) * Math.max(every, 60_000) };
}

function Busy({ data }: { readonly data: OverviewAnswer }): JSX.Element | null {
  const { topics, actors, errors } = data.busiest;
  const isNew = (data.sample['log_bytes'] ?? 0) < 4096 && (data.sample['sessions'] ?? 0) === 0 && topics.length === 0;
  return (
    <>
      {isNew && (
        <Empty title={words.noMessages} command="signalhub tell '@(demo/bob)' '{&quot;text&quot;: &quot;hello&quot;}'">
          {words.sendFirst} {me.value?.features.tryIt && <a href={to('try')}>{words.tryIt}</a>}
        </Empty>
      )}
      <div class="thirds">
        <section class="panel">
          <h2>{words.busyTopics}</h2>
          <Names rows={topics} link={(name) => to(['topics', name])} />
        </section>
        <section class="panel">
          <h2>{words.busyActors}</h2>
          <Names rows={actors} link={(name) => to(['actors', name])} />
        </section>
        <section class="panel">
          <h2>Errors, 15 minutes</h2>
          {errors.length === 0 ? (
            <p class="dim">{words.noErrors}</p>
          ) : (
            <ul class="names">
              {errors.map((one) => (
                <li key={one.code}>
                  <Command text={`signalhub error ${one.code}`} /> <b>{count(one.count)}</b>
                </li>
              ))}
            </ul>
          )}
        </section>
      </div>
    </>
  );
}

function Names({ rows, link }: { readonly rows: readonly BusyName[]; readonly link: (name: string) => string }): JSX.Element {
  if (rows.length === 0) return <p class="dim">{words.idle}</p>;
  return (
    <ul class="names busy">
      {rows.map((one) => (
        <li key={one.name}>
          <a class="mono" href={link(one.name)}>
            {one.name}
          </a>
          <b>{rate(one.rate)}/s</b>
        </li>
      ))}
    </ul>
  );
}

function Limits({ data }: { readonly data: OverviewAnswer }): JSX.Element {
  return (
    <section class="panel">
      <h2>Limits</h2>
      <ul class="limits">
        {data.limits.map((one) => (
          <li key={one.resource}>
            <span>{one.resource.replaceAll('_', ' ')}</span>
            <Meter used={one.used} limit={one.limit} label={`${one.resource}: ${one.used} of ${one.limit}`} />
            <span class="numbers">
              {shown(one.resource, one.used)} <span class="dim">of {shown(one.resource, one.limit)}</span>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

const shown = (resource: string, n: number): string => (/bytes|disk|memory|log$/.test(resource) ? bytes(n) : count(n));
