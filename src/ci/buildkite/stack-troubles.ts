/** Why jobs of queues cannot be had, for status and doctor. */
import { OnejobError } from '../../errors.ts';
import type { Finding } from '../../runtimes/runtime.ts';

export interface StackTroubles {
  /** null: all is well with the queue. */
  set(queue: string, problem: string | null): void;
  /** The first there is. */
  readonly first: string | null;
  findings(service: string): Finding[];
}

export function createStackTroubles(): StackTroubles {
  const problems = new Map<string, string>();
  return {
    set(queue, problem) {
      if (problem === null) problems.delete(queue);
      else problems.set(queue, problem);
    },
    get first() {
      return [...problems.values()][0] ?? null;
    },
    findings(service) {
      const hint = 'Write "mode: hold" where the token is of no cluster; else look at what the service says.';
      return [...problems.values()].map((message) => ({ level: 'error', subject: `service ${service}`, message, hint }));
    },
  };
}

/** A stack that is refused is mostly one of a token that may have none. */
export function whyRefused(error: unknown): unknown {
  if (!(error instanceof OnejobError) || (error.code !== 'E_CI_DENIED' && error.code !== 'E_CI_CREDENTIAL')) return error;
  const hint = '"mode: acquire" needs the token of a cluster that may use its stacks; write "mode: hold" for any other.';
  return new OnejobError(error.code, error.message, { hint, retry: error.retry, cause: error });
}
