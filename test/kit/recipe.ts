/** What a pool without further keys asks of its runtime, as tests begin with it. */
import type { Recipe } from '../../src/ports/runtime.ts';

export const bareRecipe: Recipe = {
  image: null,
  pull: 'never',
  env: {},
  mounts: [],
  cpus: null,
  memory: null,
  pids: null,
  shmSize: null,
  ulimits: [],
  network: 'default',
  user: null,
  readOnly: false,
  tmpfs: {},
  capAdd: [],
  oomScoreAdj: 0,
  grant: { way: 'auto', capabilities: [], numa: false },
  unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
};
