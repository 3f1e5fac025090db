/** What keeps pools of a service from beginning anything: its agent's program, its token, and what is wrong at a queue. */
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import { toFailure } from '../../errors.ts';
import type { CiEvent } from '../ci-service.ts';
import type { Program } from './mounted-program.ts';

export interface ReadinessParts {
  readonly pools: Iterable<Pick<PoolConfig, 'name' | 'queue'>>;
  /** @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  readonly program: Program;
  /** Why jobs of a queue cannot be had; undefined: they can. */
  readonly trouble: (queue: string) => string | undefined;
  /** The token is another one, or there is none any more. */
  readonly changed: () => void;
  readonly emit: (event: CiEvent) => void;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export interface Readiness {
  /** As it was read last; null while it cannot be. */
  readonly token: string | null;
  /** Reads both, again and again; to be called once. */
  follow(): void;
  /** Emits what has changed of who is held, and why. */
  tell(): void;
}

/** ms between two tries to read what config names. */
const readAgain = 30_000;

export function createReadiness(parts: ReadinessParts): Readiness {
  const { clock, signal } = parts;
  const reasons = new Map<'program' | 'token', { readonly why: string; readonly beginning: boolean }>();
  const held = new Map<string, string | null>();
  let token: string | null = null;

  function tell(): void {
    for (const { name: pool, queue } of parts.pools) {
      const now = reasons.get('program') ?? reasons.get('token') ?? null;
      const why = now?.why ?? parts.trouble(queue) ?? null;
      if (held.get(pool) === why) continue;
      held.set(pool, why);
      parts.emit({ kind: 'hold', pool, reason: why, ...(now?.beginning === true && { beginning: true }) });
    }
  }

  /** Now, and every half a minute, as long as `read` answers true. */
  async function readOften(read: () => Promise<boolean>): Promise<void> {
    if (signal.aborted || !(await read()) || signal.aborted) return;
    const callOff = clock.after(readAgain, () => {
      signal.removeEventListener('abort', callOff);
      void readOften(read);
    });
    signal.addEventListener('abort', callOff, { once: true });
  }

  async function readToken(): Promise<boolean> {
    const before = token;
    try {
      token = (await parts.token()).trim();
      reasons.delete('token');
    } catch (error) {
      token = null;
      reasons.set('token', { why: toFailure(error).message, beginning: false });
    }
    if (token !== before) parts.changed();
    tell();
    return true;
  }

  async function readyProgram(): Promise<boolean> {
    try {
      await parts.program.ready(signal);
      reasons.delete('program');
    } catch (error) {
      if (!signal.aborted) reasons.set('program', { why: toFailure(error).message, beginning: false });
    }
    if (!signal.aborted) tell();
    return reasons.has('program');
  }

  return {
    get token() {
      return token;
    },
    tell,
    follow() {
      reasons.set('program', { why: 'the agent is being looked for', beginning: true });
      tell();
      void readOften(readToken);
      void readOften(readyProgram);
    },
  };
}
