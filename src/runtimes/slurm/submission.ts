/** What Slurm is asked for with an agent's batch script. */
import { OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { EngineWants, Recipe } from '../../ports/runtime.ts';
import type { SlurmPool } from './config.ts';
import { pyxisOptions } from './sandboxes.ts';
import { jobName } from './states.ts';

export function wantsOf({ wants }: Recipe): EngineWants {
  if (wants === undefined) throw new OnejobError('E_BUG', 'A sandbox for Slurm does not say what it wants of it.');
  return wants;
}

export interface Submission {
  readonly comment: string;
  /** Its folder, and where it tells that it begins and ends, if nodes share them. */
  readonly folder: string | null;
  readonly marks: string;
  /** Programs that it needs, by the path of the sandbox: their path on the node. */
  readonly programs: ReadonlyMap<string, string>;
  readonly recipe: Recipe;
  /** Names of nodes. */
  readonly avoided: readonly string[];
}

/** Options of sbatch: https://slurm.schedmd.com/sbatch.html */
export function submitOptions(agent: AgentId, { comment, folder, marks, programs, recipe, avoided }: Submission): string[] {
  const { gpus, model, lifetime, keys } = wantsOf(recipe);
  const { modules: _, sandbox, image = '', time: __, exclude, ...named } = keys as SlurmPool;
  const excluded = [...(exclude === undefined ? [] : [exclude]), ...avoided];
  const minutes = lifetime === null ? null : Math.ceil(lifetime / 60_000);
  return [
    `--job-name=${jobName(agent)}`,
    `--comment=${comment}`,
    // A job that ran may not run again, whatever becomes of its node.
    '--no-requeue',
    // A manager that died after its submission submits again.
    '--dependency=singleton',
    '--nodes=1',
    '--ntasks=1',
    ...(folder === null ? ['--chdir=/', '--output=/dev/null'] : [`--chdir=${folder}`, `--output=${folder}/batch.log`]),
    '--open-mode=append',
    ...(minutes === null ? [] : [`--time=${minutes}`]),
    ...(recipe.cpus === null ? [] : [`--cpus-per-task=${Math.ceil(recipe.cpus)}`]),
    ...(recipe.memory === null ? [] : [`--mem=${Math.ceil(recipe.memory / 2 ** 20)}M`]),
    ...(gpus === 0 ? [] : [`--gres=gpu:${model === null ? '' : `${model}:`}${gpus}`]),
    ...(excluded.length === 0 ? [] : [`--exclude=${excluded.join(',')}`]),
    ...(sandbox === 'pyxis' && folder !== null ? pyxisOptions({ recipe, image, programs }, [folder, marks]) : []),
    ...Object.entries(named).flatMap(([option, value]) => (typeof value === 'string' ? [`--${option}=${value}`] : [])),
  ];
}
