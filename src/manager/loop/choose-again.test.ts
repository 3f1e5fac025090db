import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { poolLike } from '../../../test/kit/pool.ts';
import type { RuntimeName } from '../../config/config.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { chooseEvery, keepChoosing } from './choose-again.ts';

const [host, docker] = ['process', 'docker'].map((name) => ({ name, capabilities: { grants: 'host' } }) as Runtime) as [
  Runtime,
  Runtime,
];

const poolOf = (runtime: RuntimeName | null, leaving = false) => poolLike({ runtime }, { runtime: host, leaving });

test('only pools without a configured runtime move once Docker can be used, and checks stop at the end', async () => {
  const pools = [poolOf(null), poolOf('process'), poolOf(null, true)];
  const clock = handClock();
  const added: Runtime[] = [];
  let looks = 0;
  let failing = true;
  const runtimes = {
    best: host,
    reason: 'because',
    chooseAgain: async () => {
      looks++;
      if (failing) throw new Error('not now');
      if (runtimes.best === docker) return false;
      runtimes.best = docker;
      return true;
    },
  };
  const said: string[] = [];
  const log = {
    info: (message: string) => void said.push(message),
    warn: (message: string) => void said.push(message),
    error() {},
  };
  const observer = { add: async (runtime: Runtime) => void added.push(runtime) };
  const end = keepChoosing({ clock, log, runtimes, reconciler: { pools }, observer });
  const look = async () => {
    clock.advance(chooseEvery);
    await expect.poll(() => clock.next()).toBe(chooseEvery);
  };
  await look();
  expect(pools.map(({ runtime }) => runtime)).toEqual([host, host, host]);
  failing = false;
  pools[0]?.failed({ code: 'E_TEST', message: 'x', retry: false }, 'prepare', 0, 0);
  await look();
  expect(pools.map(({ runtime }) => runtime)).toEqual([docker, host, host]);
  expect([pools[0]?.backoff, added, said]).toEqual([null, [docker], ['failed to check runtimes', 'runtime chosen']]);
  await look();
  expect([looks, added]).toEqual([3, [docker]]);
  end();
  expect(clock.next()).toBeNull();
});
