// All rows of a list with a cursor, for exports: at most 10 000.

import { get } from './api';
import type { Query } from './api';

export const EXPORT_MAX = 10_000;

export async function everyRow<Row, Answer extends { readonly next: string | null }>(path: string, query: Query, pick: (answer: Answer) => readonly Row[], cursorName = 'cursor'): Promise<readonly Row[]> {
  const rows: Row[] = [];
  let cursor: string | null = null;
  do {
    const answer: Answer = await get<Answer>(path, { ...query, limit: 500, ...(cursor === null ? {} : { [cursorName]: cursor }) });
    rows.push(...pick(answer));
    cursor = answer.next;
  } while (cursor !== null && rows.length < EXPORT_MAX);
  return rows.slice(0, EXPORT_MAX);
}
