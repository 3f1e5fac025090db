/** The simulated runtime as a subject of the runtime contract. */

import type { Recipe, Runtime } from '../../src/ports/runtime.ts';
import { bareRecipe } from '../kit/recipe.ts';
import type { ContractSubject } from '../kit/runtime-contract/contract.ts';
import { seeded } from '../support/seeded.ts';
import { SimEngine, type SimRuntimeOptions, scriptOfAct, simRuntime } from './runtime.ts';
import { SimTime } from './time.ts';

export const recipe: Recipe = { ...bareRecipe, image: 'box', pull: 'missing' };

const keepsNothing = 'it keeps no sandboxes for people';

/** Virtual ms that one case may take. */
const limit = 3_600_000;

/** Makes another runtime of a manager's; `owner` is undefined for the one that the contract looks at. */
export type Mutate = (engine: SimEngine, runtime: Runtime, owner: string | undefined) => Runtime;

/** Opens a subject whose waits are what moves virtual time. */
export function simSubject(options: SimRuntimeOptions = {}, mutate: Mutate = (_, runtime) => runtime) {
  return async (): Promise<ContractSubject> => {
    const time = new SimTime(seeded(1));
    const engine = new SimEngine(time, seeded(2));
    if (options.grants === true) engine.capacity = 1_000;
    const manager = (owner?: string): Runtime => {
      const runtime = simRuntime(engine, time.process(), { ...options, ...(owner !== undefined && { owner }) });
      return mutate(engine, runtime, owner);
    };
    return {
      runtime: manager(),
      recipe,
      remake: async () => manager(),
      stranger: async () => manager('somebody-else'),
      leftovers: async () => engine.left(),
      cleanup: async () => {},
      exceptions: {
        'kill-tree': 'it has no processes of this host',
        held: keepsNothing,
        'held-input': keepsNothing,
        'held-output': keepsNothing,
        'held-terminal': keepsNothing,
        'held-abort': keepsNothing,
        exec: 'it acts out one script',
        'exec-ends': 'it acts out one script',
      },
      script: scriptOfAct,
      async drive(work) {
        let isDone = false;
        const working = work().finally(() => {
          isDone = true;
        });
        working.catch(() => {});
        await time.run(() => isDone, limit);
        return working;
      },
    };
  };
}
