/**
 * Capabilities: ids derived by members of a group from a secret that the hub never sees.
 *
 * Anyone who knows an inbox id may read and write that inbox. Members derive it from the exporter
 * secret of their MLS group, so it need not be distributed, and the hub cannot derive the group from
 * it. The exporter is that of RFC 9420 §8.5 for the cipher suites with SHA-256. An exporter secret
 * changes with every epoch of a group, an inbox id must not: derive it once, when the group is
 * created, and send it to later members inside an encrypted message.
 */

import { type Bytes, encoded, joined, utf8 } from '../wire/bytes.js';
import { Unsealable } from '../wire/errors.js';
import { invalid } from '../wire/names.js';

const KEY_BYTES = 32;
const INBOX_KEY_LABEL = 'tunnl3d-inbox-key';

function subtle(): SubtleCrypto {
  if (!globalThis.crypto?.subtle) {
    throw new Unsealable('encryption needs a secure page: use https or localhost');
  }
  return crypto.subtle;
}

async function hmac(key: Uint8Array, content: Bytes): Promise<Bytes> {
  const algorithm = { name: 'HMAC', hash: 'SHA-256' };
  const imported = await subtle().importKey('raw', key as Bytes, algorithm, false, ['sign']);
  return new Uint8Array(await crypto.subtle.sign('HMAC', imported, content));
}

/** HKDF-Expand with SHA-256. */
export async function expand(secret: Uint8Array, info: Bytes, length: number): Promise<Bytes> {
  let block: Bytes = new Uint8Array();
  let whole = block;
  for (let count = 1; whole.length < length; count++) {
    block = await hmac(secret, joined(block, info, Uint8Array.of(count)));
    whole = joined(whole, block);
  }
  return whole.slice(0, length);
}

/** The inbox id for a key: 43 characters that reveal nothing about the key. */
export const inboxId = async (inboxKey: Uint8Array): Promise<string> =>
  encoded(await hmac(checked(inboxKey), utf8('inbox-id')));

/** Derive the key of a room's inbox from the exporter secret of its group. */
export const inboxKey = (exporterSecret: Uint8Array, room: string): Promise<Bytes> =>
  exporter(exporterSecret, INBOX_KEY_LABEL, utf8(room), KEY_BYTES);

/** `MLS-Exporter`; different labels or contexts give unrelated bytes. */
export async function exporter(
  secret: Uint8Array,
  label: string,
  context: Uint8Array,
  length: number,
): Promise<Bytes> {
  if (!(length > 0 && length <= 255 * KEY_BYTES)) {
    invalid(`length must be between 1 and ${255 * KEY_BYTES} bytes`);
  }
  const derived = await expandWithLabel(checked(secret), label, new Uint8Array(), KEY_BYTES);
  const digest = await subtle().digest('SHA-256', context as Bytes);
  return expandWithLabel(derived, 'exported', new Uint8Array(digest), length);
}

/** `ExpandWithLabel` of RFC 9420 §8; with an empty context, `DeriveSecret`. */
const expandWithLabel = (
  secret: Bytes | Uint8Array,
  label: string,
  context: Bytes,
  length: number,
) =>
  expand(
    secret,
    joined(
      Uint8Array.of(length >> 8, length & 255),
      vector(utf8(`MLS 1.0 ${label}`)),
      vector(context),
    ),
    length,
  );

/** `opaque<V>` of RFC 9420 §2.1.2: the top two bits are the size of the length field. */
function vector(content: Bytes): Bytes {
  const size = content.length;
  const head =
    size < 64
      ? [size]
      : size < 2 ** 14
        ? [64 | (size >> 8), size & 255]
        : [128 | (size >> 24), (size >> 16) & 255, (size >> 8) & 255, size & 255];
  return joined(Uint8Array.from(head), content);
}

const checked = (secret: Uint8Array): Uint8Array =>
  secret instanceof Uint8Array && secret.length === KEY_BYTES
    ? secret
    : invalid(`a key or exporter secret must have ${KEY_BYTES} bytes`);
