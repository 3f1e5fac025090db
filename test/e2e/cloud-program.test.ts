/** A cloud by a program, from nothing to a receipt: the real onejob, the program for Incus, and a stand-in for what that calls. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { joinOf } from '../support/cloud-standins.ts';
import { incusLab, incusProvider, instancesOf, playInstances } from '../support/incus-lab.ts';
import { onejob } from '../support/onejob.ts';
import { playMachines } from '../support/played-machines.ts';
import { scratch } from '../support/scratch.ts';

const hasPython = spawnSync('python3', ['--version']).status === 0;

async function world(more = '') {
  await using parts = new AsyncDisposableStack();
  const { home, path } = incusLab(parts.use(scratch()).path);
  const { machines, broken, played } = playMachines();
  parts.use(playInstances(home, machines));
  const here = parts.use(await onejob({ config: '', env: { PATH: path, SECRET_OF_ANOTHER: 'kept' } }));
  here.configure(`
clouds: { lab: { type: command, program: "${incusProvider}", options: { remote: lab }, owner: acme-ci, shutdown_removes: true${more} } }
hosts: { burst: { cloud: lab, types: [gpu-large], prices: { gpu-large: 0.20 }, pools: { gpu: { agents: 1 } } } }
${await joinOf(here)}
pools: { local: { agents: 1, runtime: process } }
`);
  const owned = parts.move();
  return { home, here, broken, played, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

test.skipIf(!hasPython)('a machine comes, joins, drains, goes, and leaves a receipt', { timeout: 240_000 }, async () => {
  await using set = await world(', death_date: manager-only');
  const { here, home, played, broken } = set;
  const check = await here.cli(['cloud', 'check', 'burst']).ended;
  expect(check, check.stdout).toMatchObject({ code: 0, stdout: expect.stringContaining('finds nothing that is missing') });
  await here.up();
  const up = await here.cli(['cloud', 'up', 'burst']).ended;
  expect(up, up.stderr).toMatchObject({ code: 0 });
  const [machine] = played;
  expect(instancesOf(home)).toEqual([machine?.run]);
  const list = await here.cli(['cloud', 'list', '--json']).ended;
  expect(JSON.parse(list.stdout)).toMatchObject({ cloud: 'lab', kind: 'machine', run: machine?.run, state: 'running' });
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  expect(machine?.stages).toEqual(['booted', 'joined', 'drained']);
  expect(instancesOf(home)).toEqual([]);
  const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
  expect(JSON.parse(receipts.stdout)).toMatchObject({
    run: machine?.run,
    state: 'gone',
    end: 'onejob alone ("death_date: manager-only")',
    cost: expect.any(Number),
    absentAt: [expect.any(Number), expect.any(Number)],
  });
  expect(broken).toEqual([]);
  expect(readFileSync(join(home, 'calls'), 'utf8')).not.toContain(machine?.token ?? 'none');
});

test.skipIf(!hasPython)('a machine whose end the program does not confirm is removed at once', { timeout: 240_000 }, async () => {
  await using set = await world();
  const { here, home } = set;
  await here.up();
  const up = await here.cli(['cloud', 'up', 'burst', '--no-wait']).ended;
  expect(up, up.stderr).toMatchObject({ code: 0 });
  const machine = async () => (await here.api.machines())[0]?.machines[0];
  const ends = { state: 'ending', isFailure: true, why: expect.stringContaining('write "death_date: manager-only"') };
  await expect.poll(machine, { timeout: 120_000 }).toMatchObject(ends);
  await expect.poll(() => instancesOf(home), { timeout: 60_000 }).toEqual([]);
});
