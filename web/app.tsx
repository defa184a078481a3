// The frame of every page: who we are, where we are, and what holds everywhere. Starts itself.

import { render } from 'preact';
import type { ComponentType, JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { SearchAnswer } from './answers';
import { get } from './api';
import { connection, offlineSince, start, stop } from './feed';
import { frozen, useClock, useLive, useStaleness, useStore, waiting } from './hooks';
import { overlay, PLACES } from './keys';
import { singleKeys, theme } from './media';
import type { Theme } from './media';
import { ActorPage, ActorsPage, SessionsPage } from './pages/actors';
import { DemoPage } from './pages/demo';
import { AlarmsPage, CallPage, CallsPage, FailedPage, HostsPage } from './pages/hosts';
import { LakePage, ProofPage, ReplayPage, TablePage } from './pages/lake';
import { LettersPage } from './pages/letters';
import { LogPage } from './pages/log';
import { OverviewPage } from './pages/overview';
import { RoomsPage } from './pages/rooms';
import { SignIn } from './pages/signin';
import { SubscriptionPage } from './pages/subscription';
import { SubscriptionsPage } from './pages/subscriptions';
import { ActionsPage, HealthPage, JobsPage, SettingsPage } from './pages/system';
import { TopicPage, TopicsPage } from './pages/topics';
import { TryPage } from './pages/try';
import { Tag, said } from './parts/controls';
import { Dialog } from './parts/dialog';
import { Empty, Shape } from './parts/notices';
import { go, route, to, tokenFromAddress } from './router';
import { access, enter, leave, me } from './session';
import { clock, choose, now, span, zone } from './when';
import { words } from './words';
import type { OverviewAnswer } from './answers';

interface Entry {
  readonly path: string;
  readonly text: string;
  readonly also?: readonly string[];
  readonly shown?: () => boolean;
}

const NAV: readonly (readonly Entry[])[] = [
  [{ path: '', text: words.overview }],
  [
    { path: 'actors', text: words.actors, also: ['sessions'] },
    { path: 'topics', text: words.topics },
    { path: 'subs', text: words.subscriptions },
    { path: 'log', text: words.log },
    { path: 'letters', text: words.letters },
    { path: 'rooms', text: words.rooms },
  ],
  [
    { path: 'hosts', text: words.durable, also: ['calls', 'alarms', 'failed'] },
    { path: 'lake', text: words.lake },
    { path: 'jobs', text: words.jobs },
    { path: 'try', text: words.tryIt },
    { path: 'demo', text: words.demo, shown: () => me.value?.features.demo === true },
  ],
  [
    { path: 'health', text: words.health },
    { path: 'settings', text: words.settings },
    { path: 'actions', text: words.actions },
  ],
];

const PAGES: Record<string, readonly ComponentType[]> = {
  '': [OverviewPage],
  actors: [ActorsPage, ActorPage],
  sessions: [SessionsPage],
  topics: [TopicsPage, TopicPage],
  subs: [SubscriptionsPage, SubscriptionsPage, SubscriptionPage],
  log: [LogPage],
  letters: [LettersPage],
  rooms: [RoomsPage],
  hosts: [HostsPage],
  calls: [CallsPage, CallPage],
  alarms: [AlarmsPage],
  failed: [FailedPage],
  lake: [LakePage, TablePage],
  proof: [ProofPage],
  replay: [ReplayPage],
  jobs: [JobsPage],
  try: [TryPage],
  demo: [DemoPage],
  health: [HealthPage],
  settings: [SettingsPage],
  actions: [ActionsPage],
};

function Unknown(): JSX.Element {
  return (
    <Empty title={words.unknownPage}>
      <a href={to('')}>{words.overview}</a>
    </Empty>
  );
}

function Page(): JSX.Element {
  const { path } = useStore(route);
  // Heads of columns name the zone.
  useStore(zone);
  const found = PAGES[path[0] ?? '']?.[Math.max(0, path.length - 1)] ?? Unknown;
  const Found = found;
  const name = path.join('/');
  const heading = useRef<HTMLElement>(null);
  const before = useRef(name);
  useEffect(() => {
    const title = heading.current?.querySelector('h1');
    document.title = `${title?.textContent ?? words.title} · ${me.value?.hub.label || words.title}`;
    if (before.current === name) return;
    before.current = name;
    heading.current?.scrollTo(0, 0);
    if (!heading.current?.contains(document.activeElement)) heading.current?.focus({ preventScroll: true });
  }, [name]);
  return (
    <main id="main" tabIndex={-1} ref={heading}>
      <Found key={name} />
    </main>
  );
}

function Navigation(): JSX.Element {
  const { path } = useStore(route);
  useStore(me);
  const current = path[0] ?? '';
  const node = useRef<HTMLElement>(null);
  useEffect(() => {
    const link = node.current?.querySelector<HTMLElement>('[aria-current]');
    if (link && node.current) node.current.scrollLeft = link.offsetLeft - node.current.clientWidth / 2 + link.clientWidth / 2;
  }, [current]);
  return (
    <nav class="nav" aria-label="Pages" ref={node}>
      <a class="brand" href={to('')} aria-label={words.title} tabIndex={-1} aria-hidden="true">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="7" />
          <path d="M9.6 22.4a9 9 0 0 1 0-12.8M22.4 9.6a9 9 0 0 1 0 12.8" />
          <circle cx="16" cy="16" r="3.4" />
        </svg>
        <span>{words.title}</span>
      </a>
      {NAV.map((group, index) => (
        <ul key={index}>
          {group
            .filter((one) => one.shown?.() ?? true)
            .map((one) => (
              <li key={one.path}>
                <a href={to(one.path)} aria-current={current === one.path || one.also?.includes(current) || (one.path === 'lake' && (current === 'proof' || current === 'replay')) ? 'page' : undefined}>
                  {one.text}
                </a>
              </li>
            ))}
        </ul>
      ))}
    </nav>
  );
}

function Status(): JSX.Element {
  useClock(1000);
  const state = useStore(connection);
  const since = useStore(offlineSince);
  const stale = useStaleness();
  const who = useStore(me);
  const zoned = useStore(zone);
  const isFrozen = useStore(frozen);
  const held = useStore(waiting);
  const look = useStore(theme);
  const overview = useLive<OverviewAnswer>('overview').data;
  const link =
    state === 'live' ? (
      stale > 0 ? <Tag tone="warn">{words.behind(span(stale))}</Tag> : <Tag tone="good">{words.live}</Tag>
    ) : state === 'hidden' ? (
      <Tag tone="calm">{words.pausedTab}</Tag>
    ) : since !== null && Date.now() - since > 1500 ? (
      <Tag tone="bad">{words.offline(span(Date.now() - since))}</Tag>
    ) : (
      <Tag tone="calm">{words.connecting}</Tag>
    );
  return (
    <header class="status">
      <span class="status-live" role="status">
        {link}
      </span>
      {overview && (
        <a href={to('health')}>
          <Tag tone={overview.status === 'ok' ? 'good' : 'warn'}>{overview.status === 'ok' ? words.healthy : words.degraded}</Tag>
        </a>
      )}
      <span class="gap" />
      <button type="button" class="search-button" onClick={() => overlay.set('search')}>
        <span>{words.search}</span> <kbd>/</kbd>
      </button>
      <button type="button" class="quiet freeze" aria-pressed={isFrozen} title={isFrozen ? words.thaw(held) : words.freeze} aria-label={isFrozen ? words.thaw(held) : words.freeze} onClick={() => frozen.set(!isFrozen)}>
        {isFrozen ? `▶${held > 0 ? ` ${held}` : ''}` : '❚❚'}
      </button>
      <button type="button" class="quiet clock" title={words.zone} aria-label={`${words.zone}: ${clock(now())}`} onClick={() => choose(zoned === 'utc' ? 'local' : 'utc')}>
        {clock(now())}
      </button>
      <button type="button" class="quiet" title={`${words.theme}: ${look}`} aria-label={`${words.theme}: ${look}`} onClick={() => theme.set(NEXT[look])}>
        {SIGN[look]}
      </button>
      <button type="button" class="quiet" title={words.keyboard} aria-label={words.keyboard} onClick={() => overlay.set('keys')}>
        ?
      </button>
      {who && (
        <span class="who" title={words.role(who.principal)}>
          <b>{who.role}</b> {who.subject || who.principal}
          {who.features.auth && (
            <button type="button" class="quiet small" onClick={signOut}>
              {words.signOut}
            </button>
          )}
        </span>
      )}
    </header>
  );
}

const NEXT: Record<Theme, Theme> = { system: 'dark', dark: 'light', light: 'system' };
const SIGN: Record<Theme, string> = { system: '◐', dark: '●', light: '○' };

function signOut(): void {
  stop();
  leave();
}

function Search(): JSX.Element {
  const [text, setText] = useState('');
  const [answer, setAnswer] = useState<SearchAnswer | null>(null);
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const wanted = text.trim();
    setChosen(0);
    if (!wanted) {
      setAnswer(null);
      return undefined;
    }
    const abort = new AbortController();
    const timer = setTimeout(() => {
      get<SearchAnswer>('/search', { q: wanted }, abort.signal).then(setAnswer).catch(() => undefined);
    }, 150);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);
  const hits = answer?.hits ?? [];
  const open = (index: number): void => {
    const hit = hits[index];
    if (!hit) return;
    overlay.set(null);
    go(hit.link);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      setChosen(Math.max(0, Math.min(hits.length - 1, chosen + (event.key === 'ArrowDown' ? 1 : -1))));
    } else if (event.key === 'Enter') {
      event.preventDefault();
      open(chosen);
    }
  };
  let kind = '';
  return (
    <Dialog title={words.search} onClose={() => overlay.set(null)}>
      <div class="search" onKeyDown={onKeyDown}>
        <input type="text" role="searchbox" autofocus aria-label={words.search} aria-describedby="search-hint" value={text} autoComplete="off" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
        <p id="search-hint" class="dim">
          {answer && hits.length === 0 && text.trim() ? words.searchNothing(text.trim()) : answer && !answer.complete ? words.searchIncomplete : words.searchHint}
        </p>
        <ul>
          {hits.map((hit, index) => {
            const isFirst = hit.kind !== kind;
            kind = hit.kind;
            return (
              <li key={`${hit.kind} ${hit.link}`}>
                {isFirst && <h3>{hit.kind}</h3>}
                <a href={hit.link.startsWith('#') ? hit.link : `#${hit.link}`} class={index === chosen ? 'chosen' : ''} onClick={() => overlay.set(null)}>
                  <span class="mono">{hit.name}</span> <span class="dim">{hit.detail}</span>
                </a>
              </li>
            );
          })}
        </ul>
      </div>
    </Dialog>
  );
}

function Keys(): JSX.Element {
  const isOn = useStore(singleKeys);
  const texts = new Map(NAV.flat().map((one) => [one.path, one.text]));
  const rows: (readonly [string, string])[] = [
    ['/  Ctrl K', words.search],
    ...PLACES.map((one) => [`g ${one.key}`, texts.get(one.path) ?? one.path] as const),
    ['.', words.freeze],
    ['j k ↓ ↑', 'Next row, row before'],
    ['Enter', 'Open the row'],
    ['Space', 'Select the row'],
    ['c', 'Copy the row as JSON'],
    ['Esc', words.close],
    ['?', words.keyboard],
  ];
  return (
    <Dialog title={words.keyboard} onClose={() => overlay.set(null)}>
      <dl class="keys">
        {rows.map(([key, text]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{text}</dd>
          </div>
        ))}
      </dl>
      <label class="check-line">
        <input type="checkbox" checked={isOn} onChange={() => singleKeys.set(!isOn)} /> {words.singleKeys}
      </label>
    </Dialog>
  );
}

function Said(): JSX.Element {
  const text = useStore(said);
  return (
    <div class={`said ${text ? 'shown' : ''}`} role="status" aria-live="polite">
      {text}
    </div>
  );
}

function App(): JSX.Element {
  const state = useStore(access);
  const who = useStore(me);
  const above = useStore(overlay);
  useEffect(() => {
    if (who) start();
  }, [who !== null]);
  useEffect(() => {
    if (state !== 'unreachable') return undefined;
    const timer = setInterval(() => void enter(), 3000);
    return () => clearInterval(timer);
  }, [state]);
  if (!who) {
    if (state === 'needed') return <SignIn />;
    return (
      <main id="main" class="alone">
        {state === 'unreachable' ? <Empty title={words.unreachable} /> : <Shape />}
      </main>
    );
  }
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById('main')?.focus(); }}>
        {words.skip}
      </a>
      {who.hub.label && <LabelBar label={who.hub.label} color={who.hub.color} />}
      <div class="shell">
        <Navigation />
        <div class="body">
          <Status />
          {state === 'ended' && <SignIn isAgain />}
          <Page />
        </div>
      </div>
      {above === 'search' && <Search />}
      {above === 'keys' && <Keys />}
      <Said />
    </>
  );
}

function LabelBar({ label, color }: { readonly label: string; readonly color: string }): JSX.Element {
  return (
    <div class="label-bar" style={color ? { background: color } : {}}>
      <span>{label}</span>
    </div>
  );
}

const root = document.getElementById('app');
if (root) {
  render(<App />, root);
  void enter(tokenFromAddress() ?? undefined);
}
addEventListener('hashchange', () => {
  const given = tokenFromAddress();
  if (given) void enter(given);
});
