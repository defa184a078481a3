/**
 * Reading objects of the hub.
 *
 * A shape names the members: `name`, or `name<wireName`, and what they are. Kinds are `s` text,
 * `n` number, `i` whole number, `b` boolean, `o` object, `*` anything; then `!` if it must be there,
 * `?` for `null` when it is not, or `:` and a default. A shape in a list stands for a list of such
 * objects, a shape for an object or `null`. A name that ends with `Ms` whose wire name does not is
 * converted from seconds. Unknown members are ignored.
 */

export type Shape = { [name: string]: string | Shape | [string | Shape] };

const WRONG = Symbol();

const DEFAULTS: Record<string, () => unknown> = {
  s: () => '',
  n: () => 0,
  i: () => 0,
  b: () => false,
  o: () => ({}),
  '*': () => null,
};

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function isKind(value: unknown, kind: string): boolean {
  switch (kind) {
    case 's':
      return typeof value === 'string';
    case 'n':
      return typeof value === 'number';
    case 'i':
      return Number.isInteger(value);
    case 'b':
      return typeof value === 'boolean';
    case 'o':
      return isObject(value);
    default:
      return true;
  }
}

function read(
  value: unknown,
  shape: string | Shape | [string | Shape],
  isLenient: boolean,
): unknown {
  if (Array.isArray(shape)) {
    if (value === undefined) {
      return [];
    }
    const items = Array.isArray(value)
      ? value.map((one) => read(one, shape[0], isLenient))
      : [WRONG];
    return items.includes(WRONG) ? WRONG : items;
  }
  if (typeof shape !== 'string') {
    return value === undefined || value === null
      ? null
      : (members(value, shape, isLenient) ?? WRONG);
  }
  const [kind, mark] = [shape[0]!, shape[1]];
  if (value === undefined || (value === null && mark === '?')) {
    if (mark === '!') {
      return WRONG;
    }
    const given = shape.slice(2);
    return mark === '?'
      ? null
      : mark === ':'
        ? kind === 's'
          ? given
          : JSON.parse(given)
        : DEFAULTS[kind]!();
  }
  return isKind(value, kind) ? value : WRONG;
}

/** Read an object; `null` if it does not have this shape. With `isLenient`, wrong members count as missing. */
export function members<T = Record<string, unknown>>(
  value: unknown,
  shape: Shape,
  isLenient = false,
): T | null {
  if (!isObject(value)) {
    return null;
  }
  const made: Record<string, unknown> = {};
  for (const [names, kind] of Object.entries(shape)) {
    const [name, wireName] = names.split('<') as [string, string?];
    let found = read(value[wireName ?? name], kind, isLenient);
    if (found === WRONG && isLenient) {
      found = read(undefined, kind, isLenient);
    }
    if (found === WRONG) {
      return null;
    }
    const isSeconds = wireName && name.endsWith('Ms') && typeof found === 'number';
    made[name] = isSeconds ? (found as number) * 1000 : found;
  }
  return made as T;
}

/** A member that is a number above 0. */
export function numberIn(facts: unknown, name: string): number | null {
  const value = isObject(facts) ? facts[name] : null;
  return typeof value === 'number' && value > 0 ? value : null;
}

/** A member that is a non-empty string. */
export function textIn(facts: unknown, name: string): string | null {
  const value = isObject(facts) ? facts[name] : null;
  return typeof value === 'string' && value ? value : null;
}
