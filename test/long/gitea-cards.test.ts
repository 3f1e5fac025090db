/** S1 with two services: jobs of the real Gitea and of the own queue on four stub cards, as plain processes in bubblewrap. */
import { chmodSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const each = 24;
/** Writes down which card it has, and from when to when. */
const job = 'f=/marks/$CUDA_VISIBLE_DEVICES.$(date +%s%N); date +%s%N >$f; sleep 0.3; date +%s%N >>$f';

describe.skipIf(lacks('gitea', 'bubblewrap', 'root'))('with the real Gitea', () => {
  test.each([
    ['cards of their own', 'early', {}],
    ['four cards, leased for each job', 'early', { agents: 4, standby: false }],
    ['four cards, leased for each job and each question for one', 'late', { agents: 4, standby: false }],
  ])('two services share %s (%s)', { timeout: 240_000 }, async (_, binding, more) => {
    await using gitea = await startGitea({ address: '127.0.0.1' });
    await gitea.repository('acme/demo', {
      '.gitea/workflows/a.yml': `on: workflow_dispatch\njobs:\n  j:\n    runs-on: gpu\n    steps:\n      - run: ${job}\n`,
    });
    const cards = Array.from({ length: 4 }, (_, n) => card(n));
    using host = gpuHost(cards);
    await using home = await onejob({ config: '', env: { ...host.env, GITEA_TOKEN: gitea.token } });
    const marks = join(home.dir, 'marks');
    mkdirSync(marks);
    chmodSync(marks, 0o777);
    const late = binding === 'late' ? { binding } : { boot_timeout: '30s' };
    const forge = { type: 'gitea', url: gitea.url, token: { env: 'GITEA_TOKEN' }, poll: '1s', ...late };
    const trust = binding === 'late' && { trust: { forks: 'refuse', others: 'refuse' } };
    const pool = { agents: 2, devices: 1, runtime: 'process', stop_grace: '1s', volumes: [`${marks}:/marks:rw`], ...more };
    home.configure(
      JSON.stringify({
        services: { forge: { ...forge, agent: { from: giteaPrograms.runner } } },
        pools: { gpu: { ...pool, service: 'forge', queue: 'acme', ...trust }, own: pool },
      }),
    );
    for (let n = 0; n < each; n++) await gitea.dispatch('acme/demo', 'a.yml');
    const daemon = await home.up();
    const own = [];
    for (let n = 0; n < each; n++) own.push(await home.api.submit({ command: ['sh', '-c', job], pool: 'own' }));
    const jobs = await gitea.until((all) => all.length === each && all.every(({ status }) => status === 'completed'), 180_000);
    for (const { id, conclusion } of jobs)
      expect({ conclusion, log: await gitea.log('acme/demo', id) }).toEqual({ conclusion: 'success', log: expect.any(String) });
    for (const { id } of own) expect((await home.api.settled(id)).result).toEqual({ kind: 'code', code: 0 });
    expect(await home.api.plan()).toEqual(binding === 'late' ? expect.any(Array) : []);
    await daemon.stop();

    const uses = readdirSync(marks).map((name) => {
      const [from = '', to = ''] = readFileSync(join(marks, name), 'utf8').trim().split('\n');
      return { uuid: name.split('.')[0], from: BigInt(from), to: BigInt(to) };
    });
    expect(uses).toHaveLength(2 * each);
    const byCard = Map.groupBy(uses, ({ uuid }) => uuid);
    expect([...byCard.keys()].toSorted()).toEqual(cards.map(({ uuid }) => uuid).toSorted());
    for (const of of byCard.values()) {
      const sorted = of.toSorted((a, b) => Number(a.from - b.from));
      for (const [at, { from }] of sorted.entries()) expect(from >= (sorted[at - 1]?.to ?? 0n)).toBe(true);
    }
  });
});
