import { join } from 'node:path';
import { type CiSubject, ciServiceContract } from '../../../test/kit/ci-contract.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { jobRequest } from '../../contract/job.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { openStore } from '../../store/store.ts';
import { createOwnQueue } from './own-queue.ts';

async function open(): Promise<CiSubject> {
  const dir = scratch();
  const store = openStore(join(dir.path, 'state'));
  // The suite asks for nothing that would look into the recipe.
  const recipe = { image: null, mounts: [] } as unknown as Recipe;
  const devices = { count: 0 } as never;
  const service = createOwnQueue({ store, pools: [{ name: 'p', runtime: null, timeout: null, recipe, devices, standby: true }] });
  return {
    service,
    pool: 'p',
    enqueue: async () => service.submit(jobRequest.parse({ command: ['true'] })).id,
    commit(write, outcome) {
      try {
        store.transaction({ durable: false }, () => {
          write();
          if (outcome === 'rolledBack') throw new Error('rolled back');
        });
        service.jobs.committed();
      } catch {
        service.jobs.rolledBack();
      }
    },
    async close() {
      await service.close();
      store.close();
      dir[Symbol.dispose]();
    },
  };
}

ciServiceContract('own queue', open, 'late');
