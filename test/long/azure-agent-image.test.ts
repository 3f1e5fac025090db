/**
 * The scripted agent in its images, on a real Engine, started by hand as a gate would start it: before onejob is asked anything,
 * this shows that a job gets from the stand-in into a container and back.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { packAgent } from '../standins/azure-devops/agent/pack.ts';
import { makeKey, type Registered, register } from '../standins/azure-devops/agent/testing.ts';
import { type AzureDevOps, startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { azureImages, ensureAzureImages } from '../support/azure-images.ts';
import { type Engine, engineAt } from '../support/engine-http.ts';
import { lacks } from '../support/require.ts';

const key = makeKey();
const network = z.object({ IPAM: z.object({ Config: z.array(z.object({ Gateway: z.string().optional() })) }) });
const inspected = z.object({ State: z.object({ OOMKilled: z.boolean(), ExitCode: z.number(), Status: z.string() }) });

interface Container extends AsyncDisposable {
  readonly id: string;
  ended(): Promise<number>;
  state(): Promise<z.infer<typeof inspected>['State']>;
  log(): Promise<string>;
}

/** Reachable from containers of the Engine's own bridge. */
async function standIn(engine: Engine): Promise<AzureDevOps> {
  const { IPAM } = network.parse(await engine.ok('GET', '/networks/bridge'));
  const publicHost = IPAM.Config[0]?.Gateway ?? '172.17.0.1';
  return await startAzureDevOps({ host: '0.0.0.0', publicHost, pollHoldMs: 5000 });
}

async function container(engine: Engine, body: Record<string, unknown>): Promise<Container> {
  const { Id: id } = z.object({ Id: z.string() }).parse(await engine.ok('POST', '/containers/create', body));
  await engine.ok('POST', `/containers/${id}/start`);
  const state = async () => inspected.parse(await engine.ok('GET', `/containers/${id}/json`)).State;
  return {
    id,
    state,
    ended: async () => {
      const waited = z.object({ StatusCode: z.number() }).parse(await engine.ok('POST', `/containers/${id}/wait`));
      return waited.StatusCode;
    },
    log: async () => String(await engine.ok('GET', `/containers/${id}/logs?stdout=1&stderr=1`)),
    [Symbol.asyncDispose]: async () => {
      await engine.ok('DELETE', `/containers/${id}?force=1&v=1`);
    },
  };
}

/** What onejob's script does, by other means: three files with mode 600, then exec. */
function injected(service: AzureDevOps, pool: number, agent: Registered & { readonly name: string }): string[] {
  const { clientId, authorizationUrl } = agent.authorization;
  const files = {
    '.agent': {
      agentId: agent.id,
      agentName: agent.name,
      poolId: pool,
      poolName: 'gpus',
      serverUrl: service.url,
      workFolder: '_work',
    },
    '.credentials': { scheme: 'OAuth', data: { clientId, authorizationUrl, oauthEndpointUrl: authorizationUrl } },
    '.credentials_rsaparams': key.parameters,
  };
  const writes = Object.entries(files).map(([name, content]) => `printf %s '${JSON.stringify(content)}' >${name}`);
  return ['sh', '-c', ['set -e; umask 077; cd /opt/agent', ...writes, 'exec bin/Agent.Listener run --once'].join('\n')];
}

describe.skipIf(lacks('docker', 'busybox'))('the scripted agent in a container', () => {
  beforeAll(async () => {
    await ensureAzureImages();
  });

  test('runs a job with injected files, as a user of its own', async () => {
    using engine = engineAt();
    await using service = await standIn(engine);
    const pool = service.addPool('gpus');
    const agent = { ...(await register(service, pool, 'injected', key)), name: 'injected' };
    const job = service.queue(pool, { script: 'id -un; stat -c "%a %U" /opt/agent/.credentials*' });
    await using run = await container(engine, { Image: azureImages.agent, Cmd: injected(service, pool, agent) });
    expect(await run.ended(), await run.log()).toBe(0);
    expect(await job.finished).toMatchObject({
      result: 'succeeded',
      log: expect.stringMatching(/agent\n.*600 agent\n.*600 agent/),
    });
  });

  test('is reached by SIGTERM, also as the first process, and cancels its job', async () => {
    using engine = engineAt();
    await using service = await standIn(engine);
    const pool = service.addPool('gpus');
    const agent = { ...(await register(service, pool, 'stopped', key)), name: 'stopped' };
    const job = service.queue(pool, { script: 'echo begun; sleep 600' });
    await using run = await container(engine, { Image: azureImages.agent, Cmd: injected(service, pool, agent) });
    await expect.poll(() => service.lines(job.requestId)).toContain('begun');
    await engine.ok('POST', `/containers/${run.id}/stop?t=60`);
    expect((await run.state()).ExitCode).toBe(0);
    expect((await job.finished).result).toBe('canceled');
  });

  test('is ended by the kernel when it eats too much, and crashes when it is the first process', async () => {
    using engine = engineAt();
    await using service = await standIn(engine);
    const pool = service.addPool('gpus');
    for (const [name, code] of [
      ['eat-memory', 137],
      ['crash', 137],
    ] as const) {
      const agent = { ...(await register(service, pool, name, key)), name };
      const job = service.queue(pool, { script: `# standin-agent: ${name}` });
      const HostConfig = { Memory: 160 * 1024 * 1024, MemorySwap: 160 * 1024 * 1024 };
      await using run = await container(engine, { Image: azureImages.agent, Cmd: injected(service, pool, agent), HostConfig });
      expect(await run.ended(), await run.log()).toBe(code);
      expect((await run.state()).OOMKilled).toBe(name === 'eat-memory');
      expect(job.view()).toMatchObject({ state: 'running', result: null });
      service.cancel(job.requestId);
    }
  });

  test('the images with a start script of their own configure themselves and run a job', async () => {
    using engine = engineAt();
    await using service = await standIn(engine);
    await service.addPackage(await packAgent());
    const pool = service.addPool('gpus');
    for (const image of [azureImages.seed, azureImages.startOnly]) {
      const name = image.replaceAll(/\W/g, '-');
      const Env = [`AZP_URL=${service.url}`, `AZP_TOKEN=${service.pat}`, 'AZP_POOL=gpus', `AZP_AGENT_NAME=${name}`];
      // Nobody can have a job in a pool without agents.
      const online = service.next('sessionOpened');
      await using run = await container(engine, { Image: image, Env });
      expect((await online).name).toBe(name);
      const job = service.queue(pool, { script: 'echo "root is $(id -u) in $(pwd)"' });
      expect(await run.ended(), await run.log()).toBe(0);
      expect(await job.finished).toMatchObject({ result: 'succeeded', log: expect.stringContaining('root is 0 in /azp') });
    }
  });
});
