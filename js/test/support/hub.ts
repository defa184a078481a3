/** A hub of its own for a test: a process on a free port, which can be killed and started again. */

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { type Server, type Socket, connect as dial, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

export const root = fileURLToPath(new URL('../../../', import.meta.url));
export const command = process.env.HUB_COMMAND ?? join(root, '.venv', 'bin', 'signalhub');
export const python = process.env.HUB_PYTHON ?? join(root, '.venv', 'bin', 'python');

export const soak = 'SOAK' in process.env;

export class TestHub {
  port = 0;
  private _process: ChildProcess | null = null;

  private constructor(
    readonly folder: string,
    private _settings: Record<string, string>,
  ) {}

  /** Start a hub; `settings` are variables of its environment. */
  static async start(settings: Record<string, string> = {}): Promise<TestHub> {
    const hub = new TestHub(mkdtempSync(join(tmpdir(), 'signalhub-js-')), settings);
    await hub.run();
    return hub;
  }

  get url(): string {
    return `ws://127.0.0.1:${this.port}/ws`;
  }

  get httpUrl(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Start the process on the port it had before. */
  async run(): Promise<void> {
    const args = ['serve', '--port', String(this.port), '--data', join(this.folder, 'data')];
    const started = spawn(command, args, {
      cwd: this.folder,
      env: { ...process.env, ...this._settings },
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    this._process = started;
    let said = '';
    await new Promise<void>((resolve, reject) => {
      started.stdout!.on('data', (data) => {
        said += data;
        const listening = /:(\d+)\//.exec(said);
        if (listening) {
          this.port = Number(listening[1]);
          resolve();
        }
      });
      started.on('exit', () => reject(new Error(`the hub did not start: ${said}`)));
    });
  }

  /** End it without a word. */
  async kill(): Promise<void> {
    const { _process: running } = this;
    this._process = null;
    if (running && running.exitCode === null && running.signalCode === null) {
      running.kill('SIGKILL');
      await once(running, 'exit');
    }
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** What goes wrong on the way to a hub: connections that are cut, or that hear nothing more. */
export class FaultyPath {
  private _server: Server;
  private _pairs = new Set<[Socket, Socket]>();
  private _isStalled = false;

  private constructor(port: () => number) {
    this._server = createServer((near) => {
      const far = dial(port(), '127.0.0.1');
      const pair: [Socket, Socket] = [near, far];
      this._pairs.add(pair);
      const end = () => {
        near.destroy();
        far.destroy();
        this._pairs.delete(pair);
      };
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        from.on('data', (data) => {
          if (!this._isStalled) {
            to.write(data);
          }
        });
        from.on('close', end);
        from.on('error', end);
      }
    });
  }

  static async to(hub: TestHub): Promise<FaultyPath> {
    const path = new FaultyPath(() => hub.port);
    path._server.listen(0, '127.0.0.1');
    await once(path._server, 'listening');
    return path;
  }

  get url(): string {
    const address = this._server.address() as { port: number };
    return `ws://127.0.0.1:${address.port}/ws`;
  }

  /** Cut every connection. */
  cut(): void {
    this._isStalled = false;
    for (const [near, far] of this._pairs) {
      near.destroy();
      far.destroy();
    }
  }

  /** Swallow everything from now on, until the next cut. */
  stall(): void {
    this._isStalled = true;
  }

  [Symbol.dispose](): void {
    this.cut();
    this._server.close();
  }
}

/** Wait until something holds. */
export async function eventually(holds: () => boolean, withinMs = 10_000): Promise<void> {
  const end = Date.now() + withinMs;
  while (!holds()) {
    if (Date.now() > end) {
      throw new Error(`not within ${withinMs} ms: ${holds}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
