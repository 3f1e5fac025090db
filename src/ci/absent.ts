/**
 * Stands for a CI service that config does not name any more, while there is still something of its own in a slot. Without its
 * credential nothing can be asked or removed there, so an agent that waits for a job is left to itself rather than ended with one.
 */
import { OnejobError } from '../errors.ts';
import type { CiService } from './ci-service.ts';

export function absentService(name: string): CiService {
  const absent = (): OnejobError =>
    new OnejobError('E_CI_UNREACHABLE', `The CI service "${name}" is not in the config any more, so nobody can ask it.`, {
      hint: 'Put it back until its agents are gone, or end them with "onejob down".',
      retry: true,
    });
  return {
    name,
    capabilities: { binds: 'early', canCountQueue: false, standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    jobs: null,
    check: async () => [],
    observe() {},
    register: async () => {
      throw absent();
    },
    deregister: async () => ({ ran: undefined }),
    retire: async () => {
      throw absent();
    },
    blame: () => ({ code: 'E_AGENT_ENDED', message: 'The agent ended.', retry: true }),
  };
}
