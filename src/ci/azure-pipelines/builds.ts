/** The build that a job belongs to: asked once each, and not at all any more once the credential turns out to have no right to it. */
import { OnejobError } from '../../errors.ts';
import type { AzureClient } from './client.ts';
import type { Build, JobRequest } from './wire.ts';

export interface Builds {
  /** null when it is not a build's, or nobody may or can say. */
  of(request: JobRequest, signal: AbortSignal): Promise<Build | null>;
  /** Whether the credential may not read builds. */
  readonly isDenied: boolean;
}

const remembered = 256;

export function createBuilds(client: Pick<AzureClient, 'build'>): Builds {
  const known = new Map<string, Build | null>();
  let isDenied = false;
  return {
    async of({ planType, scopeId, owner }, signal) {
      if (isDenied || scopeId === null || owner === null || (planType !== null && planType !== 'Build')) return null;
      const key = `${scopeId} ${owner.id}`;
      const found = known.get(key);
      if (found !== undefined) return found;
      try {
        const build = await client.build(scopeId, owner.id, signal);
        known.set(key, build);
        for (const old of [...known.keys()].slice(0, -remembered)) known.delete(old);
        return build;
      } catch (error) {
        signal.throwIfAborted();
        // Only for people: a job is run whether its build can be read or not.
        if (error instanceof OnejobError && error.code === 'E_CI_DENIED') isDenied = true;
        return null;
      }
    },
    get isDenied() {
      return isDenied;
    },
  };
}
