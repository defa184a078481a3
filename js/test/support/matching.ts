/** What a case expects against what happened: subsets, kept values, files. */

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';

export type Json = any;

export interface Case {
  name: string;
  needs?: string[];
  given?: Record<string, Json>;
  steps: Record<string, Json>[];
  function: string;
  args: Record<string, Json>;
  result?: Json;
  error?: boolean;
}

const folder = new URL('../../../tests/vectors/client/', import.meta.url);

/** All cases of one kind, by the name of their file and their own. */
export function cases(kind: string): Map<string, Case> {
  const found = new Map<string, Case>();
  for (const name of readdirSync(folder).sort()) {
    if (name.endsWith('.json')) {
      const file = JSON.parse(readFileSync(new URL(name, folder), 'utf8'));
      for (const one of file.kind === kind ? file.cases : []) {
        found.set(`${name.replace('.json', '')}: ${one.name}`, one);
      }
    }
  }
  return found;
}

const isObject = (value: Json): value is Record<string, Json> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Values that a case has named. */
export class Kept {
  private _values = new Map<string, Json>();

  /** The value with names replaced by what was kept under them. */
  filled(value: Json): Json {
    if (typeof value === 'string') {
      return this._values.has(value) ? this._values.get(value) : value;
    }
    if (Array.isArray(value)) {
      return value.map((one) => this.filled(one));
    }
    if (isObject(value)) {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, this.filled(one)]));
    }
    return value;
  }

  keep(name: string, value: Json): void {
    this._values.set(name, value);
  }

  /** Compare, and keep what is named. */
  check(expected: Json, actual: Json, at = '', isExact = false): void {
    const shown = () => `${at}: ${JSON.stringify(actual)} is not ${JSON.stringify(expected)}`;
    if (expected === '$any') {
      return;
    }
    if (typeof expected === 'string' && /^\$[a-zA-Z]\w*$/.test(expected)) {
      if (!this._values.has(expected)) {
        this._values.set(expected, actual);
      }
      assert.ok(isDeepStrictEqual(actual, this._values.get(expected)), shown());
    } else if (Array.isArray(expected)) {
      assert.ok(Array.isArray(actual) && actual.length === expected.length, shown());
      expected.forEach((one, index) => this.check(one, actual[index], `${at}[${index}]`, isExact));
    } else if (isObject(expected) && '$contains' in expected) {
      assert.ok(String(actual).includes(expected.$contains), shown());
    } else if (isObject(expected)) {
      assert.ok(isObject(actual), shown());
      for (const [name, one] of Object.entries(expected)) {
        if (one === '$absent') {
          assert.ok(!(name in actual), `${at}.${name} is there: ${JSON.stringify(actual[name])}`);
          continue;
        }
        assert.ok(name in actual, `${at}.${name} is missing in ${JSON.stringify(actual)}`);
        this.check(one, actual[name], `${at}.${name}`, isExact);
      }
      if (isExact) {
        const others = Object.keys(actual).filter((name) => !(name in expected));
        assert.deepEqual(others, [], `${at}: ${JSON.stringify(actual)} has other members`);
      }
    } else {
      assert.ok(expected === actual, shown());
    }
  }
}

/** Positions, given one by one or as a range. */
export const seqs = (listed: Json): number[] =>
  Array.isArray(listed)
    ? listed
    : Array.from({ length: listed.to - listed.from + 1 }, (_, index) => listed.from + index);

/** An error as a case names it. */
export function errorFacts(error: any): Record<string, Json> {
  const kind = error instanceof TypeError ? 'Invalid' : error.name;
  assert.ok(error instanceof TypeError || 'code' in error, `${error?.stack}`);
  const { code, resolution, retryable, details, message: text } = error;
  return { kind, text, code, resolution, retryable, details };
}
