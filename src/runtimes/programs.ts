/** Programs of onejob on this host that agents need where they run, such as the agent of a CI service. */
import { realpath } from 'node:fs/promises';
import { OnejobError } from '../base/errors.ts';
import type { Mount, Recipe } from '../ports/runtime.ts';

export function programsIn({ mounts }: Pick<Recipe, 'mounts'>): Mount[] {
  return mounts.filter(({ program }) => program === true);
}

/** Their files, and where sandboxes see them. @throws OnejobError E_MOUNT_MISSING if one is not there yet */
export function programFiles(recipe: Pick<Recipe, 'mounts'>): Promise<{ readonly file: string; readonly container: string }[]> {
  return Promise.all(
    programsIn(recipe).map(async ({ host, container }) => {
      const file = await realpath(host).catch((cause: unknown) => {
        throw new OnejobError('E_MOUNT_MISSING', `The program ${host} is not there.`, { retry: true, cause });
      });
      return { file, container };
    }),
  );
}
