// The project's client for JavaScript, as the pages "Try it" and "Demo" use it. It is one file beside
// this one, which other pages may use, too; it is loaded when such a page is opened.

import { ROOT } from './api';
import { token } from './session';

declare const CLIENT_FILE: string;

export interface Received {
  readonly sender: string;
  readonly type: string;
  readonly payload: unknown;
}

export interface Subscription {
  cancel(): Promise<void>;
}

export interface Delivered extends Received {
  readonly key: string | null;
  readonly delivery: { readonly seq: number; readonly attempt: number } | null;
  ack(): Promise<unknown>;
}

export interface Consumer extends AsyncIterable<Delivered> {
  close(): Promise<void>;
}

export interface Client extends EventTarget {
  readonly address: string;
  messages(): AsyncIterable<Received>;
  tell(to: string, type: string, data: unknown, options?: Record<string, unknown>): Promise<unknown>;
  ask(to: string, type: string, data: unknown, options?: Record<string, unknown>): Promise<object>;
  publish(topic: string, type: string, data: unknown, options?: Record<string, unknown>): Promise<unknown>;
  subscribe(topic: string, handler: (message: Received) => unknown): Promise<Subscription>;
  consume(topic: string, name: string, options?: Record<string, unknown>): Promise<Consumer>;
  call(actor: string, method: string, args: readonly unknown[]): Promise<unknown>;
  close(): Promise<void>;
}

interface ClientModule {
  connect(url: string, address: string, options?: Record<string, unknown>): Promise<Client>;
}

export const hasClient = CLIENT_FILE !== '';

export interface Frame {
  readonly at: number;
  readonly out: boolean;
  readonly text: string;
}

/** Connects to the hub of this page; every frame, both ways, is shown to `seen`. */
export async function connected(address: string, seen: (frame: Frame) => void): Promise<Client> {
  const file: ClientModule = (await import(/* @vite-ignore */ new URL(CLIENT_FILE, import.meta.url).href)) as ClientModule;
  const url = new URL(ROOT.replace(/api\/admin\/v1$/, 'ws'), location.href);
  url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  class Observed extends WebSocket {
    constructor(to: string | URL, protocols?: string | string[]) {
      super(to, protocols);
      this.addEventListener('message', (event) => {
        if (typeof event.data === 'string') seen({ at: Date.now(), out: false, text: event.data });
      });
    }

    override send(data: string | Blob | BufferSource): void {
      if (typeof data === 'string') seen({ at: Date.now(), out: true, text: data });
      super.send(data);
    }
  }
  return file.connect(url.href, address, {
    ...(token.value ? { token: () => token.value } : {}),
    reconnect: 'interactive',
    WebSocket: Observed,
  });
}
