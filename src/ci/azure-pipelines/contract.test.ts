import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { filesOf, inside } from '../../../test/kit/azure-manager.ts';
import { agentContext, type EarlySubject, earlyBoundContract } from '../../../test/kit/ci-contract.ts';
import { handAgentFromFiles, registerByHand } from '../../../test/standins/azure-devops/hand-agent.ts';
import { startAzureDevOps } from '../../../test/standins/azure-devops/standin.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { createLog } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import { openStore } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { CiParts } from '../parts.ts';
import { openAzurePipelines } from './service.ts';
import type { AzureServiceConfig } from './type.ts';

async function open(): Promise<EarlySubject> {
  const azure = await startAzureDevOps();
  const pool = azure.addPool('gpu');
  await registerByHand(azure, pool, 'somebody', { capabilities: { cobol: 'yes' } });
  const live = new Set<string>();
  const dir = scratch();
  const path = join(dir.path, 'pat');
  writeFileSync(path, azure.pat, { mode: 0o600 });
  const store = openStore(join(dir.path, 'state'));
  const config: AzureServiceConfig = {
    name: 'azure',
    type: 'azure-pipelines',
    url: azure.url,
    credential: { kind: 'pat', token: { kind: 'file', path, expires: null } },
    registration: 'manager',
    pollEvery: 50,
    bootTimeout: 180_000,
    agentPackage: { version: null, from: null, sha256: null },
  };
  // The service looks at no more of its pools.
  const pools = [{ name: 'ci', service: 'azure', queue: 'gpu', tags: [] }] as unknown as PoolConfig[];
  const service = openAzurePipelines(config, {
    config: { pools } as unknown as CiParts['config'],
    pools,
    fetch,
    store,
    opened: new Set(['azure']),
    clock: systemClock,
    log: createLog({ json: true, stream: new PassThrough() }),
    onejob: { version: '0.0.0', self: [] },
    slots: {
      reasonFor: () => null,
      poolOf: (agent) => (live.has(agent) ? 'ci' : null),
      silentFor: () => null,
      isBusy: () => false,
      sizeOf: () => 0,
      jobsOf: () => [],
      agentOf: () => null,
    },
  });
  return {
    service,
    pool: 'ci',
    live,
    inside: inside(),
    enqueue: async () => `azure-${azure.queue(pool, { demands: ['git'] }).requestId}`,
    async start(script) {
      const agent = handAgentFromFiles(filesOf(script));
      await agent.signIn(Date.now());
      await agent.open({ 'Agent.Version': '5.278.0', git: '/usr/bin/git' });
      let job: Awaited<ReturnType<typeof agent.take>> | null = null;
      return {
        async work() {
          const { requestId } = azure.queue(pool, { demands: ['git'] });
          job = await agent.take();
          return `azure-${requestId}`;
        },
        async finish() {
          if (job !== null) await agent.complete(job);
          await agent.close();
        },
      };
    },
    async other(name, isOnline) {
      const agent = await registerByHand(azure, pool, name, {});
      if (isOnline) await agent.signIn(Date.now()).then(() => agent.open({}));
    },
    listed: () => azure.agents(pool).flatMap(({ name }) => (name.startsWith('onejob-placeholder') ? [] : [name])),
    loseAnswer: () => void azure.faults.add({ kind: 'lost' }, { method: 'POST', route: 'agents', times: 1 }),
    async goAway() {
      await azure.faults.down();
      return () => azure.faults.up();
    },
    commit: (write) => write(),
    async close() {
      await azure[Symbol.asyncDispose]();
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

earlyBoundContract('azure-pipelines', open);

it('gives each agent a key of its own', async () => {
  const { service, close } = await open();
  const register = (agent: string) => service.register(agentContext(agent, { ask: async () => inside() }), patient);
  try {
    const [one, two] = [await register('a1'), await register('a2')];
    expect(one.script).not.toContain('\0');
    const keyOf = (script: string) => filesOf(script)['.credentials_rsaparams'];
    expect(keyOf(one.script)).not.toBe(keyOf(two.script));
  } finally {
    await close();
  }
});
