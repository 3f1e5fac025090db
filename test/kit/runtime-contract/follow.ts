/** Following what a runtime tells, for tests: one sandbox's output, and the events of all. */
import { randomBytes } from 'node:crypto';
import type { AgentId, Exit } from '../../../src/core/slot.ts';
import {
  type LogChunk,
  type LogPosition,
  type Recipe,
  type Runtime,
  type RuntimeEvent,
  type SandboxSpec,
  start,
} from '../../../src/ports/runtime.ts';

/** The bytes of one stream. */
export function bytesOf(chunks: readonly LogChunk[], stream: 'stdout' | 'stderr'): Buffer {
  return Buffer.concat(chunks.filter((chunk) => chunk.stream === stream).map((chunk) => chunk.bytes));
}

/** Follows one sandbox's log in the background; `until` waits for text in it. */
export function follow(runtime: Runtime, agent: AgentId, from: LogPosition = start) {
  const chunks: LogChunk[] = [];
  const stop = new AbortController();
  const waiting = new Set<() => void>();
  const wake = () => {
    for (const check of [...waiting]) check();
  };
  let over = false;
  const ended = (async () => {
    for await (const some of runtime.logs(agent, from, stop.signal)) {
      chunks.push(...some);
      wake();
    }
  })().finally(() => {
    over = true;
    wake();
  });
  ended.catch(() => {});
  const text = () => Buffer.concat(chunks.map((chunk) => chunk.bytes)).toString('latin1');
  return {
    chunks,
    ended,
    text,
    stop: () => stop.abort(),
    until: (wanted: string) =>
      new Promise<void>((resolve, reject) => {
        const check = () => {
          const found = text().includes(wanted);
          if (!found && !over) return;
          waiting.delete(check);
          if (found) resolve();
          else reject(new Error(`the log of ${agent} ended without ${JSON.stringify(wanted)}: ${JSON.stringify(text())}`));
        };
        waiting.add(check);
        check();
      }),
  };
}

/** Gathers what a runtime reports; `exit` waits for one agent's end. */
export function watch(runtime: Runtime) {
  const seen: RuntimeEvent[] = [];
  const stop = new AbortController();
  const waiting = new Set<() => void>();
  const done = (async () => {
    for await (const event of runtime.events(stop.signal)) {
      seen.push(event);
      for (const check of [...waiting]) check();
    }
  })();
  done.catch(() => {});
  const find = <E extends RuntimeEvent>(matches: (event: RuntimeEvent) => event is E) =>
    new Promise<E>((resolve) => {
      const check = () => {
        const found = seen.find(matches);
        if (found === undefined) return;
        waiting.delete(check);
        resolve(found);
      };
      waiting.add(check);
      check();
    });
  return {
    seen,
    done,
    connected: () => find((event): event is Extract<RuntimeEvent, { kind: 'connected' }> => event.kind === 'connected'),
    exit: async (agent: AgentId): Promise<Exit> => {
      const isIt = (event: RuntimeEvent): event is Extract<RuntimeEvent, { kind: 'exited' }> =>
        event.kind === 'exited' && event.agent === agent;
      return (await find(isIt)).exit;
    },
    stop: async () => {
      stop.abort();
      await done;
    },
  };
}

/** A sandbox to be made, with a fresh agent id. */
export function specOf(recipe: Recipe, changes: Partial<SandboxSpec> = {}): SandboxSpec {
  return {
    agent: randomBytes(6).toString('hex'),
    pool: 'contract',
    slot: 'contract/1',
    name: 'con.1',
    recipe,
    devices: [],
    ...changes,
  };
}
