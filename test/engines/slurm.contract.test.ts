/** The runtime contract, with a real Slurm. */
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { SlurmConfig } from '../../src/runtimes/slurm/config.ts';
import { createSlurmRuntime } from '../../src/runtimes/slurm/slurm.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { plainRecipe } from '../kit/process-runtime.ts';
import { runtimeContract } from '../kit/runtime-contract/contract.ts';
import { startSlurm } from '../support/slurm.ts';

const alone = 'it runs nothing beside a script yet';
const keepsNothing = 'it keeps no sandboxes for people';

for (const [sandbox, isShared] of [
  ['bubblewrap', true],
  ['none', true],
  ['bubblewrap', false],
] as const) {
  runtimeContract(`slurm, sandbox ${sandbox}, ${isShared ? 'a shared folder' : 'nothing shared'}`, async () => {
    // Where nothing is shared, an agent that has ended keeps its grant until it is removed.
    const cluster = await startSlurm({ nodes: isShared ? 2 : 6 });
    const [shared, state, onNodes] = ['shared', 'state', 'nodes'].map((name) => join(cluster.folder, name)) as [
      string,
      string,
      string,
    ];
    for (const path of [shared, state, onNodes]) mkdirSync(path);
    const config: SlurmConfig = {
      type: 'slurm',
      name: 'cluster',
      folder: isShared ? shared : null,
      nodeFolder: onNodes,
      path: null,
      conf: cluster.env.SLURM_CONF ?? null,
      address: '127.0.0.1',
      poll: 200,
    };
    const make = async (owner = 'me') => createSlurmRuntime({ config, owner, clock: systemClock, stateDir: state });
    return {
      runtime: await make(),
      recipe: { ...plainRecipe, wants: { gpus: 0, model: null, images: false, lifetime: null, keys: { sandbox, modules: [] } } },
      remake: make,
      stranger: () => make('other'),
      async leftovers() {
        const jobs = await cluster.run('squeue', '-h', '-o', '%j');
        const agents = isShared ? join(shared, 'me', 'agents') : join(state, 'slurm', 'cluster', 'me', 'agents');
        return [
          ...jobs.split('\n').filter((line) => line !== ''),
          ...readdirSync(agents),
          ...readdirSync(onNodes).filter((name) => name.startsWith('onejob-me-')),
        ];
      },
      cleanup: async () => cluster[Symbol.asyncDispose](),
      exceptions: {
        held: keepsNothing,
        'held-input': keepsNothing,
        'held-output': keepsNothing,
        'held-terminal': keepsNothing,
        'held-abort': keepsNothing,
        exec: alone,
        'exec-ends': alone,
        door: 'its sandboxes are on other hosts, which reach nothing of this one',
        usage: 'it does not measure files on a file system of others',
        ...(sandbox === 'none' && {
          'kill-tree': 'what leaves its process group ends with the job of Slurm, if that has control groups',
        }),
      },
    };
  });
}
