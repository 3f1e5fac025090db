/** The runtime contract, with real Slurms. */
import { mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe } from 'vitest';
import type { SlurmConfig } from '../../src/runtimes/slurm/config.ts';
import { createSlurmRuntime } from '../../src/runtimes/slurm/slurm.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { plainRecipe } from '../kit/process-runtime.ts';
import { type ContractSubject, runtimeContract } from '../kit/runtime-contract/contract.ts';
import { lacks } from '../support/require.ts';
import { type SlurmVersion, slurmVersions, startSlurm } from '../support/slurm.ts';

const alone = 'it runs nothing beside a script yet';
const keepsNothing = 'it keeps no sandboxes for people';

const kinds = [
  { sandbox: 'bubblewrap', isShared: true },
  { sandbox: 'none', isShared: true },
  { sandbox: 'bubblewrap', isShared: false },
] as const;

describe.each(slurmVersions)('Slurm, $version', ({ version, need }) => {
  describe.skipIf(lacks(need))('on its nodes', () => {
    for (const kind of kinds) {
      const { sandbox, isShared } = kind;
      runtimeContract(`slurm, sandbox ${sandbox}, ${isShared ? 'a shared folder' : 'nothing shared'}`, () =>
        subject(version, kind),
      );
    }
  });
});

async function subject(version: SlurmVersion, { sandbox, isShared }: (typeof kinds)[number]): Promise<ContractSubject> {
  // Where nothing is shared, an agent that has ended keeps its grant until it is removed.
  const cluster = await startSlurm({ version, nodes: isShared ? 2 : 6 });
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
    path: cluster.path,
    conf: cluster.env.SLURM_CONF ?? null,
    address: '127.0.0.1',
    poll: 200,
  };
  const make = async (owner = 'me') => createSlurmRuntime({ config, owner, clock: systemClock, stateDir: state });
  return {
    runtime: await make(),
    recipe: {
      ...plainRecipe,
      wants: { gpus: 0, model: null, images: false, folders: true, lifetime: null, keys: { sandbox, modules: [] } },
    },
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
}
