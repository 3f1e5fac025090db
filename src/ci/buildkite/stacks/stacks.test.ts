/** The client of the Stacks API against the stand-in. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type BuildkiteStandin, startBuildkite } from '../../../../test/standins/buildkite/standin.ts';
import { createOutbound } from '../../../http/outbound.ts';
import { noProxies } from '../../../http/proxies.ts';
import { systemClock } from '../../../system/system-clock.ts';
import { LaterError } from '../api.ts';
import { createStacks, type Stacks } from './stacks.ts';

let bk: BuildkiteStandin;
let stacks: Stacks;
const outbound = createOutbound(noProxies);
let token = '';
const never = new AbortController().signal;
const key = 'onejob-0a1b2c3d-host-gpu';

beforeEach(async () => {
  bk = await startBuildkite({ stackLimits: { list: 3 }, now: () => 1_800_000_000_000 });
  token = bk.token;
  stacks = createStacks({
    endpoint: bk.endpoint,
    version: '1.0.0',
    clock: systemClock,
    fetch: outbound.fetch,
    token: async () => `${token}\n`,
  });
  await stacks.register(key, 'gpu', { host: 'host' }, never);
});
afterEach(async () => {
  outbound.close();
  await bk[Symbol.asyncDispose]();
});

describe('a stack', () => {
  it('is registered twice, and removed twice', async () => {
    expect(await stacks.register(key, 'gpu', { host: 'host' }, never)).not.toBe('');
    await stacks.deregister(key, never);
    await stacks.deregister(key, never);
    await expect(stacks.scheduled(key, 'gpu', { limit: 10, after: null }, never)).rejects.toMatchObject({ code: 'E_CI_DENIED' });
  });

  it('is refused to a token that may not have one, without the token in the message', async () => {
    token = bk.metricsToken;
    const refused = stacks.register(key, 'gpu', {}, never);
    await expect(refused).rejects.toMatchObject({ code: 'E_CI_DENIED', retry: false, message: expect.stringContaining('403') });
    await expect(refused).rejects.not.toMatchObject({ message: expect.stringContaining(token) });
  });
});

describe('waiting jobs', () => {
  it('are listed page by page, with what their agents must be, and whether the queue is paused', async () => {
    const ids = [1, 2, 3].map((priority) => bk.queueJob({ queue: 'gpu', priority, rules: ['gpu=a100', 'cuda=*'] }));
    const first = await stacks.scheduled(key, 'gpu', { limit: 2, after: null }, never);
    expect(first).toEqual({
      jobs: [ids[0], ids[1]].map((id, n) => ({ id, priority: n + 1, rules: ['queue=gpu', 'gpu=a100', 'cuda=*'] })),
      odd: 0,
      next: expect.any(String),
      paused: false,
      wait: 0,
    });
    bk.pauseQueue('gpu', true);
    const rest = await stacks.scheduled(key, 'gpu', { limit: 2, after: first.next }, never);
    expect(rest).toMatchObject({ jobs: [{ id: ids[2] }], next: null, paused: true });
  });

  it('are ignored if their ids could be something else on a command line, in a path or in a message', async () => {
    const jobs = ['$(touch x)', 'a/../b', '-x', 'a b', 'a\u202eb', '', '0198c0de-1111-7000-8000-000000000001'].map((id) => ({
      id,
    }));
    const answering = createStacks({
      endpoint: bk.endpoint,
      version: '1.0.0',
      clock: systemClock,
      fetch: async () => Response.json({ jobs, reserved: ['$(touch x)'], states: { '$(touch x)': 'scheduled' } }),
      token: async () => token,
    });
    expect(await answering.scheduled(key, 'gpu', { limit: 10, after: null }, never)).toMatchObject({
      jobs: [{ id: jobs[6]?.id }],
      odd: 6,
    });
    await expect(answering.reserve(key, ['j'], 60, never)).rejects.toMatchObject({ code: expect.stringMatching(/^E_CI_/) });
    await expect(answering.states(key, ['j'], never)).rejects.toMatchObject({ code: expect.stringMatching(/^E_CI_/) });
  });

  it('are asked for no sooner than the service wants', async () => {
    const ask = () => stacks.scheduled(key, 'gpu', { limit: 1, after: null }, never);
    expect([(await ask()).wait, (await ask()).wait, (await ask()).wait]).toEqual([0, 0, 1_000]);
    const error: unknown = await ask().catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(LaterError);
    expect(error).toMatchObject({ code: 'E_CI_THROTTLED', retryAfter: 1_000 });
  });
});

describe('a reserved job', () => {
  it('is shown, may be acquired by a token, and ended without an agent', async () => {
    const [id, other] = [bk.queueJob({ queue: 'gpu', env: { A: 'b' } }), bk.queueJob({ queue: 'gpu' })];
    expect(await stacks.token(key, id, 60, never)).toBeNull();
    expect(await stacks.reserve(key, [id, other, 'nonsense'], 60, never)).toEqual(new Set([id, other]));
    expect(await stacks.show(key, id, never)).toMatchObject({ id, env: { A: 'b', BUILDKITE_JOB_ID: id } });
    expect(await stacks.show(key, 'nonsense', never)).toBeNull();
    expect(await stacks.token(key, id, 60, never)).toMatch(/^bkjat_/);
    expect(await stacks.states(key, [id, 'nonsense'], never)).toEqual(new Map([[id, 'reserved']]));
    await stacks.notify(key, [{ job: id, detail: `${'x'.repeat(300)}` }], never);
    expect(bk.job(id).notifications).toEqual([expect.stringMatching(/^x{249}…$/)]);
    expect(await stacks.finish(key, id, 'y'.repeat(5_000), never)).toBe(true);
    expect(bk.job(id)).toMatchObject({ state: 'finished', exit: -1, detail: expect.stringMatching(/^y{3999}…$/) });
    expect(await stacks.finish(key, id, 'again', never)).toBe(false);
  });
});
