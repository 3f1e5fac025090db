/** Whatever agents, people and time do in whatever order: no job is lost, none is with two agents, none is accepted twice. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type HandAgent, type HandJob, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

const step = fc.oneof(
  fc.record({ do: fc.constant('register' as const), gpu: fc.boolean(), priority: fc.option(fc.integer({ min: -2, max: 2 })) }),
  fc.record({
    do: fc.constant('queue' as const),
    gpu: fc.boolean(),
    priority: fc.integer({ min: -1, max: 1 }),
    waiting: fc.boolean(),
  }),
  fc.record({
    do: fc.constantFrom('ping' as const, 'accept' as const, 'start' as const, 'finish' as const, 'leave' as const, 'lose' as const),
    who: fc.nat(),
    last: fc.boolean(),
  }),
  fc.record({ do: fc.constantFrom('cancel' as const, 'release' as const), which: fc.nat() }),
  fc.record({ do: fc.constant('wait' as const), ms: fc.constantFrom(1_000, 200_000) }),
);
type Step = typeof step extends fc.Arbitrary<infer S> ? S : never;

test('no job is lost, doubled or shared', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
      let now = 0;
      await using bk = await startBuildkite({ now: () => now });
      const accepted = new Map<string, number>();
      bk.on((event) => {
        if (event.kind === 'jobAccepted') accepted.set(event.job.id, (accepted.get(event.job.id) ?? 0) + 1);
      });
      const agents: { readonly agent: HandAgent; job: HandJob | null }[] = [];
      for (const each of steps) {
        if (each.do === 'wait') now += each.ms;
        else await act(bk, agents, each);
        bk.sweep();
        hold(bk);
      }
      await drain(bk);
      expect(bk.census().jobs).toEqual([]);
      expect([...accepted.values()].filter((times) => times > 1)).toEqual([]);
    }),
    { numRuns: 40 },
  );
}, 120_000);

async function act(bk: BuildkiteStandin, agents: { readonly agent: HandAgent; job: HandJob | null }[], s: Step): Promise<void> {
  if (s.do === 'register') {
    const tags = s.gpu ? ['queue=gpu'] : [];
    const agent = await handAgent(bk, `a${agents.length}`, { tags, ...(s.priority === null ? {} : { priority: s.priority }) });
    agents.push({ agent, job: null });
    return;
  }
  if (s.do === 'queue') {
    bk.queueJob({ queue: s.gpu ? 'gpu' : 'default', priority: s.priority, waiting: s.waiting });
    return;
  }
  if ('which' in s) {
    const jobs = bk.jobs();
    const job = jobs[s.which % Math.max(1, jobs.length)];
    if (job !== undefined) bk[s.do](job.id);
    return;
  }
  const one = 'who' in s ? agents[s.who % Math.max(1, agents.length)] : undefined;
  if (one === undefined || !('who' in s)) return;
  const state = bk.agents().find(({ name }) => name === one.agent.name)?.state;
  const here = state === 'idle' || state === 'busy';
  if (s.do === 'lose') bk.loseAgent(one.agent.name);
  // What an agent that is gone says is refused, and must change nothing.
  else if (s.do === 'leave') expect((await one.agent.disconnect()).status).toBe(here ? 200 : 401);
  else if (s.do === 'ping') expect((await one.agent.ask('GET', 'ping')).status).toBe(here ? 200 : 401);
  else if (s.do === 'accept') {
    const offered = bk.jobs().find(({ state: at, agent }) => at === 'assigned' && agent?.name === one.agent.name);
    if (offered !== undefined) one.job = await one.agent.accept(offered.id);
  } else if (s.do === 'start') await one.job?.start();
  else await one.job?.finish(0, { ignore_agent_in_dispatches: s.last });
}

/** What must be so after every step. */
function hold(bk: BuildkiteStandin): void {
  const agents = bk.agents();
  for (const job of bk.jobs()) {
    const holders = agents.filter((agent) => agent.job === job.id);
    const held = ['assigned', 'accepted', 'running', 'canceling'].includes(job.state);
    expect(holders.map(({ name }) => name)).toEqual(held ? [job.agent?.name] : []);
    expect(holders.every(({ state, queue }) => state === 'busy' && queue === job.queue)).toBe(true);
    expect(job.exit === null).toBe(job.state !== 'finished' && job.state !== 'canceled');
  }
  const idle = agents.filter(({ state, ignored }) => state === 'idle' && !ignored).map(({ queue }) => queue);
  const waiting = bk.jobs().filter(({ state }) => state === 'scheduled');
  expect(waiting.filter(({ queue }) => idle.includes(queue))).toEqual([]);
}

/** Everybody leaves, and two who stay do what is left. */
async function drain(bk: BuildkiteStandin): Promise<void> {
  for (const { name, state } of bk.agents()) if (state === 'idle' || state === 'busy') bk.loseAgent(name);
  for (const { id, state } of bk.jobs()) if (state === 'waiting') bk.release(id);
  for (const tags of [['queue=gpu'], []]) {
    const last = await handAgent(bk, `last${tags.length}`, { tags });
    for (let id = await last.ping(); id !== null; id = await last.ping()) await (await last.accept(id)).finish();
  }
}
