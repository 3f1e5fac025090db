/** The broker's process against the stand-in, with a manager that decides at once: through faults and kills no job stays open. */
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { BrokerAgent, Offer } from '../../src/ci/buildkite/broker/protocol.ts';
import { slotOffer } from '../../src/ci/buildkite/broker/testing.ts';
import { joinBroker, type Manager } from '../../src/ci/buildkite/broker/testing-http.ts';
import { startRealAgent } from '../standins/buildkite/agent/testing.ts';
import { type BuildkiteStandin, startBuildkite } from '../standins/buildkite/standin.ts';
import { type Child, startChild } from '../support/child.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

interface Stage {
  readonly bk: BuildkiteStandin;
  readonly dir: string;
  /** Kills the broker, if there is one, and starts another with a manager. */
  restart(): Promise<void>;
  /** SIGTERM; resolves with its exit code. */
  stop(): Promise<number | null>;
}

/** @param decide called with each agent that has changed, as its manager hears it */
async function stage(
  slots: number,
  decide: (agent: BrokerAgent, manager: Manager, stage: Stage) => Promise<unknown> | undefined,
): Promise<Stage> {
  const folder = scratch();
  cleanups.push(() => folder[Symbol.dispose]());
  const bk = await startBuildkite();
  cleanups.push(() => bk[Symbol.asyncDispose]());
  const stateDir = join(folder.path, 'state');
  const socket = join(stateDir, 'broker', 'broker.sock');
  let child: Child | null = null;
  cleanups.push(() => child?.kill());

  const tell = (manager: Manager): Promise<unknown> => {
    const offers = Array.from({ length: slots }, (_, index): Offer => {
      return { ...slotOffer, slot: `gpu/${index}`, name: `host-gpu-${index}`, metaData: ['queue=default'] };
    });
    return manager.post('/v1/offers', {
      services: [{ name: 'bk', endpoint: bk.endpoint, token: bk.token }],
      offers,
      complete: true,
    });
  };
  const self: Stage = {
    bk,
    dir: folder.path,
    async restart() {
      await child?.kill();
      child = startChild(program, ['broker', '--state-dir', stateDir, '--socket', socket], {
        cwd: folder.path,
        env: { PATH: process.env.PATH },
      });
      await child.says(/broker listens/);
      const manager = await joinBroker(socket);
      cleanups.push(() => manager.close());
      const hear = (agent: BrokerAgent): void => void decide(agent, manager, self)?.catch(() => {});
      let done = 0;
      // Looks at every event once, and never finds what it looks for.
      void manager
        .until(() => {
          for (const event of manager.events.slice(done)) {
            if (event.kind === 'agent') hear(event.agent);
            if (event.kind === 'state') event.agents.forEach(hear);
          }
          done = manager.events.length;
          return false;
        })
        .catch(() => {});
      await tell(manager);
    },
    async stop() {
      child?.signal('SIGTERM');
      return (await child?.ended)?.code ?? null;
    },
  };
  await self.restart();
  return self;
}

const refuse = (agent: BrokerAgent, manager: Manager): Promise<unknown> | undefined =>
  agent.phase === 'accepted'
    ? manager.post(`/v1/agents/${agent.id}/refuse`, { reason: 'Forks are refused.', signalReason: 'agent_refused' })
    : undefined;

describe('refused jobs', () => {
  it('each show the reason, and leave nobody behind', async () => {
    const { bk, stop } = await stage(2, refuse);
    const jobs = await Promise.all(Array.from({ length: 4 }, () => bk.jobEnded(bk.queueJob())));
    for (const job of jobs) {
      expect(job).toMatchObject({ state: 'finished', exit: -1, signalReason: 'agent_refused', log: 'Forks are refused.\n' });
    }
    expect(await stop()).toBe(0);
    expect(bk.census()).toEqual({ agents: [], jobs: [] });
    expect(bk.requests.filter(({ leaked }) => leaked)).toEqual([]);
  });

  it.each(['error', 'reset', 'lost', 'doubled', 'half', 'garbage', 'dropped'] as const)(
    'come to an end while answers are: %s',
    { timeout: 60_000 },
    async (kind) => {
      const { bk, restart, stop } = await stage(2, refuse);
      const fault = kind === 'error' ? ({ kind, status: 500 } as const) : { kind };
      // Half an answer is waited for as long as the agent would, a minute: once is enough.
      if (kind === 'half') bk.faults.add(fault, { route: 'jobs/:id/start', times: 1 });
      else {
        const routes = ['register', 'ping', 'jobs/:id/accept', 'jobs/:id/start', 'jobs/:id/chunks', 'jobs/:id/finish'];
        // An agent that is told that it has connected, and has not, cannot know it.
        const more = kind === 'dropped' ? [] : ['connect', 'disconnect'];
        for (const route of [...routes, ...more]) bk.faults.add(fault, { route, times: 1 });
      }
      const ids = Array.from({ length: 3 }, () => bk.queueJob());
      const ended = Promise.all(ids.map((id) => bk.jobEnded(id)));
      if (kind === 'half') {
        await bk.next('jobStarted');
        await restart();
      }
      for (const job of await ended) expect(job.exit).toBe(-1);
      bk.faults.clear();
      expect(await stop()).toBe(0);
      expect(bk.census().jobs).toEqual([]);
      // One whose registration was done and not answered is known to nobody, and has never been connected.
      expect(bk.agents().filter(({ state }) => state === 'idle' || state === 'busy')).toEqual([]);
    },
  );

  it('come to an end while the broker is killed again and again', { timeout: 60_000 }, async () => {
    const { bk, restart, stop } = await stage(2, refuse);
    const ids = Array.from({ length: 6 }, () => bk.queueJob());
    const ended = Promise.all(ids.map((id) => bk.jobEnded(id)));
    for (const kind of ['jobAccepted', 'jobStarted', 'jobAccepted'] as const) {
      await bk.next(kind);
      await restart();
    }
    for (const job of await ended) expect(job.exit).toBe(-1);
    expect(await stop()).toBe(0);
    // One whose registration was answered as the broker was killed is known to nobody, and never connected.
    expect(bk.agents().filter(({ gone, connected }) => gone === null && connected !== null)).toEqual([]);
    expect(bk.census().jobs).toEqual([]);
  });
});

describe.skipIf(lacks('buildkiteAgent'))('the real agent', () => {
  it('runs what it is handed, also when the broker is killed in between', { timeout: 90_000 }, async () => {
    const running = new Set<string>();
    const { bk, restart, stop } = await stage(1, (agent, manager, { dir }) => {
      const { id, phase } = agent;
      if (phase !== 'accepted' || running.has(id)) return;
      running.add(id);
      return manager
        .post(`/v1/agents/${id}/hand`, { agent: `a${running.size}`, trusted: true, secrets: [] })
        .then(async ({ body }) => {
          const [state] = manager.events;
          const port = state?.kind === 'state' ? state.port : 0;
          const { token } = body as { token: string };
          const endpoint = `http://127.0.0.1:${port}/v3`;
          const child = startRealAgent(bk, dir, { name: agent.name, token, endpoint });
          cleanups.push(() => child.kill());
          await child.ended;
        });
    });
    const first = await bk.jobEnded(bk.queueJob({ command: 'echo one' }));
    expect(first).toMatchObject({ exit: 0, log: expect.stringContaining('one') });
    const id = bk.queueJob({ command: 'for i in 1 2 3 4 5; do echo line $i; sleep 1; done' });
    await bk.next('jobStarted', ({ job }) => job.id === id);
    await restart();
    const second = await bk.jobEnded(id);
    expect(second).toMatchObject({ exit: 0, logMissing: 0, log: expect.stringMatching(/line 1[\s\S]*line 5/) });
    expect(await stop()).toBe(0);
    expect(bk.census()).toEqual({ agents: [], jobs: [] });
  });
});
