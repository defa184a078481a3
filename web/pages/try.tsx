// Try it: be an actor for a while, with the project's own client.

import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { connected, hasClient } from '../client';
import type { Client, Consumer, Frame, Subscription } from '../client';
import { useStore } from '../hooks';
import { Command, quoted, Tag } from '../parts/controls';
import { Empty } from '../parts/notices';
import { route } from '../router';
import { me } from '../session';
import { indented, tokens, visible } from '../text';
import { clock, span } from '../when';
import { words } from '../words';

type Verb = 'tell' | 'ask' | 'publish' | 'subscribe' | 'consume' | 'call';
const VERBS: readonly Verb[] = ['tell', 'ask', 'publish', 'subscribe', 'consume', 'call'];
const LINES_MAX = 200;

interface Line {
  readonly id: number;
  readonly at: number;
  readonly tone: 'good' | 'bad' | 'calm';
  readonly head: string;
  readonly body: string | null;
}

export function TryPage(): JSX.Element {
  useStore(me);
  return (
    <>
      <header class="page-head">
        <h1>{words.tryIt}</h1>
      </header>
      {me.value?.features.tryIt !== true ? (
        <Empty title={words.tryItOff} command="signalhub token mint ui/anna --role admin --send '*' --publish '*' --subscribe '*'">
          {words.tryItOffExplained}
        </Empty>
      ) : !hasClient ? (
        <Empty title={words.noClient} command="signalhub tell '@(demo/bob)' '{&quot;text&quot;: &quot;hello&quot;}'" />
      ) : (
        <Desk />
      )}
    </>
  );
}

/** Random, so that two tabs are two actors. */
const newAddress = (): string => `@(ui/${(me.value?.subject || 'guest').replace(/^@?\(?/, '').replace(/[^A-Za-z0-9._-]/g, '-').slice(0, 24) || 'guest'}-${crypto.getRandomValues(new Uint16Array(1))[0]?.toString(16)})`;

function Desk(): JSX.Element {
  const { query } = useStore(route);
  const [address, setAddress] = useState(newAddress);
  const [client, setClient] = useState<Client | null>(null);
  const [state, setState] = useState('');
  const [isBusy, setBusy] = useState(false);
  const [lines, setLines] = useState<readonly Line[]>([]);
  const [frames, setFrames] = useState<readonly Frame[]>([]);
  const [verb, setVerb] = useState<Verb>(query.get('publish') ? 'publish' : 'tell');
  const [to, setTo] = useState(query.get('to') ?? '@(demo/bob)');
  const [topic, setTopic] = useState(query.get('publish') ?? 'orders');
  const [name, setName] = useState('try');
  const [type, setType] = useState(query.get('type') ?? 'demo:hello');
  const [method, setMethod] = useState('count');
  const [data, setData] = useState('{"text": "hello"}');
  const [key, setKey] = useState('');
  const [isDurable, setDurable] = useState(true);
  const [times, setTimes] = useState('1');
  const open = useRef<Client | null>(null);
  const running = useRef<(Subscription | Consumer)[]>([]);
  const counter = useRef(0);

  const note = (tone: Line['tone'], head: string, body: unknown = null): void => {
    const text = body === null || body === undefined ? null : typeof body === 'string' ? body : JSON.stringify(body);
    setLines((old) => [{ id: ++counter.current, at: Date.now(), tone, head, body: text }, ...old].slice(0, LINES_MAX));
  };

  useEffect(
    () => () => {
      void open.current?.close().catch(() => undefined);
    },
    [],
  );

  const join = async (): Promise<void> => {
    setBusy(true);
    try {
      const made = await connected(address, (frame) => setFrames((old) => [frame, ...old].slice(0, LINES_MAX)));
      open.current = made;
      made.addEventListener('state', (event) => setState(String((event as Event & { state?: string }).state ?? '')));
      void (async () => {
        for await (const message of made.messages()) note('calm', `${message.type} from ${message.sender}`, message.payload);
      })().catch(() => undefined);
      setClient(made);
      setState('connected');
      note('good', `connected as ${address}`);
    } catch (error) {
      note('bad', String(error));
    }
    setBusy(false);
  };

  const leave = async (): Promise<void> => {
    running.current = [];
    await client?.close().catch(() => undefined);
    open.current = null;
    setClient(null);
    setState('');
    note('calm', 'disconnected');
  };

  const isJson = tokens(data) !== null;
  const act = async (): Promise<void> => {
    if (!client) return;
    setBusy(true);
    const n = verb === 'tell' || verb === 'ask' || verb === 'publish' ? Math.max(1, Math.min(1000, Number(times) || 1)) : 1;
    const began = performance.now();
    try {
      const value: unknown = isJson ? JSON.parse(data) : data;
      for (let i = 0; i < n; i++) await perform(client, value);
      if (n > 1) note('good', `${n} times`, span(performance.now() - began));
    } catch (error) {
      const refused = error as Error & { code?: string; resolution?: string };
      note('bad', `${refused.code ?? refused.name}: ${refused.message}`, refused.resolution ?? null);
    }
    setBusy(false);
  };

  const perform = async (with_: Client, value: unknown): Promise<void> => {
    const began = performance.now();
    const took = (): string => span(performance.now() - began);
    if (verb === 'tell') {
      await with_.tell(to, type, value);
      note('good', `told ${to}`, null);
    } else if (verb === 'ask') {
      const receipt = await with_.ask(to, type, value);
      note('good', `${(receipt as { status?: string }).status ?? 'accepted'} in ${took()}`, receipt);
    } else if (verb === 'publish') {
      const receipt = await with_.publish(topic, type, value, { durable: isDurable, ...(key ? { key } : {}) });
      note('good', `published in ${took()}`, receipt ?? null);
    } else if (verb === 'subscribe') {
      running.current.push(await with_.subscribe(topic, (message) => note('calm', `${message.type} on ${topic}`, message.payload)));
      note('good', `subscribed to ${topic}`);
    } else if (verb === 'consume') {
      const consumer = await with_.consume(topic, name);
      running.current.push(consumer);
      note('good', `consuming ${topic} as ${name}`);
      void (async () => {
        for await (const message of consumer) {
          note('calm', `${message.type} ${message.delivery === null ? '' : `seq ${message.delivery.seq}`} ${message.key ?? ''}`, message.payload);
          await message.ack();
        }
      })().catch((error: unknown) => note('bad', String(error)));
    } else {
      const args = Array.isArray(value) ? value : value === null || value === '' ? [] : [value];
      note('good', `${to}.${method} in ${took()}`, await with_.call(to, method, args));
    }
  };

  const needsTo = verb === 'tell' || verb === 'ask' || verb === 'call';
  const hasData = verb !== 'subscribe' && verb !== 'consume';
  return (
    <>
      <section class="panel">
        <form
          class="try-as"
          onSubmit={(event) => {
            event.preventDefault();
            void (client ? leave() : join());
          }}
        >
          <label class="field">
            <span>As</span>
            <input class="mono" value={address} disabled={client !== null} onInput={(event) => setAddress(event.currentTarget.value)} />
          </label>
          <button type="submit" class={client ? '' : 'primary'} disabled={isBusy}>
            {client ? words.leave : words.join}
          </button>
          {client && <Tag tone={state === 'connected' ? 'good' : 'warn'}>{state || 'connected'}</Tag>}
        </form>
      </section>
      <div class="halves">
        <form
          class="panel"
          onSubmit={(event) => {
            event.preventDefault();
            void act();
          }}
        >
          <div class="filters" role="group" aria-label="What to do">
            {VERBS.map((one) => (
              <button key={one} type="button" aria-pressed={verb === one} onClick={() => setVerb(one)}>
                {one === 'call' ? 'call an actor' : one}
              </button>
            ))}
          </div>
          {needsTo ? (
            <label class="field"><span>{verb === 'call' ? 'Actor' : 'To'}</span><input class="mono" value={to} onInput={(event) => setTo(event.currentTarget.value)} /></label>
          ) : (
            <label class="field"><span>Topic</span><input class="mono" value={topic} onInput={(event) => setTopic(event.currentTarget.value)} /></label>
          )}
          {verb === 'consume' && <label class="field"><span>Subscription</span><input class="mono" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>}
          {verb === 'call' && <label class="field"><span>Method</span><input class="mono" value={method} onInput={(event) => setMethod(event.currentTarget.value)} /></label>}
          {hasData && verb !== 'call' && <label class="field"><span>Type</span><input class="mono" value={type} onInput={(event) => setType(event.currentTarget.value)} /></label>}
          {hasData && (
            <label class="field">
              <span>{verb === 'call' ? 'Arguments, a JSON list' : 'Data, as JSON'}</span>
              <textarea class="mono" rows={5} spellcheck={false} aria-invalid={!isJson} value={data} onInput={(event) => setData(event.currentTarget.value)} />
              {!isJson && <small class="bad-text">{words.invalidJson} It is sent as a text.</small>}
            </label>
          )}
          {verb === 'publish' && (
            <div class="form-grid">
              <label class="field"><span>Key</span><input class="mono" value={key} onInput={(event) => setKey(event.currentTarget.value)} /></label>
              <label class="check-line"><input type="checkbox" checked={isDurable} onChange={() => setDurable(!isDurable)} /> durable</label>
            </div>
          )}
          {hasData && verb !== 'call' && <label class="field"><span>How often</span><input inputMode="numeric" value={times} onInput={(event) => setTimes(event.currentTarget.value)} /></label>}
          <p class="row-of-buttons">
            <button type="submit" class="primary" disabled={!client || isBusy}>{isBusy ? words.working : words.send}</button>
          </p>
          <Same verb={verb} to={to} topic={topic} name={name} type={type} method={method} data={data} address={address} isDurable={isDurable} keyed={key} />
        </form>
        <section class="panel">
          <h2>{words.received}</h2>
          {lines.length === 0 && <p class="dim">What the hub answers, and what arrives, is shown here.</p>}
          <ol class="lines" aria-live="polite" aria-label={words.received}>
            {lines.map((line) => (
              <li key={line.id}>
                <span class="dim mono">{clock(line.at).slice(0, 8)}</span> <Tag tone={line.tone}>{visible(line.head)}</Tag>
                {line.body !== null && <pre tabIndex={0} aria-label="Content">{indented(line.body).slice(0, 4096)}</pre>}
              </li>
            ))}
          </ol>
          <details>
            <summary>{words.frames}</summary>
            <ol class="lines frames">
              {frames.map((frame, index) => (
                <li key={index}>
                  <span class="dim mono">{clock(frame.at).slice(0, 8)}</span> <b>{frame.out ? '→' : '←'}</b> <code>{visible(frame.text.slice(0, 2000))}</code>
                </li>
              ))}
            </ol>
          </details>
        </section>
      </div>
    </>
  );
}

interface SameProps {
  readonly verb: Verb;
  readonly to: string;
  readonly topic: string;
  readonly name: string;
  readonly type: string;
  readonly method: string;
  readonly data: string;
  readonly address: string;
  readonly isDurable: boolean;
  readonly keyed: string;
}

function Same({ verb, to, topic, name, type, method, data, address, isDurable, keyed }: SameProps): JSX.Element {
  const [how, setHow] = useState<'cli' | 'python' | 'javascript' | 'curl'>('cli');
  const text = JSON.stringify;
  const key = keyed ? ` --key ${quoted(keyed)}` : '';
  const body = text({ ...(verb === 'publish' ? { topic, durable: isDurable, ...(keyed ? { key: keyed } : {}) } : { to }), type }).slice(0, -1) + `,"data":${data}}`;
  const forms: Record<typeof how, Record<Verb, string>> = {
    cli: {
      tell: `signalhub tell ${quoted(to)} ${quoted(data)} --type ${quoted(type)}`,
      ask: `signalhub ask ${quoted(to)} ${quoted(data)} --type ${quoted(type)}`,
      publish: `signalhub publish ${quoted(topic)} ${quoted(data)} --type ${quoted(type)}${isDurable ? ' --durable' : ''}${key}`,
      subscribe: `signalhub subscribe ${quoted(topic)}`,
      consume: `signalhub subscribe ${quoted(topic)} --as ${quoted(name)}`,
      call: `signalhub actors call ${quoted(to)} ${quoted(method)} ${quoted(data)}`,
    },
    python: {
      tell: `await me.tell(${text(to)}, ${text(type)}, ${data})`,
      ask: `await me.ask(${text(to)}, ${text(type)}, ${data})`,
      publish: `await me.publish(${text(topic)}, ${text(type)}, ${data}, durable=${isDurable ? 'True' : 'False'})`,
      subscribe: `await me.subscribe(${text(topic)}, handler)`,
      consume: `async with await me.consume(${text(topic)}, ${text(name)}) as messages: …`,
      call: `await hub.call(${text(to)}, ${text(method)}, ${data})`,
    },
    javascript: {
      tell: `await me.tell(${text(to)}, ${text(type)}, ${data});`,
      ask: `await me.ask(${text(to)}, ${text(type)}, ${data});`,
      publish: `await me.publish(${text(topic)}, ${text(type)}, ${data}, { durable: ${isDurable} });`,
      subscribe: `await me.subscribe(${text(topic)}, (m) => console.log(m.payload));`,
      consume: `for await (const m of await me.consume(${text(topic)}, ${text(name)})) await m.ack();`,
      call: `await me.call(${text(to)}, ${text(method)}, ${data});`,
    },
    curl: {
      tell: `curl ${location.origin}/api/hub/v1/tell --json ${quoted(body)}`,
      ask: `curl ${location.origin}/api/hub/v1/ask --json ${quoted(body)}`,
      publish: `curl ${location.origin}/api/hub/v1/publish --json ${quoted(body)}`,
      subscribe: `curl '${location.origin}/api/hub/v1/topics/${encodeURIComponent(topic)}/messages'`,
      consume: `curl '${location.origin}/api/hub/v1/topics/${encodeURIComponent(topic)}/subscriptions/${encodeURIComponent(name)}/pull' --json '{"max": 10}'`,
      call: `signalhub actors call ${quoted(to)} ${quoted(method)} ${quoted(data)}`,
    },
  };
  return (
    <div class="same">
      <div class="filters" role="group" aria-label={words.sameAs}>
        {(['cli', 'python', 'javascript', 'curl'] as const).map((one) => (
          <button key={one} type="button" aria-pressed={how === one} onClick={() => setHow(one)}>
            {{ cli: 'Command line', python: 'Python', javascript: 'JavaScript', curl: 'curl' }[one]}
          </button>
        ))}
      </div>
      <Command text={forms[how][verb]} />
      {how === 'python' && <p class="dim">me = await signalhub.connect(…, {text(address)})</p>}
    </div>
  );
}
