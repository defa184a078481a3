// Rooms in numbers: the hub knows no names and shows no ids.

import type { JSX } from 'preact';
import type { RoomsAnswer } from '../answers';
import { useGet } from '../hooks';
import { Meter, Stat } from '../parts/controls';
import { Empty, Fresh, Problem, Shape } from '../parts/notices';
import { bytes, count, rate } from '../text';
import { span } from '../when';
import { words } from '../words';

export function RoomsPage(): JSX.Element {
  const { data, error, reload } = useGet<RoomsAnswer>('/rooms', {}, 2000);
  return (
    <>
      <header class="page-head">
        <h1>{words.rooms}</h1>
      </header>
      <Problem error={error} retry={reload} />
      {!data && !error && <Shape />}
      {data && !data.enabled && <Empty title={words.roomsOff} command="signalhub settings show" />}
      {data?.enabled && (
        <Fresh>
          <Numbers data={data} />
        </Fresh>
      )}
    </>
  );
}

function Numbers({ data }: { readonly data: RoomsAnswer }): JSX.Element {
  const sizes: readonly (readonly [string, number])[] = [
    ['1 socket', data.sizes.one],
    ['2 to 5', data.sizes.few],
    ['6 to 20', data.sizes.many],
    ['more than 20', data.sizes.more],
  ];
  const most = Math.max(1, ...sizes.map(([, n]) => n));
  const spaces: readonly (readonly [string, number, number])[] = [
    ['Buffers of recent messages', data.bufferBytes, data.bufferBytesMax],
    ['Proposals and blobs', data.stateBytes, data.stateBytesMax],
    ['Messages on disk', data.diskBytes, data.diskBytesMax],
  ];
  return (
    <>
      <p class="dim">{words.roomsExplained}</p>
      {data.rooms === 0 && data.inboxes === 0 && <Empty title="No rooms yet." command="signalhub room send general 'hello'" />}
      <dl class="stats eight">
        <Stat label="Rooms" value={count(data.rooms)} note={`inboxes: ${count(data.inboxes)}`} />
        <Stat label="Sockets" value={count(data.sockets)} />
        <Stat label="Messages / s" value={rate(data.messageRate)} note={`${count(data.sent)} ever`} />
        <Stat label="Appends / s" value={rate(data.appendRate)} note={`${count(data.appended)} ever`} />
        <Stat label="Fetches / s" value={rate(data.fetchRate)} note={`${count(data.fetches)} ever`} />
        <Stat label="Accept p99" value={data.acceptP99Ms === null ? '–' : span(data.acceptP99Ms)} note={data.acceptP50Ms === null ? undefined : `p50 ${span(data.acceptP50Ms)}`} />
        <Stat label="Refused" value={count(data.refused)} note={`${count(data.denied)} denied`} />
        <Stat label="Over the limit" value={count(data.limited)} />
      </dl>
      <div class="halves">
        <section class="panel">
          <h2>Sizes of rooms</h2>
          <ul class="bars">
            {sizes.map(([text, n]) => (
              <li key={text} class="bar">
                <span>{text}</span>
                {n > 0 ? <i style={{ width: `${((n / most) * 100).toFixed(1)}%` }} aria-hidden="true" /> : <span />}
                <b>{count(n)}</b>
              </li>
            ))}
          </ul>
        </section>
        <section class="panel">
          <h2>Space</h2>
          <ul class="limits">
            {spaces.map(([text, used, limit]) => (
              <li key={text}>
                <span>{text}</span>
                <Meter used={used} limit={limit} label={`${text}: ${bytes(used)} of ${bytes(limit)}`} />
                <span class="numbers">
                  {bytes(used)} <span class="dim">of {bytes(limit)}</span>
                </span>
              </li>
            ))}
          </ul>
          <p class="dim">
            Most messages in one inbox that wait for the archive: {count(data.unarchivedMost)}. Proposals expired: {count(data.proposalsExpired)}.
          </p>
        </section>
      </div>
    </>
  );
}
