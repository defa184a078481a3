/** Addresses, topics and ids: their syntax, and checks that return their argument or throw. */

export const HUB_ADDRESS = '@(cloudflare/signal-hub)';
export const HUB_TYPE_PREFIX = 'hub:';
export const SEQ_MAX = Number.MAX_SAFE_INTEGER;

const CHARS_MAX = 256;

/** Fail because of an argument. */
export function invalid(text: string): never {
  throw new TypeError(text);
}

/** Characters as the hub counts them: code points. */
function chars(text: unknown): number {
  if (typeof text !== 'string') {
    return 0;
  }
  return text.length > CHARS_MAX ? [...text].length : text.length;
}

const isSized = (text: unknown, max = CHARS_MAX): boolean => {
  const count = chars(text);
  return count > 0 && count <= max;
};

export function checkedAddress(address: string): string {
  // Neither control characters nor separators other than a plain space: what Python calls printable.
  const form = /^@\((?:[^\p{C}\p{Z}]| )+\)$/u;
  if (!isSized(address) || !form.test(address)) {
    invalid(`invalid address ${JSON.stringify(address)}; one looks like @(demo/alice)`);
  }
  return address;
}

/** The address without its `@(` and `)`. */
export const pathOf = (address: string): string => address.replace(/^@\((.*)\)$/s, '$1');

export function checkedType(type: string): string {
  if (!isSized(type)) {
    invalid(`a message type has 1 to ${CHARS_MAX} characters`);
  }
  if (type.startsWith(HUB_TYPE_PREFIX)) {
    invalid(
      `${JSON.stringify(type)} is reserved: types that begin with \`hub:\` belong to the hub`,
    );
  }
  return type;
}

export const checkedName = (name: string, what: string): string =>
  isSized(name) ? name : invalid(`${what} has 1 to ${CHARS_MAX} characters`);

export const checkedTopic = (topic: string): string => checkedName(topic, 'a topic');

/** A topic or wildcard to subscribe to. */
export function checkedSubscription(topic: string): string {
  if (!isSized(topic) || topic.split('/').slice(0, -1).includes('#')) {
    invalid(
      `${JSON.stringify(topic)} cannot be subscribed to: 1 to ${CHARS_MAX} characters, \`+\` for one level, \`#\` only as the last level`,
    );
  }
  return topic;
}

/** Is any level of the topic `+` or `#`? */
export const hasWildcard = (topic: string): boolean =>
  topic.split('/').some((level) => level === '+' || level === '#');

/** `+` matches one level, a final `#` the level before it and everything below. */
export function topicMatches(wildcard: string, topic: string): boolean {
  const [wanted, given] = [wildcard.split('/'), topic.split('/')];
  const end = wanted.indexOf('#');
  if (end >= 0) {
    wanted.length = end;
  }
  const isLong = end < 0 ? wanted.length === given.length : wanted.length <= given.length;
  return isLong && wanted.every((level, at) => level === '+' || level === given[at]);
}

/** The topic of a durable subscription, or the pattern of all its topics. */
export const checkedPattern = (topic: string): string =>
  typeof topic === 'string' && hasWildcard(topic)
    ? checkedSubscription(topic)
    : checkedTopic(topic);

/** Capabilities; a single string is an error, not a list of letters. */
export function checkedCapabilities(capabilities: Iterable<string>): string[] {
  if (typeof capabilities === 'string') {
    invalid(`capabilities are a list of words; did you mean ['${capabilities}']?`);
  }
  return [...capabilities];
}

export const checkedMessageId = (id: string | undefined): string | undefined =>
  id === undefined || isSized(id) ? id : invalid(`a message id has 1 to ${CHARS_MAX} characters`);

export const checkedLifetime = (ttlMs: number | undefined): number | null =>
  ttlMs === undefined
    ? null
    : ttlMs > 0
      ? ttlMs
      : invalid('a lifetime must be longer than 0 ms; leave it out for none');

/** The name of a durable actor. */
export const checkedActor = (actor: string): string =>
  /^[a-z][a-z0-9_-]{0,63}\/[^\x00-\x1f\x7f-\x9f]{1,256}$/u.test(actor)
    ? actor
    : invalid(
        `invalid durable actor ${JSON.stringify(actor)}; write it as kind/key, like order/17`,
      );

export function checkedHeaders(headers: Record<string, string>): Record<string, string> {
  if (!Object.values(headers).every((text) => typeof text === 'string')) {
    invalid("headers must map strings to strings, such as {trace: 'a1b2'}");
  }
  return { ...headers };
}

/** A time in milliseconds since the Unix epoch. */
export const epochMs = (moment: number | Date): number =>
  Number.isFinite(+moment) ? Math.round(+moment) : invalid('invalid time');

/** Where to read: an end of the topic, a seq, a time, or a position as on the wire. */
export type Position =
  | 'earliest'
  | 'latest'
  | number
  | Date
  | { seq: number }
  | { time: number | Date }
  | { last: number };

/** A position in a topic in the form used on the wire. */
export function wirePosition(position: Position): unknown {
  if (position === 'earliest' || position === 'latest') {
    return position;
  }
  if (position instanceof Date) {
    return { time: epochMs(position) };
  }
  const members = Object.entries(
    typeof position === 'number' ? { seq: position } : (position ?? {}),
  );
  const [name, value] = members[0] ?? [];
  if (members.length === 1) {
    if (name === 'time') {
      return { time: epochMs(value as number) };
    }
    if ((name === 'seq' || name === 'last') && Number.isInteger(value) && (value as number) >= 1) {
      return { [name]: value };
    }
  }
  invalid(
    `invalid position ${JSON.stringify(position)}; use 'earliest', 'latest', a seq, a Date, or one of {seq}, {time} and {last}`,
  );
}

const SECRETS = ['token', 'access_token'];

/** A URL of the hub's WebSocket; it must hold no secrets, because URLs end up in logs. */
export function checkedUrl(url: string): string {
  let parts: URL | undefined;
  try {
    parts = new URL(url);
  } catch {
    // Answered below.
  }
  if (!parts || !/^wss?:$/.test(parts.protocol) || !parts.hostname) {
    invalid("a hub's URL looks like ws://127.0.0.1:8787/ws or wss://hub.example/ws");
  }
  if (
    parts.username ||
    parts.password ||
    [...parts.searchParams.keys()].some((name) => SECRETS.includes(name.toLowerCase()))
  ) {
    invalid('the URL must not carry a user name, password or token; pass `token` instead');
  }
  if (url.includes('#')) {
    invalid('the URL of a WebSocket has no fragment; remove the part after `#`');
  }
  return url;
}

const form =
  (marks: string, max: number) =>
  (text: unknown, what: string): string =>
    typeof text === 'string' &&
    text.length <= max &&
    new RegExp(`^[A-Za-z0-9${marks}]+$`).test(text) &&
    !text.includes('..')
      ? text
      : invalid(
          `${what} has 1 to ${max} characters of A-Z a-z 0-9 ${[...marks].join(' ')} without two dots in a row`,
        );

export const plainId = form('._~-', 128);
const withColon = form('._~:-', 128);
const inboxForm = form('._~:-', 344);

/** The id of a room, prefixed with its tenant's id if it has one. */
export function roomName(tenant: string | undefined, room: string): string {
  withColon(room, 'a room id');
  if (tenant === undefined) {
    return room;
  }
  const name = `${plainId(tenant, 'a tenant id')}:${room}`;
  return name.length > 128
    ? invalid('tenant and room must have at most 127 characters together')
    : name;
}

/** An inbox id: the base64 of 32 bytes in either alphabet, or a plain word. */
export function checkedInbox(inbox: string): string {
  const bare = String(inbox).replace(/=+$/, '');
  return /^[A-Za-z0-9+/]{43}$/.test(bare)
    ? bare.replace(/\+/g, '-').replace(/\//g, '_')
    : inboxForm(bare, 'an inbox id');
}

/** The pseudonym of a member; a random one if none is given. */
export const checkedPseudonym = (pseudonym: string | undefined, make: () => string): string =>
  pseudonym === undefined ? make() : withColon(pseudonym, 'a pseudonym');

export const TYPES = [
  'mls_app',
  'mls_proposal',
  'mls_approval',
  'mls_rejection',
  'mls_commit',
  'mls_group_info',
] as const;

/** The type of a room message. */
export type RoomType = (typeof TYPES)[number];

/** The type of a room message; some types require a proposal id. */
export function checkedKind(type: string, proposalId: string | undefined): string {
  const index = TYPES.indexOf(type as RoomType);
  if (index < 0) {
    invalid(`invalid type ${JSON.stringify(type)}; use one of ${TYPES.join(', ')}`);
  }
  if (index > 0 && index < 5 && proposalId === undefined) {
    invalid(`a message of type ${type} needs a proposal id`);
  }
  if (proposalId !== undefined) {
    plainId(proposalId, 'a proposal id');
  }
  return type;
}

/** A position in an inbox. */
export const checkedSeq = (seq: number, what: string, least = 0): number =>
  Number.isSafeInteger(seq) && seq >= least
    ? seq
    : invalid(`${what} must be a whole number, at least ${least}`);
