import { expect, it } from 'vitest';
import { removeIpc } from './remove.ts';

const agent = 200_001;
const other = 200_002;
const head = 'key id perms size cpid lpid nattch uid gid cuid cgid';
const row = (id: number, made: number, owner: number, perms = '600') => `0 ${id} ${perms} 1 1 1 0 ${owner} 0 ${made} 0`;

/** A host with these rows of shared memory, whose `ipcrm` removes what nothing has attached. */
function host(rows: readonly string[], attached: readonly number[] = []) {
  const calls: (readonly string[])[] = [];
  let left = rows;
  return {
    calls,
    read: (kind: string) => (kind === 'shm' ? [head, ...left, ''].join('\n') : ''),
    remove: async (options: readonly string[]) => {
      calls.push(options);
      left = left.flatMap((line) => {
        const id = line.split(' ')[1] ?? '';
        if (!options.includes(id)) return [line];
        return attached.includes(Number(id)) ? [line.replace(' 600 ', ' 1600 ')] : [];
      });
    },
  };
}

it('removes what the user made, also if the job gave it to another', async () => {
  const { calls, read, remove } = host([row(1, agent, agent), row(2, agent, other), row(3, other, other)]);
  expect(await removeIpc(agent, read, remove)).toBe(true);
  expect(calls).toEqual([['-m', '1', '-m', '2']]);
});

it('leaves alone what another job gave this user', async () => {
  const { calls, read, remove } = host([row(1, other, agent)], [1]);
  expect(await removeIpc(agent, read, remove)).toBe(true);
  expect(calls).toEqual([]);
});

it('does not wait for memory that another process has attached: the kernel frees it with the last', async () => {
  const { calls, read, remove } = host([row(1, agent, agent)], [1]);
  expect(await removeIpc(agent, read, remove)).toBe(true);
  expect(await removeIpc(agent, read, remove)).toBe(true);
  expect(calls).toEqual([['-m', '1']]);
});

it('says if something is left', async () => {
  const { read } = host([row(1, agent, agent)]);
  expect(await removeIpc(agent, read, async () => {})).toBe(false);
});

it('fits any number of them into arguments of a program', async () => {
  const ids = Array.from({ length: 4_096 }, (_, id) => id);
  const { calls, read, remove } = host(ids.map((id) => row(id, agent, agent)));
  expect(await removeIpc(agent, read, remove)).toBe(true);
  expect(Math.max(...calls.map((options) => options.length))).toBeLessThanOrEqual(1_000);
  expect(calls.flat()).toHaveLength(2 * ids.length);
});
