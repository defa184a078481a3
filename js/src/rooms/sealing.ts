/**
 * Sealing: end-to-end encryption with one key shared by the members of a room.
 *
 * A sealed message is a version byte, a random nonce of 96 bits and the output of AES-256-GCM
 * (version 2) or ChaCha20-Poly1305 (version 1, which is only opened, where the platform has it). The
 * name of the room and the id of the message are authenticated with it, so a hub can neither move a
 * message to another room nor pass it off as a new one under another id. The length of a message is
 * not hidden, and anyone who has the key can write as any member. Random nonces are safe for 2^32
 * messages under one key.
 */

import { type Bytes, joined, randomBytes, utf8 } from '../wire/bytes.js';
import { Unsealable } from '../wire/errors.js';
import { expand } from './capability.js';
import { invalid } from '../wire/names.js';

export const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const VERSION = 2;
/**
 * The inbox id is derived from the same room key, so the encryption key is derived separately, one
 * for each version: none can be computed from another.
 */
const PURPOSE = 'signalhub room sealing ';
const CIPHERS = ['', 'ChaCha20-Poly1305', 'AES-GCM'];

/** What opens version 1 where WebCrypto cannot; set where Node is. */
export const legacy: {
  open?: (key: Bytes, nonce: Bytes, sealed: Bytes, bound: Bytes) => Bytes;
} = {};

/** Create a key for a room, to be shared with its members only. */
export const newKey = (): Bytes => randomBytes(KEY_BYTES);

/** Seals and opens the messages of one room, named `tenant:room` if it has a tenant. */
export class Sealing {
  private _keys: (Promise<Bytes> | undefined)[] = [];
  private _room: Bytes;

  constructor(
    private _key: Uint8Array,
    room: string,
  ) {
    if (_key.length !== KEY_BYTES) {
      invalid(`the key of a room has ${KEY_BYTES} bytes`);
    }
    this._room = utf8(room);
  }

  /** The ciphertext to send under this id; a repeat sends the same bytes again. */
  async seal(
    messageId: string,
    plaintext: Uint8Array,
    nonce = randomBytes(NONCE_BYTES),
  ): Promise<Bytes> {
    const key = await this._cryptoKey(VERSION, 'encrypt');
    const sealed = await crypto.subtle.encrypt(
      this._cipher(VERSION, nonce, messageId),
      key,
      plaintext as Bytes,
    );
    return joined(Uint8Array.of(VERSION), nonce, new Uint8Array(sealed));
  }

  /** What was sealed under this id; throws `Unsealable`. */
  async open(messageId: string, sealed: Uint8Array): Promise<Bytes> {
    const version = sealed[0]!;
    if (sealed.length < 1 + NONCE_BYTES + TAG_BYTES || !CIPHERS[version]) {
      throw new Unsealable('not a sealed message');
    }
    const nonce = sealed.slice(1, 1 + NONCE_BYTES) as Bytes;
    const rest = sealed.slice(1 + NONCE_BYTES) as Bytes;
    let open: () => Promise<ArrayBuffer | Bytes>;
    if (version === 1 && legacy.open) {
      const key = await this._derived(1);
      open = async () => legacy.open!(key, nonce, rest, this._bound(messageId));
    } else {
      const key = await this._cryptoKey(version, 'decrypt');
      open = () => crypto.subtle.decrypt(this._cipher(version, nonce, messageId), key, rest);
    }
    try {
      return new Uint8Array(await open());
    } catch {
      throw new Unsealable('sealed with another key, for another room or message, or damaged');
    }
  }

  private _derived(version: number): Promise<Bytes> {
    return (this._keys[version] ??= expand(this._key, utf8(PURPOSE + version), KEY_BYTES));
  }

  private async _cryptoKey(version: number, use: 'encrypt' | 'decrypt'): Promise<CryptoKey> {
    const name = CIPHERS[version]!;
    try {
      return await crypto.subtle.importKey('raw', await this._derived(version), name, false, [use]);
    } catch {
      throw new Unsealable(`this platform has no ${name}, which sealed the message`);
    }
  }

  private _cipher(version: number, iv: Bytes, messageId: string) {
    return { name: CIPHERS[version]!, iv, additionalData: this._bound(messageId) };
  }

  /** Room and message id, encoded so that no two pairs have the same encoding. */
  private _bound(messageId: string): Bytes {
    const size = this._room.length;
    return joined(Uint8Array.of(size >> 8, size & 255), this._room, utf8(messageId));
  }
}
