/** The scripted agent on a bad day: what the service does to it, and what its job tells it to do wrong. */
import { describe, expect, test } from 'vitest';
import { listening, makeKey, setup } from './testing.ts';

const key = makeKey();

describe('what the service does to it', () => {
  test('the registration is gone: exit 2 while it waits', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    const answer = await fetch(`${at.service.url}/_apis/distributedtask/pools/${at.pool}/agents/${at.agent}?api-version=7.1`, {
      method: 'DELETE',
      headers: { authorization: `Basic ${Buffer.from(`:${at.service.pat}`).toString('base64')}` },
    });
    expect(answer.ok).toBe(true);
    expect(await running.ended).toBe(2);
  });

  test('somebody else has the session: it waits, and then gives up with exit 1', async () => {
    await using at = await setup(key);
    const first = await listening(at);
    const second = at.home.start(['run', '--once']);
    expect(await second.ended).toBe(1);
    expect(second.said()).toContain('A session for this agent already exists.');
    expect(first.child.exitCode).toBeNull();
  });

  test('a clock that differs: it says so, and comes online once the clock is right', async () => {
    await using at = await setup(key);
    at.service.faults.skew = 3_600_000;
    const running = at.home.start(['run', '--once']);
    await running.says('The local clock may be out of sync with the server time.');
    at.service.faults.skew = 0;
    await running.says('Listening for Jobs');
  });

  test('it is down for a while: the agent comes back, and does its job', async () => {
    await using at = await setup(key);
    const running = await listening(at);
    await at.service.faults.down();
    await running.says('Retrying until reconnected.');
    await at.service.faults.up();
    const job = at.service.queue(at.pool);
    expect((await job.finished).result).toBe('succeeded');
    expect(await running.ended).toBe(0);
  });

  test('its session ran out while it was stopped: a new one, unless .agent says no', async () => {
    for (const skipSessionRecover of [false, true]) {
      await using at = await setup(key, { sessionMs: 3_000, pollHoldMs: 100, more: { skipSessionRecover } });
      const running = await listening(at);
      const gone = at.service.next('sessionClosed');
      running.child.kill('SIGSTOP');
      expect((await gone).why).toBe('expired');
      const back = at.service.next('sessionOpened');
      running.child.kill('SIGCONT');
      if (skipSessionRecover) expect(await running.ended).toBe(2);
      else {
        await back;
        const job = at.service.queue(at.pool);
        expect((await job.finished).result).toBe('succeeded');
        expect(await running.ended).toBe(0);
      }
    }
  });

  test('its token is refused once: it signs in again', async () => {
    await using at = await setup(key);
    at.service.faults.add({ kind: 'rejected', shape: '401-json' }, { route: 'sessions', times: 1 });
    await listening(at);
    expect(at.service.log.filter((entry) => entry.route === 'oauth2/token')).toHaveLength(2);
  });

  test('its token was revoked: it leaves without a word, exit 0', async () => {
    await using at = await setup(key);
    const revoked = { kind: 'error', status: 401, typeKey: 'TaskAgentAccessTokenExpiredException' } as const;
    at.service.faults.add(revoked, { route: 'messages' });
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
  });

  test('the end of a job is told again when it was not heard', async () => {
    await using at = await setup(key);
    at.service.faults.add({ kind: 'reset' }, { method: 'POST', route: 'events', times: 2 });
    const job = at.service.queue(at.pool);
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect((await job.finished).result).toBe('succeeded');
  });

  test('a PAT is never shown to any route of an agent', async () => {
    await using at = await setup(key);
    at.service.queue(at.pool);
    await at.home.start(['run', '--once']).ended;
    expect(at.calls()).toEqual(expect.arrayContaining(['POST sessions', 'GET messages']));
    expect(at.service.log.filter((entry) => entry.leaked)).toEqual([]);
  });
});

describe('misbehaves as its job tells it', () => {
  test('an end that nobody knows: the job fails, and its log says why', async () => {
    await using at = await setup(key);
    const job = at.service.queue(at.pool, { script: '# standin-agent: typo' });
    expect(await at.home.start(['run', '--once']).ended).toBe(0);
    expect(await job.finished).toMatchObject({ result: 'failed', log: expect.stringContaining('unknown end: typo') });
  });

  test('crash and vanish: the request stays unfinished', async () => {
    for (const [name, end] of [
      ['crash', 'SIGKILL'],
      ['vanish', 0],
    ] as const) {
      await using at = await setup(key);
      const job = at.service.queue(at.pool, { script: `# standin-agent: ${name}` });
      expect(await at.home.start(['run', '--once']).ended).toBe(end);
      expect(job.view()).toMatchObject({ state: 'running', result: null });
      expect(at.service.agents(at.pool)[0]?.session).not.toBeNull();
    }
  });
});
