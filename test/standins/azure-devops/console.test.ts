import { afterEach, beforeEach, expect, test } from 'vitest';
import { obey, told } from './console.ts';
import { newKey, registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

let azure: AzureDevOps;
let pool: number;
beforeEach(async () => {
  azure = await startAzureDevOps({ pollHoldMs: 20 });
  pool = azure.addPool('gpu');
});
afterEach(() => azure[Symbol.asyncDispose]());
const say = (line: string) => obey(azure, pool, line);

test('a job typed in is queued with its demands and its script, or fails with the reason', async () => {
  expect(await say('queue')).toMatch(/^Job \d+ failed at once: No agents were found/);
  const agent = await registerByHand(azure, pool, 'one', { capabilities: { cuda: '12', 'gpu.model': 'A 100' } });
  expect(await say('queue cuda, gpu.model -equals A 100 -- echo a -- b')).toMatch(/^Job \d+ is queued\.$/);
  await agent.open({ cuda: '12', 'gpu.model': 'A 100' });
  expect((await agent.take()).script).toBe('echo a -- b');
  expect(await say('requests')).toContain('one  (cuda, gpu.model -equals A 100)');
  expect(await say('agents')).toMatch(/one {2}job \d+ {2}5\.278\.0/);
});

test('a fault typed in hits where it says', async () => {
  expect(await say('fault')).toContain('rejected-203');
  expect(await say('fault name-taken 1')).toBe('name-taken: POST, agents, 1 times.');
  await expect(registerByHand(azure, pool, 'one')).rejects.toThrow(/^409/);
  await registerByHand(azure, pool, 'one');
  expect(await say('fault nonsense')).toContain('There are: ');
});

test('what is not understood is answered, not obeyed', async () => {
  expect(await say('sing')).toBe('There is no "sing" here. Type "help".');
  expect(await say('cancel 99')).toBe('There is no such job. See "requests".');
});

test('the service goes down and comes back as told', async () => {
  expect(await say('down')).toContain('Nobody answers');
  await expect(fetch(azure.url)).rejects.toThrow();
  await say('up');
  expect((await fetch(azure.url)).status).toBe(404);
});

test('what happens is told in a line each', async () => {
  const lines: (string | null)[] = [];
  azure.on((event) => lines.push(told(event)));
  const agent = await registerByHand(azure, pool, 'one', { key: newKey() });
  await agent.open();
  const { requestId } = azure.queue(pool);
  const job = await agent.take();
  await agent.feed(job, ['hello']);
  await agent.complete(job);
  await agent.close();
  expect(lines.filter((line) => line !== null)).toEqual([
    'agent one is registered',
    'agent one is online',
    `job ${requestId} goes to one`,
    `  ${requestId} | hello`,
    `job ${requestId} ended: succeeded`,
    'agent one is offline (left)',
  ]);
});
