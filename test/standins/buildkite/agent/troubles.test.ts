/** The real agent on bad days: it shows what onejob may expect of it, and that the stand-in's faults are felt. */
import { describe, expect, test } from 'vitest';
import { lacks } from '../../../support/require.ts';
import { setup, untilHomeIsGone } from './testing.ts';

describe.skipIf(lacks('buildkiteAgent'))('the real buildkite-agent, in trouble', { timeout: 120_000 }, () => {
  test('is lost with its job when it is killed; the next job goes to another', async () => {
    await using at = await setup({ lostMs: 5_000, heartbeatInterval: 1 });
    const { bk } = at;
    const id = bk.queueJob({ command: untilHomeIsGone });
    const agent = at.start();
    await bk.next('log', ({ text }) => /^ready$/m.test(text));
    await agent.kill();
    expect(await bk.jobEnded(id)).toMatchObject({ state: 'finished', exit: -1, signalReason: 'agent_lost' });
    expect(bk.agents()).toMatchObject([{ state: 'lost' }]);
    const next = bk.queueJob();
    at.start({ name: 'two' });
    expect(await bk.jobEnded(next)).toMatchObject({ exit: 0, agent: { name: 'two' } });
  });

  test('gives up at once with a wrong token', async () => {
    await using at = await setup();
    const ended = await at.start({ token: 'bkct_wrong' }).ended;
    expect(ended.code).toBe(1);
    expect(at.bk.requests).toMatchObject([{ route: 'register', token: 'unknown', status: 401 }]);
  });

  test('loses nothing when answers get lost, chunks come twice and the service fails for a while', async () => {
    await using at = await setup();
    const { faults } = at.bk;
    faults.add({ kind: 'lost' }, { route: 'connect', times: 1 });
    faults.add({ kind: 'lost' }, { route: 'jobs/:id/start', times: 1 });
    faults.add({ kind: 'lost' }, { route: 'jobs/:id/chunks', times: 1 });
    faults.add({ kind: 'doubled' }, { route: 'jobs/:id/chunks', times: 2 });
    faults.add({ kind: 'error', status: 500 }, { route: 'jobs/:id/chunks', times: 1 });
    faults.add({ kind: 'error', status: 503 }, { route: 'jobs/:id/finish', times: 1 });
    faults.add({ kind: 'lost' }, { route: 'jobs/:id/finish', times: 1 });
    const id = at.bk.queueJob({ command: 'seq 1 50000' });
    const agent = at.start();
    const job = await at.bk.jobEnded(id);
    expect(job).toMatchObject({ exit: 0, logMissing: 0, chunksFailed: 0 });
    expect(job.log.match(/^\d+$/gm)?.length).toBe(50_000);
    expect(job.chunks.repeated).toBeGreaterThan(0);
    expect((await agent.ended).code).toBe(0);
    expect(at.bk.requests.filter(({ route }) => route === 'jobs/:id/finish').map(({ status }) => status)).toEqual([503, 0, 422]);
  });

  test('drops a job whose accept is refused, and takes the next', async () => {
    await using at = await setup();
    at.bk.faults.add({ kind: 'error', status: 422 }, { route: 'jobs/:id/accept', times: 1 });
    const id = at.bk.queueJob();
    at.start();
    expect(await at.bk.jobEnded(id)).toMatchObject({ exit: 0 });
    expect(at.bk.requests.filter(({ route }) => route === 'jobs/:id/accept').map(({ status }) => status)).toEqual([422, 200]);
  });

  test('cancels a job whose token has died under it', async () => {
    await using at = await setup();
    const id = at.bk.queueJob({ command: untilHomeIsGone });
    at.start();
    await at.bk.next('log', ({ text }) => /^ready$/m.test(text));
    at.bk.faults.add({ kind: 'error', status: 401 }, { method: 'GET', route: 'jobs/:id' });
    const job = await at.bk.jobEnded(id);
    expect(job).toMatchObject({ state: 'finished', signal: 'SIGTERM' });
    expect(job.exit).not.toBe(0);
  });

  test('waits while it is paused, and leaves when it is told to', async () => {
    await using at = await setup();
    const agent = at.start({ flags: ['--ping-mode', 'poll-only'] });
    await at.bk.next('agentConnected');
    at.bk.pauseAgent('one', 'for lunch');
    await agent.says(/for lunch/);
    const id = at.bk.queueJob();
    expect(at.bk.job(id).state).toBe('scheduled');
    at.bk.resumeAgent('one');
    await at.bk.jobEnded(id);
    expect(agent.stdout + agent.stderr).toContain('resumed after being paused');
    at.bk.stopAgent('one');
    expect((await agent.ended).code).toBe(0);
    expect(at.bk.agents()).toMatchObject([{ state: 'disconnected' }]);
  });

  test('ends with 1 when a ping is refused for good', async () => {
    await using at = await setup();
    at.bk.faults.add({ kind: 'error', status: 401 }, { route: 'ping', after: 1 });
    const agent = at.start();
    expect((await agent.ended).code).toBe(1);
  });

  test('falls back to polling where there is no stream', async () => {
    await using at = await setup();
    const id = at.bk.queueJob();
    const agent = at.start({ flags: ['--disconnect-after-job'] });
    expect(await at.bk.jobEnded(id)).toMatchObject({ exit: 0 });
    expect((await agent.ended).code).toBe(0);
    expect(at.bk.requests.filter(({ route }) => route === '?').map(({ status }) => status)).toEqual([404]);
  });

  test('does thirty jobs by agents of one job each, through random faults, and nothing is lost or left', async () => {
    await using at = await setup({ lostMs: 15_000 });
    const { bk } = at;
    // Not on accept and finish answers of which the agent never learns: those jobs are lost to it.
    const faults = [
      { fault: { kind: 'error', status: 500 }, route: '*' },
      { fault: { kind: 'reset' }, route: 'jobs/:id/chunks' },
      { fault: { kind: 'lost' }, route: 'jobs/:id/chunks' },
      { fault: { kind: 'doubled' }, route: 'jobs/:id/chunks' },
    ] as const;
    for (const { fault, route } of faults) bk.faults.add(fault, { route, chance: 0.03, after: 4 });
    const ids = Array.from({ length: 30 }, (_, i) => bk.queueJob({ command: `seq 1 500; echo "this is ${i}"; exit ${i % 3}` }));
    let next = 0;
    const slot = async (): Promise<void> => {
      while (bk.census().jobs.length > 0) await at.start({ name: `slot-${next++}` }).ended;
    };
    const slots = [slot(), slot(), slot()];
    const jobs = await Promise.all(ids.map((id) => bk.jobEnded(id)));
    for (const [i, job] of jobs.entries()) {
      expect(job).toMatchObject({ exit: i % 3, logMissing: 0 });
      expect(job.log).toContain(`this is ${i}\n`);
      expect(job.log.match(/^\d+$/gm)?.length).toBe(500);
    }
    bk.faults.clear();
    // Those that wait for a job that will not come.
    bk.faults.pingAction = 'disconnect';
    await Promise.all(slots);
    expect(bk.census()).toEqual({ agents: [], jobs: [] });
    expect(bk.requests.some(({ leaked }) => leaked)).toBe(false);
  });
});
