/** The runtime contract, with real processes of this host. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { runtimeContract } from '../../../test/kit/runtime-contract/contract.ts';
import { createProcessRuntime } from './process.ts';

const alone = 'it runs nothing next to a script yet';

for (const bubblewrap of ['auto', 'off'] as const) {
  runtimeContract(`process, bubblewrap ${bubblewrap}`, async () => {
    const dir = mkdtempSync(join(tmpdir(), 'onejob-process-'));
    const owner = `test-${process.pid}-${bubblewrap}`;
    const make = () => createProcessRuntime({ owner, dir, bubblewrap });
    return {
      runtime: await make(),
      recipe: plainRecipe,
      remake: make,
      stranger: () => createProcessRuntime({ owner: `${owner}-other`, dir: join(dir, 'other'), bubblewrap }),
      leftovers: async () => leftoversOf(dir, owner),
      cleanup: async () => rmSync(dir, { recursive: true, force: true }),
      exceptions: { exec: alone, 'exec-ends': alone },
    };
  });
}
