/** Agents that take their jobs themselves, by what they say. */
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { keptLog, testConfig, testPool } from '../../../../test/kit/buildkite-manager.ts';
import { ciServiceContract } from '../../../../test/kit/ci-contract.ts';
import { type HandClock, handClock } from '../../../../test/kit/core.ts';
import { type Scratch, scratch } from '../../../../test/support/scratch.ts';
import { OnejobError } from '../../../base/errors.ts';
import type { AgentId } from '../../../core/slot.ts';
import type { AgentContext, AgentFiles, CiEvent, CiService } from '../../../ports/ci-service.ts';
import { openStore, type Store } from '../../../store/store.ts';
import { createJobRows } from '../jobs/job-rows.ts';
import { createInAgent } from './in-agent.ts';

const never = new AbortController().signal;
const nothing = () => Promise.reject(new Error('nothing to read'));
const unread: AgentFiles = { all: nothing, folder: nothing };

function bench() {
  const clock: HandClock = handClock();
  const dir: Scratch = scratch();
  const store: Store = openStore(join(dir.path, 'state'));
  const log = keptLog();
  const events: CiEvent[] = [];
  const stop = new AbortController();
  const it = { token: 'agent-token' as string | OnejobError, silent: new Map<AgentId, number>() };
  const service = createInAgent({
    config: testConfig({ registration: 'in-agent' }),
    pools: [testPool({ timeout: 60_000 })],
    clock,
    log,
    rows: createJobRows('bk', { store, clock, log }),
    async token() {
      if (it.token instanceof OnejobError) throw it.token;
      return it.token;
    },
    program: { folder: '/tools/at-1', ready: async () => null },
    counts: { waiting: (queue) => (queue === 'default' ? 3 : null), unserved: () => new Map(), follow: async () => {} },
    check: async () => [],
    slots: { poolOf: () => 'ci', silentFor: (agent) => it.silent.get(agent) ?? null },
  });
  const context = (agent: AgentId): AgentContext => ({
    agent,
    pool: 'ci',
    slot: 'ci/1',
    name: 'box-ci-1',
    workspace: '/workspace',
    job: null,
    devices: [],
    cuda: null,
    ask: () => Promise.reject(new Error('nobody asks')),
    isRemote: false,
    hostAddress: async () => '172.18.0.1',
  });
  const heard = new Map<AgentId, (line: string) => void>();
  return {
    it,
    clock,
    store,
    log,
    events,
    service,
    context,
    watch: () => service.observe((event) => events.push(event), stop.signal),
    say(agent: AgentId, ...lines: readonly string[]) {
      const tell = heard.get(agent) ?? service.listen?.(agent) ?? (() => {});
      heard.set(agent, tell);
      for (const line of lines) tell(`2026-11-23 23:19:35 INFO   box-ci-1 ${line}`);
    },
    async turns() {
      for (let n = 0; n < 4; n++) await new Promise<void>((resolve) => setImmediate(resolve));
    },
    async close() {
      stop.abort();
      await service.close?.(true);
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

const online = 'Waiting for instructions...';
const assigned = (job: string) => `Assigned job ${job}. Accepting...`;
const began = (job: string) => `Starting job at https://buildkite.com/acme/demo/builds/7#${job}`;
const exited = (code: number) => `Process with PID: 7 finished with Exit Status: ${code}, Signal: nil`;
const finished = (job: string) => `Finished job at https://buildkite.com/acme/demo/builds/7#${job}`;

ciServiceContract(
  'buildkite, with registration in the agent',
  async () => {
    const one = bench();
    return {
      service: one.service as CiService,
      pool: 'ci',
      commit: (write: () => void) => write(),
      close: one.close,
      async enqueue() {
        one.say('a1', online, assigned('job-1'), began('job-1'));
        return 'job-1';
      },
    };
  },
  'early',
);

describe('agents that take their jobs themselves', () => {
  let one: ReturnType<typeof bench>;
  beforeEach(() => {
    one = bench();
  });
  afterEach(() => one.close());

  it('have the token in their script alone, are told apart by no name, and end after one job', async () => {
    const { id, script, files } = await one.service.register(one.context('a1'), never);
    expect({ id, files }).toEqual({ id: null, files: null });
    for (const line of [
      "export BUILDKITE_AGENT_TOKEN='agent-token'",
      "export BUILDKITE_AGENT_NAME='box-ci-1'",
      "export BUILDKITE_AGENT_TAGS='queue=default,cuda=12,cuda=13'",
      "export BUILDKITE_AGENT_DISCONNECT_AFTER_JOB='true'",
    ]) {
      expect(script).toContain(`\n${line}\n`);
    }
    expect(script).not.toMatch(/export BUILDKITE_AGENT_ACQUIRE_JOB/);
    expect(script.split('\n').at(-1)).toBe('exec buildkite-agent start');
    expect(script.split('\n').at(-1)).not.toContain('agent-token');
  });

  it('are online, and have a job, by their own word', async () => {
    one.watch();
    one.events.length = 0;
    one.say('a1', online);
    expect(one.events).toEqual([{ kind: 'online', agent: 'a1' }]);
    one.say('a1', assigned('job-1'));
    expect(one.events).toHaveLength(1);
    one.say('a1', began('job-1'));
    expect(one.events[1]).toEqual({ kind: 'jobSeen', agent: 'a1', job: 'job-1' });
    expect(one.service.serviceJobs?.()).toMatchObject([
      {
        id: 'job-1',
        agent: 'a1',
        pool: 'ci',
        state: 'running',
        title: 'demo #7 job job-1',
        definition: 'demo',
        build: '7',
        link: 'https://buildkite.com/acme/demo/builds/7#job-1',
      },
    ]);
    expect(one.service.waiting?.('ci')).toBe(3);
  });

  it.each([
    ['passed', [exited(0), finished('job-1')]],
    ['failed (exit 4)', [exited(4), finished('job-1')]],
    ['ended', [finished('job-1')]],
    ['lost', []],
  ])('leave a job that is shown as: %s', async (result, lines) => {
    one.watch();
    one.say('a1', online, assigned('job-1'), began('job-1'), ...lines);
    await one.service.settle?.({ ...one.context('a1'), job: 'job-1' }, unread, never);
    expect(one.service.serviceJobs?.()).toEqual([]);
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ state: 'done', result });
    expect(await one.service.deregister(one.context('a1'), never)).toEqual({ ran: 'job-1' });
    expect(await one.service.deregister(one.context('a1'), never)).toEqual({ ran: 'job-1' });
  });

  it('that onejob ended leave one that was stopped, with the reason', async () => {
    one.say('a1', assigned('job-1'), began('job-1'));
    await one.service.ending?.({ agent: 'a1', job: 'job-1', why: 'timeout', released: true }, never);
    one.say('a1', exited(143), finished('job-1'));
    await one.service.settle?.({ ...one.context('a1'), job: 'job-1' }, unread, never);
    expect(one.store.serviceJobs.get('job-1')).toMatchObject({ result: 'stopped', note: expect.stringContaining('1m at most') });
  });

  it('that begin a second job, as nothing came of the first, leave both', async () => {
    one.watch();
    one.say('a1', assigned('job-1'), 'failed to accept job: 422', assigned('job-2'), began('job-2'), 'failed to run job: 500');
    one.say('a1', assigned('job-3'), began('job-3'), exited(0), finished('job-3'));
    await one.service.settle?.({ ...one.context('a1'), job: 'job-2' }, unread, never);
    expect(['job-1', 'job-2', 'job-3'].map((id) => one.store.serviceJobs.get(id)?.result)).toEqual([undefined, 'lost', 'passed']);
  });

  it('that end without a job had none', async () => {
    one.say('a1', online);
    await one.service.settle?.(one.context('a1'), unread, never);
    expect(await one.service.deregister(one.context('a1'), never)).toEqual({ ran: null });
  });

  it('that do not come online in time are reported, and others are not', async () => {
    one.watch();
    for (const agent of ['a1', 'a2']) one.say(agent);
    one.say('a2', online);
    one.it.silent.set('a1', 60_000);
    one.events.length = 0;
    one.clock.advance(60_000);
    expect(one.events).toEqual([
      { kind: 'silent', agent: 'a1', failure: expect.objectContaining({ code: 'E_AGENT_SILENT', retry: true }) },
    ]);
  });

  it('that keep running after their job are ended, unless they have begun another', async () => {
    one.watch();
    for (const agent of ['a1', 'a2']) one.say(agent, assigned(`${agent}-1`), began(`${agent}-1`), finished(`${agent}-1`));
    one.say('a2', assigned('a2-2'), began('a2-2'));
    one.events.length = 0;
    one.clock.advance(300_000);
    expect(one.events).toEqual([{ kind: 'jobDone', agent: 'a1' }]);
  });

  it('that are retired answer with the job that came all the same, however late it begins', async () => {
    one.say('a1', online, assigned('job-1'));
    const retired = one.service.retire('a1', never);
    for (let s = 0; s < 240; s++) {
      one.clock.advance(250);
      await one.turns();
    }
    one.say('a1', began('job-1'));
    one.clock.advance(250);
    expect(await retired).toBe('job-1');
  });

  it('that are retired, say nothing and stay are not known to have no job', async () => {
    one.say('a1', online);
    const retired = expect(one.service.retire('a1', never)).rejects.toMatchObject({ retry: true });
    for (let s = 0; s < 121; s++) {
      one.clock.advance(250);
      await one.turns();
    }
    await retired;
  });

  it('are not begun while the token cannot be read', async () => {
    one.it.token = new OnejobError('E_SECRET', 'The secret file is gone.', { hint: 'Put it back.' });
    one.watch();
    await one.turns();
    expect(one.events.at(-1)).toEqual({ kind: 'hold', pool: 'ci', reason: 'The secret file is gone. Put it back.' });
    await expect(one.service.register(one.context('a1'), never)).rejects.toMatchObject({ code: 'E_SECRET' });
    one.it.token = 'another';
    one.clock.advance(30_000);
    await one.turns();
    expect(one.events.at(-1)).toEqual({ kind: 'hold', pool: 'ci', reason: null });
  });

  it('leave no timer when the manager ends', async () => {
    one.say('a1');
    one.watch();
    one.say('a1', assigned('job-1'), began('job-1'), finished('job-1'));
    await one.service.close?.(true);
    one.events.length = 0;
    one.clock.advance(600_000);
    expect(one.events).toEqual([]);
  });
});
