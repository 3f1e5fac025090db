/** A host with GPUs and no config: one agent for each card, and for a single job the card that it asks for. */
import { expect, test } from 'vitest';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { onejob } from '../support/onejob.ts';

test('without a config every card has its agent, and jobs without devices have theirs', async () => {
  using host = gpuHost([card(0), card(1)]);
  await using here = await onejob({ env: { ...host.env, DOCKER_HOST: 'unix:///nowhere' } });
  const daemon = await here.up();
  const devices = async () => {
    const { pools } = await here.api.status();
    return pools.map(({ name, slots }) => [name, slots.map((slot) => slot.devices)]);
  };
  await expect.poll(devices).toEqual([
    ['default', [[], []]],
    ['gpu', [[host.cards[0]?.uuid], [host.cards[1]?.uuid]]],
  ]);
  expect((await daemon.stop()).code).toBe(0);
});

test('a temporary daemon leaves the cards alone until a job asks', async () => {
  using host = gpuHost([card(0)]);
  await using here = await onejob({ env: { ...host.env, DOCKER_HOST: 'unix:///nowhere' } });
  const job = here.run('--no-workspace', '--', 'sh', '-c', 'echo begun; sleep 1');
  await job.says(/begun/);
  expect((await here.api.devices()).map(({ state }) => state)).toEqual(['free']);
  expect((await job.ended).code).toBe(0);
  const asks = await here.run('--no-workspace', '--devices', '1', '--', 'echo', 'on a card').ended;
  expect(asks, asks.stderr).toMatchObject({ code: 0, stdout: 'on a card\n' });
});
