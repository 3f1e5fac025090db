import { afterEach, beforeEach, expect, test } from 'vitest';
import { obey, short, told } from './console.ts';
import { handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

let bk: BuildkiteStandin;
beforeEach(async () => {
  bk = await startBuildkite();
});
afterEach(() => bk[Symbol.asyncDispose]());
const say = (line: string) => obey(bk, line);

test('a job typed in is queued as it was said', async () => {
  expect(await say('queue')).toMatch(/^Job \w{8} is queued\.$/);
  await say('queue --queue gpu --rule gpu=a100 --pipeline things --branch work --priority -2 --fork -- echo a -- b');
  const [first, second] = bk.jobs();
  expect(first).toMatchObject({ queue: 'default', command: 'echo hello', state: 'scheduled' });
  expect(second).toMatchObject({ queue: 'gpu', pipeline: 'things', branch: 'work', command: 'echo a -- b' });
  expect(second?.env.BUILDKITE_PULL_REQUEST_REPO).not.toBe(second?.env.BUILDKITE_REPO);
  expect(await say('jobs')).toContain('scheduled  —  gpu  things/work  echo a -- b');
  await say('queue --env FOO=bar --env SECRET_A=x=y;z -- env');
  expect(bk.jobs()[2]).toMatchObject({ command: 'env', env: { FOO: 'bar', SECRET_A: 'x=y;z' } });
  expect(bk.jobs()[2]?.env).not.toHaveProperty('BUILDKITE_SKIP_CHECKOUT');
  expect(await say('queue --env FOO')).toContain('not understood');
  expect(await say('queue --colour blue')).toContain('not understood');
  expect(await say('queue --queue')).toContain('needs a value');
  expect(await say(`cancel ${first?.id.slice(0, 6)}`)).toMatch(/is being cancelled\.$/);
  expect(await say('cancel x')).toBe('Which job? See "jobs".');
});

test('agents and requests are shown, and people can meddle', async () => {
  expect(await say('agents')).toBe('No agent has registered.');
  const agent = await handAgent(bk, 'one', { tags: ['queue=gpu', 'card=a100', 'card=big'] });
  expect(await say('agents')).toMatch(/^one {2}idle {2}— {2}gpu {2}priority 0 {2}0 {2}127\.0\.0\.1 {2}card=a100,card=big$/);
  await say('pause one');
  expect((await agent.ask('GET', 'ping')).json).toMatchObject({ action: 'pause' });
  expect(await say('requests 1')).toBe('200 session      GET    ping one 127.0.0.1');
  await say('lose one');
  expect(bk.agents()).toMatchObject([{ state: 'lost' }]);
  expect(await say('stop two')).toBe('Which agent? See "agents".');
  await say('revoke');
  await expect(handAgent(bk, 'two')).rejects.toThrow('401');
});

test('a fault typed in hits where it says', async () => {
  expect(await say('fault')).toContain('chunk-dropped');
  expect(await say('fault unauthorized POST register 1')).toBe('unauthorized: POST, register, 1 times.');
  expect(await say('fault state-401')).toBe('state-401: GET, jobs/:id, until "fault clear".');
  await expect(handAgent(bk, 'one')).rejects.toThrow(/^401/);
  await handAgent(bk, 'one');
  expect(await say('fault nonsense')).toContain('There are: ');
  expect(await say('fault clear')).toBe('All is well again.');
});

test('what is not understood is answered, not obeyed', async () => {
  expect(await say('sing')).toBe('There is no "sing" here. Type "help".');
  expect(await say('help')).toContain('queue [--queue Q]');
});

test('what happens is told in a line each', async () => {
  const lines: (string | null)[] = [];
  bk.on((event) => lines.push(told(event)));
  const agent = await handAgent(bk, 'one');
  const id = bk.queueJob();
  const job = await agent.accept(id);
  await job.log('hello\r\nyou\r\n', { sequence: 1, offset: 0 });
  await job.finish(2);
  await agent.disconnect();
  expect(lines.filter((line) => line !== null)).toEqual([
    'agent one has registered from 127.0.0.1',
    'agent one is connected',
    `job ${short(id)} is with one`,
    `  ${short(id)} | hello\n  ${short(id)} | you`,
    `job ${short(id)} finished: 2`,
    'agent one has left',
  ]);
});
