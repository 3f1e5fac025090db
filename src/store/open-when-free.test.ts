import { expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { leaderOf } from './lead.ts';
import { openStore, openWhenFree } from './store.ts';

const nobody = async () => {
  throw new Error('nobody listens');
};

test('a permanent leader is not awaited, and a temporary manager waits for nobody', async () => {
  using dir = scratch();
  const stays = openStore(dir.path);
  await expect(openWhenFree(dir.path, { temporary: false, tellToLeave: nobody })).rejects.toMatchObject({
    code: 'E_STATE_LED',
    hint: expect.stringContaining('down --leave'),
  });
  stays.close();
  const temporary = openStore(dir.path, { temporary: true });
  await expect(openWhenFree(dir.path, { temporary: true, tellToLeave: nobody })).rejects.toMatchObject({ code: 'E_STATE_LED' });
  temporary.close();
});

test('a temporary leader is told to leave, repeatedly if necessary, and replaced', async () => {
  using dir = scratch();
  const temporary = openStore(dir.path, { temporary: true });
  temporary.listens('/run/it.sock');
  let told = 0;
  const tellToLeave = async (socket: string) => {
    expect(socket).toBe('/run/it.sock');
    told += 1;
    if (told === 1) throw new Error('not yet');
    temporary.close();
  };
  const opened = await openWhenFree(dir.path, { temporary: false, tellToLeave });
  expect([told, opened.owner]).toEqual([2, temporary.owner]);
  opened.close();
});

test('a leader that does not leave is named, with a hint that keeps its jobs running', async () => {
  using dir = scratch();
  const temporary = openStore(dir.path, { temporary: true });
  const never = openWhenFree(dir.path, { temporary: false, tellToLeave: nobody, patience: 0 });
  await expect(never).rejects.toMatchObject({ code: 'E_STATE_LED', hint: expect.stringMatching(/kill -9 \d+.*jobs continue/) });
  temporary.close();
});

test('a leader records where it listens and that it is alive, until it is gone', () => {
  using dir = scratch();
  expect(leaderOf(dir.path)).toBe(null);
  const store = openStore(dir.path, { temporary: true });
  const leader = { pid: process.pid, temporary: true, isAlive: true };
  expect(leaderOf(dir.path)).toEqual({ ...leader, socket: null });
  store.listens('/run/it.sock');
  expect(leaderOf(dir.path)).toEqual({ ...leader, socket: '/run/it.sock' });
  store.listens(null);
  expect(leaderOf(dir.path)?.socket).toBe(null);
  store.close();
  expect(leaderOf(dir.path)).toBe(null);
});
