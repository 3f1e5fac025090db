/**
 * Ids as services give them: of jobs, agents, sessions, machines. They become parts of paths, names of files, words of messages and of
 * command lines, so each edge accepts only what is harmless in all of these. UUIDs, numbers and names of things in clouds are.
 */
import { z } from 'zod';

const pattern = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/;

export const serviceId = z.string().regex(pattern, 'is not an id: only letters, digits and ".", "_", ":", "-" are, 128 at most');

export function isServiceId(text: string): boolean {
  return pattern.test(text);
}
