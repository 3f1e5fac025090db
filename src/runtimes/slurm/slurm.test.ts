/** What sbatch is asked for. */
import { expect, it } from 'vitest';
import { plainRecipe } from '../../../test/kit/process-runtime.ts';
import { AvoidedNodes } from '../avoided.ts';
import { submitOptions } from './submission.ts';

const wants = { gpus: 0, model: null, images: false, folders: true, lifetime: null, keys: { sandbox: 'bubblewrap', modules: [] } };
const programs = new Map([['/onejob/runner', '/shared/me/programs/runner-1/runner']]);
const options = (recipe: object, avoided: readonly string[] = []) =>
  submitOptions('a1', {
    comment: 'onejob:me',
    folder: '/shared/a1',
    marks: '/shared/marks',
    programs,
    recipe: { ...plainRecipe, wants, ...recipe },
    avoided,
  });

it('never runs again, is found by its name, and writes into its folder', () => {
  expect(options({})).toEqual(
    expect.arrayContaining([
      '--job-name=oj-a1',
      '--comment=onejob:me',
      '--no-requeue',
      '--dependency=singleton',
      '--chdir=/shared/a1',
    ]),
  );
});

it('has what the pool asks for, and what Slurm chooses for what it does not', () => {
  const keys = { ...wants.keys, partition: 'gpu', constraint: 'a100&nvlink', exclude: 'n9' };
  const asked = options(
    { cpus: 2.5, memory: 3 * 2 ** 30 + 1, wants: { ...wants, gpus: 2, model: 'a100', lifetime: 90_500, keys } },
    ['n1'],
  );
  expect(asked).toEqual(
    expect.arrayContaining([
      '--cpus-per-task=3',
      '--mem=3073M',
      '--gres=gpu:a100:2',
      '--time=2',
      '--partition=gpu',
      '--constraint=a100&nvlink',
      '--exclude=n9,n1',
    ]),
  );
  expect(options({}).filter((option) => /^--(time|mem|gres|cpus|exclude|partition)/.test(option))).toEqual([]);
});

it('runs all of the batch script in a container of pyxis, with what it needs of the node', () => {
  const program = { host: '/state/tools/at-1/runner', container: '/onejob/runner', readOnly: true, variable: null, cache: null };
  const data = { host: '/data', container: '/data', readOnly: false, variable: null, cache: null };
  const keys = { sandbox: 'pyxis', modules: [], image: 'nvcr.io#nvidia/pytorch:24.10' };
  const asked = options({ wants: { ...wants, keys }, mounts: [program, data] });
  expect(asked.filter((option) => /container|image/.test(option))).toEqual([
    '--container-image=nvcr.io#nvidia/pytorch:24.10',
    '--no-container-mount-home',
    '--container-mounts=/shared/a1:/shared/a1,/shared/marks:/shared/marks,/shared/me/programs/runner-1/runner:/onejob/runner:ro,/data:/data:rw',
  ]);
});

it('avoids a node for a quarter of an hour from when it was first seen to be unfit', () => {
  let now = 0;
  const avoided = new AvoidedNodes({ now: () => now });
  avoided.add({ node: 'n1', why: 'a' });
  now = 10 * 60_000;
  avoided.add({ node: 'n1', why: 'b' });
  expect(avoided.now).toEqual([{ node: 'n1', why: 'a', left: 300_000 }]);
  now = 15 * 60_000;
  expect(avoided.now).toEqual([]);
});
