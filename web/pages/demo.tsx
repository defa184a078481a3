// The demonstration: a shop of durable actors, and buttons that break it. The supervisor of
// `signalhub demo` publishes the board once a second, and does what the buttons ask for.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { connected, hasClient } from '../client';
import type { Client } from '../client';
import { useClock, useStore } from '../hooks';
import { Stat, Tag, Time } from '../parts/controls';
import type { Tone } from '../parts/controls';
import { Empty, Shape } from '../parts/notices';
import { to } from '../router';
import { me } from '../session';
import { count, visible } from '../text';
import { span } from '../when';
import { words } from '../words';

interface Board {
  readonly at: number;
  readonly position: string | null;
  readonly stages: Record<string, number>;
  readonly confirmed: number;
  readonly cancelled: number;
  readonly placed: number;
  readonly open: number;
  readonly moving: readonly { readonly order: string; readonly stage: string; readonly since: number }[];
  readonly ledger: readonly { readonly name: string; readonly text: string; readonly left: number; readonly right: number; readonly ok: boolean }[];
  readonly lost: number;
  readonly doubled: number;
  readonly unverified: number;
  readonly programs: readonly { readonly name: string; readonly state: string; readonly kills: number }[];
  readonly network: string;
  readonly consumers: readonly { readonly name: string; readonly seen: number; readonly failures: number }[];
  readonly proof: { readonly state: string; readonly text: string; readonly at: number } | null;
  readonly events: readonly { readonly at: number; readonly text: string }[];
}

const SUPERVISOR = '@(demo/supervisor)';
const STAGES = ['new', 'reserving', 'paying', 'shipping'];
const DOTS_MAX = 24;
const BUTTONS: readonly { readonly text: string; readonly type: string; readonly data: Record<string, unknown> }[] = [
  { text: 'Kill the hub', type: 'demo:kill', data: { what: 'hub' } },
  { text: 'Kill shop-1', type: 'demo:kill', data: { what: 'shop-1' } },
  { text: 'Kill shop-2', type: 'demo:kill', data: { what: 'shop-2' } },
  { text: 'Kill the pipeline', type: 'demo:kill', data: { what: 'pipeline' } },
  { text: 'Cut the network for 5 s', type: 'demo:cut', data: { seconds: 5 } },
  { text: 'Fail a consumer', type: 'demo:fail', data: {} },
];

export function DemoPage(): JSX.Element {
  useStore(me);
  return (
    <>
      <header class="page-head">
        <h1>{words.demo}</h1>
      </header>
      {me.value?.features.demo === true && hasClient ? <Live /> : <Empty title={words.demoOff} command="signalhub demo">{words.demoExplained}</Empty>}
    </>
  );
}

function Live(): JSX.Element {
  const [board, setBoard] = useState<Board | null>(null);
  const [said, setSaid] = useState('');
  const [asked, setAsked] = useState<string | null>(null);
  const heard = useRef(0);
  const client = useRef<Client | null>(null);
  useClock(500);
  useEffect(() => {
    let gone = false;
    let again: ReturnType<typeof setTimeout> | undefined;
    const join = async (): Promise<void> => {
      try {
        const made = await connected(`@(ui/board-${crypto.getRandomValues(new Uint32Array(1))[0]?.toString(16)})`, () => undefined);
        if (gone) {
          await made.close();
          return;
        }
        client.current = made;
        await made.subscribe('demo/board', (message) => {
          heard.current = Date.now();
          setBoard(message.payload as Board);
        });
      } catch (error) {
        if (gone) return;
        setSaid(String(error));
        again = setTimeout(() => void join(), 2000);
      }
    };
    void join();
    return () => {
      gone = true;
      clearTimeout(again);
      void client.current?.close().catch(() => undefined);
    };
  }, []);
  const press = async (text: string, type: string, data: Record<string, unknown>): Promise<void> => {
    setAsked(text);
    setSaid('');
    try {
      await client.current?.ask(SUPERVISOR, type, data, { timeoutMs: 10_000 });
      setSaid(`${text}: asked for`);
    } catch (error) {
      setSaid(`${text}: ${error instanceof Error ? error.message : String(error)}`);
    }
    setAsked(null);
  };
  const age = heard.current === 0 ? 0 : Date.now() - heard.current;
  const isStale = age > 3000;
  return (
    <>
      <section class="panel">
        <h2>Break it</h2>
        <p class="row-of-buttons">
          {BUTTONS.map((one) => (
            <button key={one.text} type="button" class="danger-quiet" disabled={asked !== null || !board} onClick={() => void press(one.text, one.type, one.data)}>
              {one.text}
            </button>
          ))}
          <span class="gap" />
          <button type="button" class="primary" disabled={asked !== null || !board} onClick={() => void press('Prove it', 'demo:prove', {})}>
            Prove it
          </button>
        </p>
        <p class="dim" role="status">{said}</p>
      </section>
      {!board && <Shape lines={9} />}
      {board && (
        <div class={`fresh ${isStale ? 'stale' : ''}`}>
          {isStale && <p class="stale-note">{words.staleSince(span(age))}</p>}
          <Orders board={board} />
          <div class="halves">
            <Ledger board={board} />
            <Programs board={board} />
          </div>
          <Events board={board} />
        </div>
      )}
    </>
  );
}

function Orders({ board }: { readonly board: Board }): JSX.Element {
  return (
    <section class="panel">
      <h2>
        Orders <span class="dim">{board.position && <a class="mono" href={to('log', { entry: board.position, from: board.position, all: 1 })}>{board.position}</a>}</span>
      </h2>
      <ol class="stages">
        {STAGES.map((stage) => {
          const moving = board.moving.filter((one) => one.stage === stage);
          return (
            <li key={stage}>
              <span>{stage}</span>
              <b>{count(board.stages[stage] ?? 0)}</b>
              <span class="dots" aria-hidden="true">
                {moving.slice(0, DOTS_MAX).map((one) => (
                  <i key={one.order} title={`order ${one.order}`} class={board.at - one.since > 5000 ? 'late' : ''} />
                ))}
              </span>
            </li>
          );
        })}
        <li class="end-stage">
          <span>confirmed</span>
          <b>{count(board.confirmed)}</b>
        </li>
        <li class="end-stage">
          <span>cancelled</span>
          <b>{count(board.cancelled)}</b>
        </li>
      </ol>
      <dl class="stats">
        <Stat label="Placed" value={count(board.placed)} />
        <Stat label="Open" value={count(board.open)} />
        <Stat label="Lost" value={count(board.lost)} tone={board.lost > 0 ? 'bad' : 'good'} />
        <Stat label="Doubled" value={count(board.doubled)} tone={board.doubled > 0 ? 'bad' : 'good'} />
        <Stat label="Not yet verified" value={count(board.unverified)} />
      </dl>
    </section>
  );
}

function Ledger({ board }: { readonly board: Board }): JSX.Element {
  return (
    <section class="panel">
      <h2>Ledger</h2>
      <ul class="names">
        {board.ledger.map((one) => (
          <li key={one.name}>
            <span>{visible(one.text)}</span>
            <span class="numbers">
              {count(one.left)} = {count(one.right)} <Tag tone={one.ok ? 'good' : 'warn'}>{one.ok ? 'holds' : 'not yet'}</Tag>
            </span>
          </li>
        ))}
      </ul>
      {board.proof && (
        <p>
          <Tag tone={board.proof.state === 'proven' ? 'good' : board.proof.state === 'failed' ? 'bad' : 'calm'}>{board.proof.state}</Tag> {visible(board.proof.text)} <a href={to('proof')}>{words.proof}</a>
        </p>
      )}
    </section>
  );
}

const PROGRAM: Record<string, Tone> = { running: 'good', starting: 'warn', away: 'bad' };

function Programs({ board }: { readonly board: Board }): JSX.Element {
  return (
    <section class="panel">
      <h2>Programs</h2>
      <ul class="names">
        {board.programs.map((one) => (
          <li key={one.name}>
            <span>{one.name}</span>
            <span>
              <Tag tone={PROGRAM[one.state] ?? 'calm'}>{one.state}</Tag> <span class="dim">{one.kills === 1 ? '1 kill' : `${count(one.kills)} kills`}</span>
            </span>
          </li>
        ))}
        <li>
          <span>network</span>
          <Tag tone={board.network === 'open' ? 'good' : 'bad'}>{board.network}</Tag>
        </li>
        {board.consumers.map((one) => (
          <li key={one.name}>
            <span>consumer {one.name}</span>
            <span>
              {count(one.seen)} seen <span class="dim">{one.failures === 1 ? '1 failure' : `${count(one.failures)} failures`}</span>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Events({ board }: { readonly board: Board }): JSX.Element {
  return (
    <section class="panel">
      <h2>What happened</h2>
      {board.events.length === 0 && <p class="dim">Nothing yet. Press a button.</p>}
      <ol class="lines" aria-live="polite" aria-label="What happened">
        {board.events.map((one) => (
          <li key={`${one.at} ${one.text}`}>
            <span class="dim mono">
              <Time at={one.at} />
            </span>{' '}
            {visible(one.text)}
          </li>
        ))}
      </ol>
    </section>
  );
}
