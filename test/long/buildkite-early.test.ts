/** `binding: early`: the real agent waits for its job itself, on the real Engine, through the broker, at the stand-in. */
import { describe, expect, test } from 'vitest';
import { untilIdle } from '../support/buildkite.ts';
import { aDay, endOf, untilRunning, works } from '../support/buildkite-days.ts';
import { lacks } from '../support/require.ts';

const early = { service: 'binding: early' };

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent'))('an agent that waits for its job itself', () => {
  test('runs one job, and the next one runs in the next sandbox', async () => {
    await using day = await aDay(early);
    const { bench, here } = day;
    const daemon = await here.up();
    await untilIdle(bench);
    const agents = new Set<string>();
    for (let n = 1; n <= 3; n++) {
      const { exit, log, agent } = await bench.job(`echo job ${n}; test ! -e /tmp/before; touch /tmp/before; exit ${n - 1}`);
      expect({ exit, name: agent?.name }, log).toEqual({ exit: n - 1, name: expect.stringMatching(/ci-1$/) });
      agents.add(agent?.id ?? '');
    }
    expect(agents.size).toBe(3);
    await endOf(day, daemon);
  });
});
