/** Bytes and text: UTF-8, base64url without padding, random bytes. */

import { invalid } from './names.js';

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true });

export type Bytes = Uint8Array<ArrayBuffer>;

export const utf8 = (text: string): Bytes => encoder.encode(text) as Bytes;
export const textOf = (bytes: Uint8Array): string => decoder.decode(bytes);

/** How many bytes a text has in UTF-8. */
export function sizeOf(text: string): number {
  let size = text.length;
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index);
    // Both halves of a pair count two bytes each; a half alone becomes a replacement of three.
    if (unit > 0x7f) {
      size += unit < 0x800 ? 1 : unit >= 0xd800 && unit < 0xe000 ? 1 : 2;
    }
  }
  return size;
}

export const randomBytes = (count: number): Bytes => crypto.getRandomValues(new Uint8Array(count));

export const hex = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

/** A random id that reveals nothing about its creator. */
export const newMessageId = (): string => hex(randomBytes(16));

/** Unique ids: half random, half a counter; they can be guessed, so they are no secrets. */
export function ids(): () => string {
  const digits = hex(randomBytes(8));
  const head = `${digits.slice(0, 8)}-${digits.slice(8, 12)}-4${digits.slice(12, 15)}-a${digits.slice(13)}-`;
  let count = 0;
  return () => head + (count++).toString(16).padStart(12, '0');
}

/** The bytes as base64url without padding. */
export function encoded(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

/** The bytes of a base64 text in either alphabet, padded or not. */
export function decoded(text: string): Bytes {
  if (!/^[A-Za-z0-9+/_-]*={0,2}$/.test(text)) {
    invalid('invalid base64');
  }
  try {
    const plain = atob(text.replace(/=+$/, '').replace(/-/g, '+').replace(/_/g, '/'));
    return Uint8Array.from(plain, (one) => one.charCodeAt(0)) as Bytes;
  } catch {
    invalid('invalid base64');
  }
}

/** Join bytes. */
export function joined(...parts: Uint8Array[]): Bytes {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
