/** What `doctor` says of Buildkite, against the stand-in. */

import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { testConfig, testPool } from '../../../../test/kit/buildkite-manager.ts';
import { emptyEnvironment } from '../../../../test/kit/config.ts';
import { type BuildkiteStandin, startBuildkite } from '../../../../test/standins/buildkite/standin.ts';
import { type Scratch, scratch } from '../../../../test/support/scratch.ts';
import { OnejobError } from '../../../base/errors.ts';
import type { Finding } from '../../../base/finding.ts';
import { types } from '../../../cli/types.ts';
import type { PoolConfig } from '../../../config/config.ts';
import { lookAtHost } from '../../../config/host-look.ts';
import { checkConfig } from '../../../config/load.ts';
import { createOutbound } from '../../../http/outbound.ts';
import { noProxies } from '../../../http/proxies.ts';
import type { DiagnosticSandboxes } from '../../../ports/ci-service.ts';
import type { Recipe } from '../../../ports/runtime.ts';
import { makeKey, parseKeys } from '../../../secrets/keys.ts';
import { systemClock } from '../../../system/system-clock.ts';
import { Seal } from '../../filter/seal.ts';
import type { AgentProgramState } from '../../kit/agent-program.ts';
import { createServiceApi } from '../api.ts';
import type { BuildkiteServiceConfig } from '../type.ts';
import { buildkiteFindings } from './doctor.ts';
import type { DoctorParts } from './parts.ts';

const patient = new AbortController().signal;
const good = 'has bash\nhas git\nhas buildkite-agent\nagent buildkite-agent version 3.137.0+1\ntmp yes /tmp\nhome yes /root\n';
const reached = 'reach\nfatal: 401 Unauthorized: The token is invalid or no longer valid.\n';

let buildkite: BuildkiteStandin;
let dir: Scratch;
let asked: { readonly recipe: Recipe; readonly script: string }[];
let says: string | Error;
beforeEach(async () => {
  buildkite = await startBuildkite();
  dir = scratch();
  asked = [];
  says = good + reached;
});
afterEach(async () => {
  await buildkite[Symbol.asyncDispose]();
  dir[Symbol.dispose]();
});

const fakeSeal = new Seal(new Uint8Array(32));
const outbound = createOutbound(noProxies);
const ready: AgentProgramState = { kind: 'ready', path: '/p', version: '3.137.0', sha256: '00' };

interface Given {
  readonly pools: string;
  readonly token?: string;
  readonly service?: string;
  readonly program?: AgentProgramState;
  readonly door?: () => Promise<string>;
  readonly wall?: number;
  readonly keys?: DoctorParts['keys'];
}

async function check(given: Given): Promise<Finding[]> {
  writeFileSync(join(dir.path, 'token'), given.token ?? buildkite.token, { mode: 0o600 });
  writeFileSync(join(dir.path, 'metrics'), buildkite.metricsToken, { mode: 0o600 });
  mkdirSync(join(dir.path, 'state'), { recursive: true });
  const path = join(dir.path, 'config.yml');
  const service = `{ type: buildkite, endpoint: "${buildkite.endpoint}", token: { file: ${dir.path}/token }${given.service ?? ''} }`;
  writeFileSync(path, `state_dir: ${dir.path}/state\nservices: { bk: ${service} }\npools: ${given.pools}\n`);
  const { config, errors } = await checkConfig({ types, look: lookAtHost, flags: { config: path }, env: emptyEnvironment() });
  expect(errors).toEqual([]);
  const [bk] = (config?.services ?? []) as BuildkiteServiceConfig[];
  const pools = config?.pools ?? [];
  if (bk === undefined) throw new Error('no service');
  const api = createServiceApi({
    endpoint: bk.endpoint,
    version: '1.0.0',
    clock: systemClock,
    fetch: outbound.fetch,
    timeout: 5_000,
  });
  const token = async () => given.token ?? buildkite.token;
  const parts: DoctorParts = {
    config: bk,
    pools,
    stateDir: join(dir.path, 'state'),
    api,
    places: new Map(),
    tokens: { service: token, metrics: bk.metricsToken === null ? token : async () => buildkite.metricsToken },
    keys: given.keys ?? (async () => null),
    filter: {
      check: async () => [],
      async listenFor(context, signal) {
        return { origin: `http://${await context.hostAddress(7070, signal)}:7070`, ca: null, seal: fakeSeal };
      },
    },
    program: { state: given.program ?? ready },
    clock: { ...systemClock, wall: () => given.wall ?? Date.now() },
  };
  const found = await buildkiteFindings(parts, trialOf(pools, given.door ?? (async () => '172.18.0.1')), patient);
  outbound.close();
  for (const { level, hint, message } of found) {
    expect(message).toMatch(/[.?!)]$/);
    if (level !== 'ok') expect(hint).not.toBeNull();
  }
  return found;
}

function trialOf(pools: readonly PoolConfig[], hostAddress: () => Promise<string>): DiagnosticSandboxes {
  return {
    like(name, change = (recipe) => recipe) {
      const base = pools.find((pool) => pool.name === name)?.recipe;
      if (base === undefined) return null;
      const recipe = change(base);
      if (recipe.image === null) return null;
      return {
        recipe,
        hasImage: true,
        kind: JSON.stringify(recipe),
        isRemote: false,
        hostAddress,
        async ask(script) {
          asked.push({ recipe, script });
          if (says instanceof Error) throw says;
          return says;
        },
      };
    },
  };
}

const lines = (found: readonly Finding[], level?: Finding['level']): string[] =>
  found
    .filter((one) => level === undefined || one.level === level)
    .map(({ subject, message, hint }) => `${subject}: ${message} ${hint}`);
/** Its untrusted jobs' sandboxes have the same network. */
const plain = '{ p: { service: bk, queue: default, image: "x:1", agents: 2, trust: { network: default } } }';

it('finds nothing to say against a good day, and makes one sandbox for each pool', async () => {
  const found = await check({ pools: plain, service: `, metrics_token: { file: ${dir.path}/metrics }` });
  expect([...lines(found, 'warning'), ...lines(found, 'error')]).toEqual([]);
  const all = lines(found).join('\n');
  for (const part of [
    'accepts the token of organisation acme, cluster "Lab"',
    'Queue "default" exists; 0 jobs wait in it.',
    'The agent is version 3.137.0',
    'can be reached from network "default" by agents of pool p.',
    'The filter at 172.18.0.1:7070 can be reached from network "default" by untrusted jobs of pool p.',
    'bash, git, agent 3.137.0',
  ])
    expect(all).toContain(part);
  expect(all).not.toContain(buildkite.token);
  expect(asked).toHaveLength(2);
  expect(new Set(buildkite.requests.map(({ token, route }) => `${route} ${token}`))).toEqual(
    new Set(['token registration', 'metrics metrics']),
  );
});

it('reports a token that enters sandboxes, with an alternative', async () => {
  const pools = '{ p: { service: bk, queue: default, image: "x:1", trust: { forks: refuse, others: refuse } } }';
  const found = await check({ pools, service: ', registration: in-agent' });
  expect(lines(found, 'error')).toEqual([]);
  expect(lines(found, 'warning')).toEqual([
    expect.stringMatching(
      /service bk: The agent token enters every sandbox .* every job of pool p can read it.* Remove "registration": the token belongs to a cluster/,
    ),
  ]);
});

it.each([
  ['manager', 'error', 'The token belongs to no cluster, and onejob can only reserve jobs of a cluster.'],
  ['in-agent', 'warning', 'The agent token enters every sandbox ("registration: in-agent"): every job of pools a, b can read it'],
] as const)('a token of no cluster, with %s', async (registration, level, message) => {
  const { tokenFindings } = await import('./doctor.ts');
  const identity = { organisation: 'acme', cluster: null, queue: null, type: 'unclustered', expires: null };
  const api = {
    identity: async () => ({ value: identity, skew: 0 }),
    counts: async () => ({ value: { known: new Set(['q']), scheduled: new Map(), pollAfter: 0 }, skew: 0 }),
  } as unknown as DoctorParts['api'];
  const config = testConfig({ endpoint: 'https://x/v3', registration });
  const pools = ['a', 'b'].map((name) => testPool({ name, queue: 'q' }));
  const token = async () => 't';
  const parts = { config, pools, api, tokens: { service: token, metrics: token }, clock: systemClock };
  const found = await tokenFindings(parts, patient);
  expect(found.filter((one) => one.level !== 'ok')).toEqual([
    { level, subject: 'service bk', message: expect.stringContaining(message), hint: expect.any(String) },
  ]);
});

it('a token that is refused is told once, and all that needs no token still is', async () => {
  const found = await check({ pools: plain, token: 'bkct_wrong' });
  expect(lines(found, 'error')).toEqual([
    expect.stringMatching(/service bk: .*answered 401.* Put it into file \S+token; onejob reads it again/),
  ]);
  expect(lines(found, 'ok').join()).toContain('can be reached from network');
});

it('a token of one queue is wrong for pools of another', async () => {
  const token = buildkite.addToken({ kind: 'registration', queue: 'gpu' });
  const found = await check({
    pools: '{ a: { service: bk, queue: gpu, image: "x:1" }, b: { service: bk, queue: cpu, image: "x:1" } }',
    token,
  });
  expect(lines(found, 'error')).toEqual([
    expect.stringContaining('only for queue "gpu", but pool b takes its jobs from "cpu". Write "queue: gpu"'),
  ]);
});

it('a metrics token that may not count costs a warning only', async () => {
  buildkite.revoke(buildkite.metricsToken);
  const found = await check({ pools: plain, service: `, metrics_token: { file: ${dir.path}/metrics }` });
  expect(lines(found, 'error')).toEqual([]);
  expect(lines(found, 'warning')).toEqual([
    expect.stringMatching(/answered 401.*remove "metrics_token"; everything but the counts works/),
  ]);
});

it('a queue that nobody has heard of is a warning with those there are', async () => {
  const found = await check({ pools: '{ p: { service: bk, queue: nope, image: "x:1" } }' });
  expect(lines(found, 'warning')).toEqual([expect.stringMatching(/does not list queue "nope".*It lists default\./)]);
});

it.each([
  ['error', -400, /(39\d|400) s behind/],
  ['warning', 60, /6\d s ahead of/],
] as const)('a wrong clock is told (%s)', async (level, seconds, message) => {
  const api = createServiceApi({
    endpoint: buildkite.endpoint,
    version: '1',
    fetch: outbound.fetch,
    clock: { ...systemClock, wall: () => Date.now() + seconds * 1000 },
  });
  const { tokenFindings } = await import('./doctor.ts');
  const token = async () => buildkite.token;
  const config = testConfig({ endpoint: buildkite.endpoint });
  const found = await tokenFindings(
    { config, pools: [], api, tokens: { service: token, metrics: token }, clock: systemClock },
    patient,
  );
  outbound.close();
  expect(found.filter((one) => one.level === level)).toEqual([
    expect.objectContaining({ message: expect.stringMatching(message) }),
  ]);
});

it.each<[string, AgentProgramState, RegExp]>([
  ['being fetched', { kind: 'preparing' }, /warning .*is downloading/],
  [
    'not to be had',
    { kind: 'failed', failure: { code: 'E_AGENT_PACKAGE', message: 'Cannot use it.', retry: false } },
    /error .*Cannot use it\./,
  ],
  ['old', { ...ready, version: '3.64.0' }, /warning .*3\.64\.0; before 3\.103\.0/],
])('an agent that is %s is told', async (_, program, line) => {
  const found = await check({ pools: plain, program });
  expect(found.map(({ level, message }) => `${level} ${message}`)).toContainEqual(expect.stringMatching(line));
});

it('of an agent that could not be had one line says why, and how to name another', async () => {
  says = new OnejobError('E_MOUNT_MISSING', 'Cannot start agent x: the path "/s/tools/at-1/buildkite-agent" is not there.');
  const failed: AgentProgramState = {
    kind: 'failed',
    failure: { code: 'E_AGENT_PACKAGE', message: 'Cannot use it.', retry: true },
  };
  const found = await check({ pools: plain, program: failed });
  expect([...lines(found, 'error'), ...lines(found, 'warning')]).toEqual([
    expect.stringMatching(/Cannot use it\. .*agent: \{ from: \/path\/to\/buildkite-agent \}/),
  ]);
  expect(lines(await check({ pools: plain }), 'warning')).toEqual([expect.stringContaining('tools/at-1')]);
});

it('an image without git is an error, unless the pool says that nothing is checked out', async () => {
  says = good.replace('has git\n', '');
  expect(lines(await check({ pools: plain }), 'error')).toEqual([expect.stringContaining('There is no git in image "x:1"')]);
  const without = '{ p: { service: bk, queue: default, image: "x:1", env: { BUILDKITE_SKIP_CHECKOUT: "true" } } }';
  expect(lines(await check({ pools: without }), 'error')).toEqual([]);
});

it("untrusted jobs' own network is tried, too, and same sandboxes once", async () => {
  const pools = `{ p: { service: bk, queue: default, image: "x:1" }, q: { service: bk, queue: default, image: "x:1", trust: { network: default } } }`;
  const found = await check({ pools });
  expect(asked.map(({ recipe }) => recipe.network)).toEqual(['default', 'internet', 'default']);
  expect(lines(found, 'ok').join('\n')).toContain('from network "internet" by untrusted jobs of pool p');
});

it('a network of untrusted jobs that cannot be kept from the host is an error', async () => {
  says = new OnejobError('E_NETWORK_UNGUARDED', 'Cannot keep the network "internet" from the host: no rules.', {
    hint: 'Be root.',
  });
  const found = await check({ pools: '{ p: { service: bk, queue: default, image: "x:1" } }' });
  expect(lines(found, 'error')).toContainEqual(
    expect.stringMatching(/pool p: Cannot look into a sandbox of untrusted jobs of pool p: Cannot keep the network "internet"/),
  );
});

it('says why no way leads to the filter, and looks at the rest', async () => {
  says = good;
  const door = async () => {
    throw new OnejobError('E_NO_DOOR', 'The Engine is not on this host.', { hint: 'Write network: default.' });
  };
  const found = await check({ pools: plain, door });
  expect(lines(found, 'error')).toEqual([expect.stringContaining('The Engine is not on this host. Write network: default.')]);
  expect(lines(found, 'ok').join()).toContain('what jobs need');
});

it('an image that is yet to be made is told as such', async () => {
  const found = await check({ pools: '{ p: { service: bk, queue: default, image: auto } }' });
  expect(lines(found, 'warning')).toEqual([expect.stringContaining('they have no image yet')]);
});

it('complains of "unsafe" where untrusted jobs come in, of hooks that jobs can write to, and of a short grace', async () => {
  const hooks = join(dir.path, 'hooks');
  mkdirSync(hooks);
  writeFileSync(join(hooks, 'environment'), '');
  chmodSync(join(hooks, 'environment'), 0o777);
  const keys = `service: bk, queue: default, image: "x:1", unsafe: { privileged: true }, stop_grace: 6s, hooks: ${hooks}, volumes: ["${hooks}:/h:rw"]`;
  const warnings = lines(await check({ pools: `{ p: { ${keys} } }` }), 'warning').join('\n');
  expect(warnings).toContain('"unsafe", and it accepts untrusted jobs');
  expect(warnings).toContain(`Jobs can write to ${hooks} ("hooks"), as /h`);
  expect(warnings).toContain(`Every user of this host can write to ${join(hooks, 'environment')}`);
  expect(warnings).toContain('killed after 6s');
  const closed = lines(await check({ pools: `{ p: { ${keys}, trust: { forks: refuse, others: refuse } } }` }), 'warning').join(
    '\n',
  );
  expect(closed).not.toContain('accepts untrusted jobs');
});

it('a folder of hooks that is not there is an error', async () => {
  const found = await check({ pools: `{ p: { service: bk, queue: default, image: "x:1", hooks: ${dir.path}/none } }` });
  expect(lines(found, 'error')).toEqual([expect.stringContaining('/none ("hooks") does not exist')]);
});

it('names the kinds of keys there are, never a key', async () => {
  const text = `${await makeKey('x25519', 'one')}${await makeKey('rsa', 'two')}`;
  const found = lines(await check({ pools: plain, keys: () => parseKeys(text) })).join('\n');
  expect(found).toMatch(/secrets\.key: It opens secrets with x25519 [0-9a-f]{8}, rsa [0-9a-f]{8}\./);
  expect(found).toContain('In pool p anyone who can push a branch is trusted with secrets');
  expect(found).toContain('In pool p builds of tags get no secrets; list in "trust.tags" the tags that do.');
  const narrow = '{ p: { service: bk, image: "x:1", trust: { branches: [main], tags: ["v*"], network: default } } }';
  const other = lines(await check({ pools: narrow, keys: () => parseKeys(text) })).join('\n');
  expect(other).not.toMatch(/builds of tags|anyone who can push/);
  expect(other).toContain('"trust.sources" can limit that to webhooks.');
  for (const line of text.split('\n').filter((one) => one.length > 30 && !one.startsWith('#'))) expect(found).not.toContain(line);
});

it('complains of a home that outlives jobs of several pipelines, where there are secrets', async () => {
  const keys = async () => parseKeys(await makeKey('x25519', 'one'));
  const warnings = async (more: string, given: Partial<Given> = { keys }) => {
    const pools = `{ p: { service: bk, queue: default, image: "x:1", ${more} } }`;
    return lines(await check({ pools, ...given }), 'warning').join('\n');
  };
  const said = 'what a job of one pipeline leaves there runs in the next job of another pipeline, with its secrets';
  for (const more of [
    'caches: ["home:/root"]',
    'caches: ["/srv/h/{name}:/root"]',
    'volumes: ["/srv/h:/home/ci:rw"], user: "1000"',
    'caches: ["home:/h/me"], env: { HOME: /h/me }',
    'caches: ["home:/root"], trust: { pipelines: [app, lib] }',
    'caches: ["home:/root"], trust: { pipelines: ["app-*"] }',
  ]) {
    expect(await warnings(more)).toContain(said);
  }
  expect(await warnings('caches: ["depot:/root/.julia"]')).not.toContain(said);
  expect(await warnings('caches: ["home:/root:ro"]')).not.toContain(said);
  expect(await warnings('caches: ["home:/root"], trust: { pipelines: [acme/app] }')).not.toContain(said);
  expect(await warnings('caches: ["home:/root"]', {})).not.toContain(said);
});

it('complains of what untrusted jobs can read of this host, and says what they do not get', async () => {
  const pools = (trust: string) =>
    `{ p: { service: bk, queue: default, image: "x:1", volumes: ["/etc/ssl:/ssl", "/root/data:/data", "/run/libvirt:/v", "/srv:/srv"]${trust} } }`;
  const open = await check({ pools: pools('') });
  const warnings = lines(open, 'warning').join('\n');
  expect(warnings).toContain('Untrusted jobs can read /etc/ssl and /root/data of this host ("volumes").');
  expect(lines(open, 'ok').join('\n')).toContain('Untrusted jobs do not get /run/libvirt: it lies in /run.');
  const closed = await check({ pools: pools(', trust: { forks: refuse, others: refuse }') });
  expect(lines(closed).join('\n')).not.toContain('Untrusted jobs');
});

it('caches that may outgrow the disk are told', async () => {
  const found = await check({
    pools: '{ p: { service: bk, queue: default, image: "x:1", agents: 4, caches: ["a:/a"], cache_limit: 900TiB } }',
  });
  expect(lines(found, 'warning')).toEqual([expect.stringMatching(/Caches of p may grow to \S+, more than the disk/)]);
});
