/** Registered, retired and taken off the list; what is refused, and what must not be waited for. */
import { readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import { describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { inside } from '../../../test/kit/azure-manager.ts';
import { worlds } from '../../../test/kit/azure-service.ts';
import { registerByHand } from '../../../test/standins/azure-devops/hand-agent.ts';

const open = worlds();

describe('register', () => {
  it('says which right is missing when it may look, but not change anything', async () => {
    const { world, one } = await open.watching({ pat: { scopes: ['agentpools'] } });
    expect([...one.held.keys()]).toEqual([]);
    const failure = await world.failure(one.register('a1'));
    expect(failure).toMatchObject({ code: 'E_CI_DENIED', retry: false });
    expect(failure.hint).toContain('Agent Pools (Read & manage)');
    expect(failure.hint).toContain('Administrator');
  });

  it('says the same to an owner of the token who is not Administrator of the pool', async () => {
    const { world, one } = await open.one({ pat: { scopes: ['agentpools_manage'], poolAdmin: false } });
    const failure = await world.failure(one.register('a1'));
    expect(failure).toMatchObject({ code: 'E_CI_DENIED', message: /Manage permissions/ });
    expect(failure.hint).toMatch(/Agent Pools \(Read & manage\).*Administrator/);
  });

  it('makes no entry for an agent that nobody wants any more', async () => {
    const { world, one } = await open.one();
    await one.register('a0');
    const abort = new AbortController();
    const ask = async () => {
      abort.abort();
      return inside();
    };
    await expect(one.service.register(one.context('a1', { ask }), abort.signal)).rejects.toThrow('aborted');
    expect(world.names()).toHaveLength(2);
  });

  it('lets go of an agent at once that nobody wants any more, although the service does not answer', async () => {
    const { world, one } = await open.one({ notAwaited: '/agents' });
    world.azure.faults.add({ kind: 'hang' }, { method: 'POST', times: 1 });
    const asked = world.azure.log.length;
    const abort = new AbortController();
    const registering = one.service.register(one.context('a1'), abort.signal);
    await expect.poll(() => world.asked(asked, 'agents', 'POST')).toBe(1);
    abort.abort();
    await expect(registering).rejects.toThrow('aborted');
    // For the next one the placeholder is still on its way.
    const next = one.register('a2');
    world.clock.advance(30_000);
    await world.failure(next);
    await one.register('a2');
    expect(world.names()).toHaveLength(2);
  });

  it('tells the service what the agent will say, so that jobs can be matched before it is online', async () => {
    const { world, one } = await open.one({ pools: [{ name: 'ci', queue: 'gpu', tags: ['fast', 'site=Bonn'] }] });
    await one.register('a1', { inside: inside('', "export JAVA_HOME='/opt/java'\nexport HOSTNAME='c0ffee'\n") });
    const [, agent] = world.azure.agents(world.pool);
    expect(agent?.systemCapabilities).toMatchObject({
      'Agent.Name': agent?.name,
      'Agent.Version': '5.278.0',
      'Agent.OS': 'Linux',
      JAVA_HOME: '/opt/java',
      fast: 'true',
      git: '/usr/bin/git',
      'onejob.pool': 'ci',
      site: 'Bonn',
    });
    expect(agent?.systemCapabilities).not.toHaveProperty('HOSTNAME');
  });

  it('shows nobody what the image wants to be kept to itself', async () => {
    const { world, one } = await open.one();
    world.secrets.push('not for everybody');
    await one.register('a1', { inside: inside('', "export VSO_AGENT_IGNORE='A,Licence'\nexport LICENCE='not for everybody'\n") });
    for (const { systemCapabilities: said, userCapabilities: told } of world.azure.agents(world.pool))
      expect(JSON.stringify([said, told])).not.toContain('not for everybody');
  });
});

describe('ways', () => {
  it('gives the token to an agent that makes itself known, and knows it by its name once it is seen', async () => {
    const { world, one } = await open.one({ config: { registration: 'in-agent' } });
    const { script, id } = await one.register('a1');
    expect(id).toBeNull();
    expect(script).toMatch(/VSTS_AGENT_INPUT_TOKEN='\w{84}' \.\/config\.sh .*--replace.* <\/dev\/null \|\| exit 1/);
    expect(script.split('\n').at(-1)).toBe('exec ./bin/Agent.Listener run --once');
    expect(world.names()).toHaveLength(1);
    expect(await one.service.retire('a1', patient)).toBeNull();
    const name = one.store.registrations.get('a1')?.name ?? '';
    const agent = await registerByHand(world.azure, world.pool, name);
    await agent.signIn(world.clock.wall());
    await agent.open({});
    const queued = world.azure.queue(world.pool);
    // It has not been seen yet, and has a job all the same.
    expect(await one.service.retire('a1', patient)).toBe(`azure-${queued.requestId}`);
    await agent.complete(await agent.take());
    await one.watch();
    expect(await one.end('a1')).toEqual({ ran: `azure-${queued.requestId}` });
    expect(world.names()).toHaveLength(1);
  });

  it('uses the start script of a foreign image when it must, warns once, and uses an agent where there is one', async () => {
    const { world, one } = await open.one({ config: { registration: 'auto' } });
    const foreign = 'start=/azp/start.sh\nuid=0\narch=x86_64\n';
    const { script } = await one.register('a1', { inside: foreign });
    expect(script).toContain(`AZP_TOKEN='${world.azure.pat}'`);
    await one.register('a2', { inside: foreign });
    expect(world.said.filter((line) => line.includes('which jobs can read'))).toHaveLength(1);
    expect((await one.register('a3')).script).not.toContain('AZP_TOKEN');
  });

  it('runs an agent whose folder its user cannot write to from a copy in the workspace', async () => {
    const { one } = await open.one();
    const { script } = await one.register('a1', { inside: 'root=/azp\nversion=5.278.0\nuid=1000\n' });
    expect(script.split('\n').slice(0, 4)).toEqual([
      "mkdir -p '/workspace/.onejob/agent' || exit 1",
      "cd '/workspace/.onejob/agent' || exit 1",
      "cp -R '/azp/bin' . || exit 1",
      "[ ! -d '/azp/externals' ] || ln -s '/azp/externals' . || exit 1",
    ]);
  });

  it.each([
    ['manager', 'uid=0\n', /has no agent/],
    ['in-agent', 'root=/azp\nwritable=yes\nproblem=libicu is missing\nuid=0\n', /does not run: libicu is missing/],
    ['in-agent', 'root=/azp\nversion=5.278.0\nuid=1000\n', /user \(1000\) cannot write to \/azp/],
    ['image', 'root=/azp\nversion=5.278.0\nuid=0\n', /nor a start script/],
  ] as const)('refuses for "%s" what cannot be one: %j', async (registration, text, message) => {
    const { world, one } = await open.one({ config: { registration } });
    expect(await world.failure(one.register('a1', { inside: text }))).toMatchObject({ code: 'E_AGENT_ABSENT', message });
    expect(world.names()).toEqual([]);
  });
});

describe('retire', () => {
  it('tells a job that came at the last moment', async () => {
    const { world, one, agent } = await open.online();
    const queued = world.azure.queue(world.pool);
    expect(await one.service.retire('a1', patient)).toBe(`azure-${queued.requestId}`);
    await agent.complete(await agent.take());
    expect(await queued.finished).toMatchObject({ result: 'succeeded' });
  });

  it('takes nothing for granted while nobody can say', async () => {
    const { world, one } = await open.online();
    world.azure.faults.add({ kind: 'broken' }, { method: 'PATCH' });
    expect((await world.failure(one.service.retire('a1', patient))).retry).toBe(true);
  });

  it('has nothing to do for one whose agent pool has been gone for a day', async () => {
    const { world, one } = await open.one();
    one.store.registrations.intend({ agent: 'a1', service: 'azure', place: '999', name: 'box-1', placeholder: false }, 1);
    one.store.registrations.made('a1', '1', 1);
    expect((await world.failure(one.service.retire('a1', patient))).code).toBe('E_CI_POOL');
    world.clock.advance(23 * 3_600_000);
    expect((await world.failure(one.service.retire('a1', patient))).code).toBe('E_CI_POOL');
    world.clock.advance(3_600_000);
    expect(await one.service.retire('a1', patient)).toBeNull();
  });

  it('has nothing to do for one whose entry is gone', async () => {
    const { world, one } = await open.one();
    const { id } = await one.register('a1');
    await one.client.deleteAgent(world.pool, Number(id), patient);
    expect(await one.service.retire('a1', patient)).toBeNull();
    expect(await one.service.retire('never was', patient)).toBeNull();
  });
});

describe('deregister', () => {
  it('says of one without a job the same when it is asked again, as the sandbox could not be removed', async () => {
    const { one } = await open.one();
    await one.register('a1');
    for (let nth = 0; nth < 2; nth += 1) expect(await one.end('a1')).toEqual({ ran: null });
  });

  it('knows that one which was to make itself known, and never did, had no job', async () => {
    const { world, one } = await open.one({ config: { registration: 'in-agent' } });
    await one.register('a1');
    expect(await one.end('a1')).toEqual({ ran: null });
    expect(one.store.registrations.get('a1')?.state).toBe('removed');
    await one.register('a2');
    await world.azure.faults.down();
    expect(await one.end('a2')).toEqual({ ran: undefined });
    await world.azure.faults.up();
  });

  it('says nothing about an agent that another service of this host registered, and leaves it alone', async () => {
    const { world, one: first } = await open.online();
    const second = first.next({ config: { name: 'other' }, opened: ['azure'] });
    const before = world.azure.agents(world.pool);
    expect(await world.failure(second.service.retire('a1', patient))).toMatchObject({
      retry: true,
      message: /"azure" registered it/,
    });
    expect(await second.end('a1')).toEqual({ ran: undefined });
    expect(world.azure.agents(world.pool)).toEqual(before);
  });

  it('names an entry that the service does not give up', async () => {
    const { world, one, agent } = await open.online();
    world.azure.queue(world.pool);
    await agent.take();
    await one.end('a1');
    expect(world.said.at(-1)).toMatch(/box-1-\w+-a1.*does not yet release the entry/);
  });

  it('does not blame an agent whose end another manager has seen', async () => {
    const { one: first } = await open.one();
    await first.register('a1');
    await first.end('a1');
    const second = first.next();
    expect(await second.end('a1')).toEqual({ ran: undefined });
    expect(await second.end('never was')).toEqual({ ran: null });
  });

  it('does not take a job for its own that it was given and never began', async () => {
    const { world, one, agent } = await open.online();
    const queued = world.azure.queue(world.pool);
    await agent.close();
    expect(queued.view().state).toBe('assigned');
    expect(await one.end('a1')).toEqual({ ran: null });
  });

  it('waits for no outage: the entry goes when the service is back', async () => {
    const { world, one } = await open.watching();
    await one.register('a1');
    await world.azure.faults.down();
    expect(await one.end('a1')).toEqual({ ran: undefined });
    await world.azure.faults.up();
    await world.pass(70_000);
    expect(world.names()).toHaveLength(1);
  });

  it('asks once of a service that says nothing', async () => {
    const { world, one } = await open.one();
    await one.register('a1');
    const from = world.azure.log.length;
    world.azure.faults.add({ kind: 'reset' });
    await one.end('a1');
    expect(world.azure.log.length - from).toBe(1);
  });
});

it("keeps the agent's own logs, and lets the agent go without them", async () => {
  const { world, one } = await open.one();
  const folder = async () => Readable.from([Buffer.from('tar of logs')]);
  const all = () => Promise.reject(new Error('not asked for'));
  await one.service.settle(one.context('a1'), { all, folder }, patient);
  expect(readFileSync(`${one.dir}/diag/a1.tar`, 'utf8')).toBe('tar of logs');
  await one.service.settle(one.context('a2'), { all, folder: () => Promise.reject(new Error('no space')) }, patient);
  expect(world.said.at(-1)).toContain('no space');
});
