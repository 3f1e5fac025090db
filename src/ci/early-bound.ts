/** What a service that binds early, and sees no job before its agent has it, answers where it is asked about slots and jobs. */
import type { CiService } from './ci-service.ts';

export const seesNoJobs = {
  next: () => null,
  offer() {},
  waits: () => null,
  equip: (recipe) => recipe,
  devicesFor: () => null,
  recipeFor: () => null,
  record() {},
  committed() {},
  syncing: () => () => {},
  rolledBack() {},
} satisfies Partial<CiService>;
