// What a page says when there is nothing, not yet anything, or something went wrong.

import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { ApiError } from '../api';
import { useStaleness } from '../hooks';
import { span } from '../when';
import { words } from '../words';
import { Command, copy } from './controls';

/** What happened, what to do, the code; never in place of what is still known. */
export function Problem({ error, retry }: { readonly error: ApiError | null; readonly retry?: () => void }): JSX.Element | null {
  if (!error) return null;
  const needs = typeof error.details['needs'] === 'string' ? error.details['needs'] : '';
  const details = JSON.stringify({ status: error.status, error: error.message, errorCode: error.code, resolution: error.resolution, details: error.details }, null, 2);
  return (
    <div class="notice bad" role="alert">
      <p>
        <strong>{error.status === 403 && needs ? words.forbidden(needs) : error.message}</strong>
      </p>
      {error.resolution && <p>{error.resolution}</p>}
      <p class="notice-foot">
        <code>{error.code}</code>
        {retry && (
          <button type="button" class="small" onClick={retry}>
            {words.tryAgain}
          </button>
        )}
        <button type="button" class="quiet small" onClick={() => void copy(details)}>
          {words.copyDetails}
        </button>
      </p>
    </div>
  );
}

/** What would be here, and how to get it. */
export function Empty({ children, command, title }: { readonly title: string; readonly children?: ComponentChildren; readonly command?: string | undefined }): JSX.Element {
  return (
    <div class="empty">
      <p>
        <strong>{title}</strong>
      </p>
      {children && <p>{children}</p>}
      {command && (
        <p>
          <Command text={command} />
        </p>
      )}
    </div>
  );
}

/** The shape of the page, for what takes longer than 300 ms. */
export function Shape({ lines = 6 }: { readonly lines?: number }): JSX.Element | null {
  const [shown, show] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => show(true), 300);
    return () => clearTimeout(timer);
  }, []);
  if (!shown) return <div class="shape" aria-hidden="true" />;
  return (
    <div class="shape" aria-busy="true" role="status" aria-label={words.loading}>
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} class={index % 3 === 2 ? 'short' : ''} />
      ))}
    </div>
  );
}

/** Content that is dimmed while the hub is not heard. */
export function Fresh({ children }: { readonly children: ComponentChildren }): JSX.Element {
  const age = useStaleness();
  return (
    <div class={`fresh ${age > 0 ? 'stale' : ''}`}>
      {age > 0 && <p class="stale-note">{words.staleSince(span(age))}</p>}
      {children}
    </div>
  );
}
