/** A machine that cannot call its controller, and that controller: both for real in virtual time, with a cloud in memory between them. */
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { memoryHandler } from '../../../test/kit/machine-handler.ts';
import { CloudError } from '../../ports/cloud.ts';
import type { Machine } from '../../store/machine.ts';
import { lineOf } from './line.ts';
import { parseMail } from './mail.ts';
import { createMailClient } from './mail-client.ts';
import { Post } from './post.ts';
import { hashOf, type JoinAnswer, newSecret } from './protocol.ts';

const run = 'onejob-0123456789abcdef';
const never = new AbortController().signal;
const [second, minute] = [1_000, 60_000];
const answer: JoinAnswer = {
  config: 'pools: { gpu: {} }\n',
  files: [{ path: '/run/onejob-cloud/secrets/hub', mode: '0600', content: Buffer.from('the-secret').toString('base64') }],
  beat: 15,
};
const idle = { busy: 0, agents: 1, waiting: null, idleFor: 0, problem: null };

// It is loaded when it is first used, which no clock here knows of.
beforeAll(() => import('age-encryption').then(() => {}));

/** Operations with keys that have not ended: they happen in threads, in real time. */
let pending = 0;
beforeEach(() => {
  for (const name of ['generateKey', 'importKey', 'exportKey', 'deriveBits'] as const) {
    const real = crypto.subtle[name].bind(crypto.subtle) as (...given: unknown[]) => Promise<never>;
    vi.spyOn(crypto.subtle, name).mockImplementation(async (...given: unknown[]) => {
      pending += 1;
      try {
        return await real(...given);
      } finally {
        pending -= 1;
      }
    });
  }
});
const endings: (() => void)[] = [];
afterEach(() => {
  for (const end of endings.splice(0)) end();
  vi.restoreAllMocks();
});

/** `lag`: ms until the account sees what is on the console. */
function world({ state = 'booting', lag = 0 }: { state?: Machine['state']; lag?: number } = {}) {
  const clock = handClock();
  const handler = memoryHandler(() => {
    if (/^(failed|drained)$/.test(handler.stages.at(-1)?.stage ?? '')) row.state = 'ending';
  });
  const token = handler.expect(run, answer);
  const entry: { [K in keyof Machine]?: unknown } = {
    run,
    state,
    why: null,
    joinedAt: null,
    tokenHash: hashOf(token),
    cloud: 'lab',
  };
  const row = { ...entry, made: { id: 'i-1', place: 'here', zone: null } } as { -readonly [K in keyof Machine]: Machine[K] };
  const cloud = { console: '', mail: '', reads: 0, isDeaf: false, mails: [] as string[], refuses: null as Error | null };
  const warned: string[] = [];
  const start = () => {
    const post = new Post({
      clock,
      handler: handler.handler,
      machines: () => [row],
      log: { warn: (event, fields) => void warned.push(`${event} ${JSON.stringify(fields)}`) },
      cloudOf: () => ({
        async console() {
          cloud.reads += 1;
          if (cloud.isDeaf) throw new CloudError('E_CLOUD_DENIED', 'Cannot read the console.');
          return cloud.console;
        },
        async deliver(_, text) {
          if (cloud.refuses !== null) throw cloud.refuses;
          cloud.mail = text;
          cloud.mails.push(text);
        },
      }),
    });
    post.start();
    endings.push(() => post.close());
    return post;
  };
  const write = (line: string): void => {
    clock.after(lag, () => {
      cloud.console += `${line}\r\n`;
    });
  };
  const client = createMailClient({ machine: { run, token }, write, clock, mail: async () => parseMail(cloud.mail) });
  return {
    ...handler,
    clock,
    row,
    cloud,
    warned,
    start,
    client,
    write,
    token,
    /** ms pass, and whatever happens in them. */
    async pass(ms: number): Promise<void> {
      const until = clock.now() + ms;
      const calm = async () => {
        for (let quiet = 0; quiet < 20; quiet = pending > 0 ? 0 : quiet + 1) await turn();
      };
      await calm();
      for (let next = clock.next(); next !== null && clock.now() + next <= until; next = clock.next()) {
        clock.advance(next);
        await calm();
      }
      clock.advance(until - clock.now());
      await calm();
    },
    join: (credential = newSecret()) => client.join({ token, credential, version: '1' }, never),
  };
}

describe('through the cloud', () => {
  it.each([0, 3 * minute])('a machine tells its stages and gets its config, with a console that is %i ms late', async (lag) => {
    const { pass, start, client, join, stages, cloud, beats, row, thefts } = world({ lag });
    start();
    await client.stage('booted', '6.8.0', '', never);
    const [credential, tries] = [newSecret(), { count: 0 }];
    let got: JoinAnswer | null = null;
    const persist = async () => {
      while (got === null) {
        tries.count += 1;
        got = await join(credential).catch(() => null);
      }
    };
    void persist();
    await pass(lag + 30 * second);
    expect(got).toEqual(answer);
    await client.stage('joined', '', '', never);
    await pass(lag + 15 * second);
    expect(stages.map(({ stage, text }) => [stage, text])).toEqual([
      ['booted', '6.8.0'],
      ['joined', ''],
    ]);
    // Neither the account nor the console ever has the secret, and the box goes once it was taken.
    expect(cloud.console + cloud.mails.join()).not.toMatch(/the-secret|dGhlLXNlY3JldA/);
    row.state = 'joined';
    row.joinedAt = 1;
    await pass(minute);
    expect(cloud.mail).toMatch(/^stay \d+ -$/);
    expect(await client.beat({ ...idle, busy: 1, problem: 'p'.repeat(5_000) }, '', never)).toBe('stay');
    await pass(lag + minute);
    expect(beats[0]).toMatchObject({ run, busy: 1, agents: 1, problem: 'p'.repeat(300) });
    expect(thefts).toEqual([]);
    row.state = 'draining';
    await pass(15 * second);
    expect(await client.beat(idle, '', never)).toBe('drain');
    await client.stage('drained', '', '', never);
    await pass(lag + 15 * second);
    expect(stages.at(-1)).toMatchObject({ stage: 'drained' });
  });

  it('another key on the same console gets nothing, and is told as a theft', async () => {
    const { pass, start, join, cloud, thefts } = world();
    start();
    const first = join();
    // Its line is on the console before the other one's.
    await pass(0);
    const second_ = join().catch((error: unknown) => error);
    await pass(2 * minute);
    expect(await first).toEqual(answer);
    expect(await second_).toMatchObject({ code: 'E_CLOUD_UNREACHABLE', retry: true });
    expect(thefts).toEqual([{ run, from: 'its console' }]);
    expect(new Set(cloud.mails.map((mail) => mail.length)).size).toBe(1);
  });

  it('a controller that starts again reads the whole console, and sends the config again', async () => {
    const one = world();
    one.start().close();
    const joining = one.join();
    one.cloud.refuses = new CloudError('E_CLOUD_UNREACHABLE', 'No answer.', { retry: true });
    const first = one.start();
    await one.pass(20 * second);
    first.close();
    one.cloud.refuses = null;
    one.start();
    await one.pass(20 * second);
    expect(await joining).toEqual(answer);
    expect(one.warned).toEqual([
      'cannot communicate with a machine through its cloud {"machine":"onejob-0123456789abcdef","reason":"No answer."}',
    ]);
  });

  it('a machine whose config the cloud refuses is given up with the reason', async () => {
    const { pass, start, join, cloud, stages } = world();
    start();
    join().catch(() => {});
    cloud.refuses = new CloudError('E_CLOUD_DENIED', 'Cannot send mail: not authorized to perform ec2:CreateTags.');
    await pass(minute);
    expect(stages).toEqual([{ run, stage: 'failed', text: 'Cannot send mail: not authorized to perform ec2:CreateTags.' }]);
  });

  it('a machine that drains and has never worked is done after three visits; one that works is told', async () => {
    const silent = world({ state: 'draining' });
    silent.write(lineOf(run, 'booted', ''));
    silent.start();
    await silent.pass(35 * second);
    expect(silent.stages.map(({ stage }) => stage)).toEqual(['booted', 'drained']);
    const works = world({ state: 'draining' });
    works.write(lineOf(run, 'join', JSON.stringify({ recipient: `age1${'q'.repeat(58)}`, version: '1' })));
    works.write(lineOf(run, 'joined', ''));
    works.start();
    await works.pass(5 * minute);
    expect(works.stages.map(({ stage }) => stage)).toEqual(['joined']);
    expect(works.cloud.mails).toEqual([expect.stringMatching(/^drain \d+ -$/)]);
  });

  it('a machine is visited each 10 s while it boots and each 50 s while it works, and hears each 10 minutes', async () => {
    const { pass, start, cloud, row } = world();
    start();
    await pass(59 * second);
    expect(cloud.reads).toBe(6);
    row.state = 'joined';
    row.joinedAt = 1;
    await pass(30 * minute);
    expect(cloud.reads).toBeLessThanOrEqual(6 + 37);
    expect(cloud.mails.length).toBe(3);
    row.state = 'gone';
    const before = cloud.reads;
    await pass(10 * minute);
    expect(cloud.reads).toBe(before);
  });

  it('the newest beat holds until the next one is due, and no longer', async () => {
    const { pass, start, write, beats, row } = world({ state: 'joined' });
    row.joinedAt = 1;
    write(lineOf(run, 'beat', JSON.stringify({ at: 1, ...idle, idleFor: 1_000 })));
    start();
    await pass(10 * minute);
    expect(beats.map(({ idleFor }) => idleFor)).toEqual([1_000, 51_000, 101_000, 151_000]);
    write(lineOf(run, 'beat', JSON.stringify({ at: 2, ...idle, busy: 1 })));
    await pass(100 * second);
    expect(beats.slice(4).map(({ busy, idleFor }) => [busy, idleFor])).toEqual([
      [1, 0],
      [1, 0],
    ]);
  });

  it('a machine that works and whose console cannot be read is neither silent nor idle', async () => {
    const { pass, start, write, beats, unheard, row, cloud, warned } = world({ state: 'joined' });
    row.joinedAt = 1;
    write(lineOf(run, 'beat', JSON.stringify({ at: 1, ...idle, busy: 1 })));
    await pass(0);
    start();
    await pass(second);
    cloud.isDeaf = true;
    await pass(3 * minute);
    expect(beats.map((beat) => [beat.busy, beat.problem])).toEqual([[1, null]]);
    expect(unheard).toEqual(Array(3).fill([run, 'its console cannot be read: Cannot read the console.']));
    expect(warned).toHaveLength(1);
  });

  it('a machine tells at most one beat a minute unless its work changes, and misses a controller that writes no more', async () => {
    const { pass, client, cloud, clock } = world();
    cloud.mail = 'stay 1 -';
    for (let beats = 0; beats < 40; beats++) {
      await client.beat(idle, '', never);
      await pass(15 * second);
    }
    expect(cloud.console.match(/ beat /g)).toHaveLength(10);
    await client.beat({ ...idle, busy: 1 }, '', never);
    await pass(0);
    expect(cloud.console.match(/ beat /g)).toHaveLength(11);
    clock.advance(20 * minute);
    await expect(client.beat(idle, '', never)).rejects.toMatchObject({ code: 'E_CLOUD_UNREACHABLE', retry: true });
    cloud.mail = 'drain 2 -';
    expect(await client.beat(idle, '', never)).toBe('drain');
  });

  it('what is wrong on a console changes nothing', async () => {
    const { pass, start, write, stages, beats, thefts, cloud } = world();
    for (const [word, text] of [
      ['join', 'not JSON'],
      ['join', JSON.stringify({ recipient: 'age1pq1abc', version: '1' })],
      ['beat', '[]'],
      ['beat', JSON.stringify({ busy: -1 })],
    ] as const)
      write(lineOf(run, word, text));
    write(`onejob: ${run} joined  0123456789abcdef`);
    start();
    await pass(minute);
    expect([stages, beats, thefts, cloud.mails]).toEqual([[], [], [], []]);
  });
});
