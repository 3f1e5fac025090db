/** S1 with several services: jobs of the real Gitea, of the real gitlab-runner and of the own queue on stub cards, in bubblewrap. */
import { chmodSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** Writes down whose it is, which card it has, and from when to when. */
const job = (of: string) =>
  `f=/marks/${of}.$CUDA_VISIBLE_DEVICES.$(date +%s%N); date +%s%N >$f; sleep 0.3; date +%s%N >>$f; echo "${of} done"`;
const names = ['gitea', 'gitlab', 'own'] as const;

interface Case {
  readonly binding: 'early' | 'late';
  readonly cards: number;
  readonly pool: object;
  /** Jobs of each service. */
  readonly each: Readonly<Record<(typeof names)[number], number>>;
}

/** Runs all jobs of all services; what used which card, in the order in which they began, and what `plan` said meanwhile. */
async function shared({ binding, cards: count, pool, each }: Case) {
  await using gitea = await startGitea({ address: '127.0.0.1' });
  await gitea.repository('acme/demo', {
    '.gitea/workflows/a.yml': `on: workflow_dispatch\njobs:\n  j:\n    runs-on: gitea\n    steps:\n      - run: ${job('gitea')}\n`,
  });
  const gitlab = memoryGitlab();
  await using _ = await gitlab.serve('127.0.0.1');
  const cards = Array.from({ length: count }, (_, n) => card(n));
  using host = gpuHost(cards);
  await using home = await onejob({ config: '', env: { ...host.env, GITEA_TOKEN: gitea.token, GITLAB_TOKEN: runnerToken } });
  const marks = join(home.dir, 'marks');
  mkdirSync(marks);
  chmodSync(marks, 0o777);
  const common = { devices: 1, runtime: 'process', stop_grace: '1s', volumes: [`${marks}:/marks:rw`], ...pool };
  const late = { ...common, trust: { forks: 'refuse', others: 'refuse' } };
  const tokens = { gitea: { env: 'GITEA_TOKEN' }, gitlab: { env: 'GITLAB_TOKEN' } };
  home.configure(
    JSON.stringify({
      services: {
        forge: { type: 'gitea', url: gitea.url, token: tokens.gitea, poll: '1s', binding, agent: { from: giteaPrograms.runner } },
        lab: { type: 'gitlab', url: gitlab.url, token: tokens.gitlab, poll: '1s', agent: { from: gitlabRunner } },
      },
      pools: {
        gitea: { ...(binding === 'late' ? late : common), service: 'forge', queue: 'acme' },
        gitlab: { ...late, service: 'lab' },
        own: common,
      },
    }),
  );
  for (let n = 0; n < each.gitea; n++) await gitea.dispatch('acme/demo', 'a.yml');
  const labs = Array.from({ length: each.gitlab }, () => gitlab.queue({ script: [job('gitlab')] }));
  const daemon = await home.up();
  const own = [];
  for (let n = 0; n < each.own; n++) own.push(await home.api.submit({ command: ['sh', '-c', job('own')], pool: 'own' }));
  const said = new Set<string>();
  const listen = setInterval(
    () =>
      void home.api.call('GET /v1/plan').then(
        (lines) => lines.map(({ because }) => said.add(because)),
        () => {},
      ),
    200,
  );
  try {
    const ran = await gitea.until((all) => all.length === each.gitea && all.every(({ status }) => status === 'completed'), 180_000);
    for (const { id, conclusion } of ran)
      expect({ conclusion, log: await gitea.log('acme/demo', id) }).toEqual({ conclusion: 'success', log: expect.any(String) });
    await gitlab.until(() => labs.every(({ state }) => state === 'success' || state === 'failed'), 180_000);
    expect(labs.map(({ state, trace }) => ({ state, log: trace.toString() }))).toEqual(
      labs.map(() => ({ state: 'success', log: expect.stringContaining('gitlab done') })),
    );
    for (const { id } of own) expect((await home.api.settled(id)).result).toEqual({ kind: 'code', code: 0 });
  } finally {
    clearInterval(listen);
  }
  await daemon.stop();
  const uses = readdirSync(marks).map((name) => {
    const [from = '', to = ''] = readFileSync(join(marks, name), 'utf8').trim().split('\n');
    const [of = '', uuid = ''] = name.split('.');
    return { of, uuid, from: BigInt(from), to: BigInt(to) };
  });
  return { cards, uses: uses.toSorted((a, b) => Number(a.from - b.from)), said: [...said] };
}

describe.skipIf(lacks('gitea', 'gitlabRunner', 'bubblewrap', 'root'))('with the real Gitea', () => {
  const leased = { agents: 4, standby: false };
  test.each<[string, Case]>([
    ['that are shared out', { binding: 'early', cards: 4, pool: { agents: 1 }, each: { gitea: 16, gitlab: 16, own: 16 } }],
    ['leased for each job', { binding: 'early', cards: 4, pool: leased, each: { gitea: 16, gitlab: 16, own: 16 } }],
    ['leased for each job and question', { binding: 'late', cards: 4, pool: leased, each: { gitea: 16, gitlab: 16, own: 16 } }],
  ])('three services use four cards %s without an overlap', { timeout: 240_000 }, async (_, what) => {
    const { cards, uses } = await shared(what);
    expect(uses).toHaveLength(48);
    const byCard = Map.groupBy(uses, ({ uuid }) => uuid);
    if (what.pool === leased) expect([...byCard.keys()].toSorted()).toEqual(cards.map(({ uuid }) => uuid).toSorted());
    for (const sorted of byCard.values())
      for (const [at, { from }] of sorted.entries()) expect(from >= (sorted[at - 1]?.to ?? 0n)).toBe(true);
  });

  test.each(['early', 'late'] as const)('three services take turns on one card (%s)', { timeout: 240_000 }, async (binding) => {
    const { uses, said } = await shared({ binding, cards: 1, pool: leased, each: { gitea: 4, gitlab: 4, own: 24 } });
    const order = uses.map(({ of }) => of);
    for (const name of ['gitea', 'gitlab'] as const) {
      // Each waits for one job of each other service at most, from when its server told of it.
      const gaps = order.slice(order.indexOf(name), order.lastIndexOf(name)).join(' ').split(name);
      const longest = Math.max(...gaps.map((gap) => gap.split('own').length - 1));
      expect(longest, `${name} in ${order.join(' ')}`).toBeLessThanOrEqual(2);
    }
    expect(said).toContainEqual(
      expect.stringMatching(/no device is free for it; it has waited \d+ s, and (it is next|after pools? )/),
    );
  });
});
