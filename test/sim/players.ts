/** Plays scenarios in processes of their own, several at a time, and gives up one that hangs or dies. */
import { type ChildProcess, fork } from 'node:child_process';
import { join } from 'node:path';
import type { Answer, Order } from './worker.ts';

export interface PlayersOptions {
  /** How many at a time. */
  readonly count: number;
  /** ms that one play may take. */
  readonly limit: number;
  /** Where the simulator is that they play in; default this one. */
  readonly folder?: string;
}

interface Player {
  readonly child: ChildProcess;
  said: string;
}

/** What came of an order. A play that hung or died has a story of its last words only. */
export type Played = Answer & { readonly order: Order };

export class Players implements Disposable {
  readonly #options: PlayersOptions;
  readonly #idle: Player[] = [];
  readonly #waiting: (() => void)[] = [];
  readonly #all = new Set<Player>();

  constructor(options: PlayersOptions) {
    this.#options = options;
  }

  async play(order: Order): Promise<Played> {
    const player = await this.#take();
    const begun = performance.now();
    const { child } = player;
    player.said = '';
    const failed = (broken: string): Played => {
      this.#all.delete(player);
      child.kill('SIGKILL');
      const story = [[0, player.said.slice(-4_000)]] as const;
      const none = { counts: {}, hash: 0, virtual: 0, heap: 0, happenings: order.happenings ?? [] };
      return { ...none, order, scenario: order.scenario, seed: order.seed, broken, story, ms: performance.now() - begun };
    };
    const played = await new Promise<Played>((resolve) => {
      const timer = setTimeout(() => end(failed(`hung: no end within ${this.#options.limit / 1_000} s`)), this.#options.limit);
      const end = (answer: Played): void => {
        clearTimeout(timer);
        child.off('message', answered);
        child.off('exit', died);
        resolve(answer);
      };
      const answered = (answer: unknown): void => end({ ...(answer as Answer), order });
      const died = (code: number | null, signal: string | null): void =>
        end(failed(`died: the simulator ended with ${code ?? signal}: ${lastLine(player.said)}`));
      child.on('message', answered);
      child.on('exit', died);
      child.send(order);
    });
    if (this.#all.has(player)) this.#idle.push(player);
    this.#waiting.shift()?.();
    return played;
  }

  /** Ids of the processes that play. */
  get processes(): number[] {
    return [...this.#all].flatMap(({ child }) => child.pid ?? []);
  }

  async #take(): Promise<Player> {
    for (;;) {
      const idle = this.#idle.shift();
      if (idle !== undefined) return idle;
      if (this.#all.size < this.#options.count) return await this.#begin();
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  async #begin(): Promise<Player> {
    // One thread for files, so that they come back in the order in which they were asked for.
    const env = { ...process.env, UV_THREADPOOL_SIZE: '1', NODE_NO_WARNINGS: '1' };
    const child = fork(join(this.#options.folder ?? import.meta.dirname, 'worker.ts'), {
      env,
      execArgv: ['--max-semi-space-size=64'],
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    const player: Player = { child, said: '' };
    this.#all.add(player);
    for (const stream of [child.stdout, child.stderr])
      stream?.on('data', (bytes: Buffer) => {
        player.said = (player.said + bytes.toString()).slice(-20_000);
      });
    await new Promise<void>((resolve, reject) => {
      child.once('message', () => resolve());
      child.once('exit', () => reject(new Error(`the simulator does not start: ${player.said}`)));
    });
    child.removeAllListeners('exit');
    return player;
  }

  [Symbol.dispose](): void {
    for (const { child } of this.#all) child.kill('SIGKILL');
    this.#all.clear();
  }
}

function lastLine(text: string): string {
  const lines = text.trim().split('\n');
  return lines.find((line) => /Error/.test(line)) ?? lines.at(-1) ?? '';
}
