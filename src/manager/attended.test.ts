import { describe, expect, test } from 'vitest';
import type { Runtime } from '../ports/runtime.ts';
import { runAttended } from './attended.ts';

const never = new AbortController().signal;
const busy = { key: 'gpu/1', runtime: 'one', agent: { kind: 'busy', agent: 'a1', job: 'j', since: 0, due: null } };
const free = { key: 'gpu/2', runtime: 'one', agent: { kind: 'free' } };

/** Runs a program in the sandbox of `agent`, on a runtime with these members. */
function attend(runtime: Partial<Runtime>, agent: string | null, start: Parameters<typeof runAttended>[2]) {
  const parts = { reconciler: { slots: [free, busy] }, runtimes: { get: () => ({ name: 'one', ...runtime }) } };
  return runAttended(parts as unknown as Parameters<typeof runAttended>[0], agent, start, never);
}

describe('a program in an attended job', () => {
  const program = { command: ['sh', '-c', 'echo'], terminal: null };
  const calls: unknown[] = [];
  const exec: Runtime['exec'] = async (...call) => {
    calls.push(call);
    return 'shell' as never;
  };

  test('runs in the sandbox of its agent', async () => {
    expect(await attend({ exec }, 'a1', program)).toBe('shell');
    expect(calls).toEqual([['a1', program.command, never]]);
  });

  test('is refused where that is not possible', async () => {
    await expect(attend({}, 'a1', program)).rejects.toMatchObject({ code: 'E_SHELL', hint: expect.stringContaining('docker') });
    const terminal = { columns: 80, rows: 24, term: 'xterm' };
    await expect(attend({ exec }, 'a1', { ...program, terminal })).rejects.toMatchObject({ code: 'E_SHELL' });
    await expect(attend({ exec }, 'a1', { command: null, terminal: null })).rejects.toMatchObject({ code: 'E_SHELL' });
    await expect(attend({ exec }, 'a2', program)).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
    await expect(attend({ exec }, null, program)).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
  });
});
