/**
 * Names by which onejob knows its own at the service. An agent's name is never used again: a name that comes back while its old
 * session lives is refused for minutes (agent `MessageListener.cs`). Only names with this installation's mark are ever touched.
 */
import { createHash } from 'node:crypto';
import type { AgentId } from '../../core/slot.ts';

/** `owner`: id of the installation, at least 8 hex digits. */
export interface Marks {
  /** Of one agent: its name in the config, the installation, itself. */
  agentName(name: string, agent: AgentId): string;
  /** Whose name that is; null for any that is not an agent of this installation. */
  agentOf(name: string): AgentId | null;
  /** Of the registration that stands for a set of capabilities and never goes online. */
  placeholderName(set: string): string;
  isPlaceholder(name: string): boolean;
}

export function createMarks(owner: string): Marks {
  const mark = owner.slice(0, 8);
  const own = new RegExp(`-${mark}-([0-9a-z]+)$`);
  const placeholders = `onejob-placeholder-${mark}-`;
  return {
    agentName: (name, agent) => `${name}-${mark}-${agent}`,
    agentOf: (name) => (name.startsWith(placeholders) ? null : (own.exec(name)?.[1] ?? null)),
    placeholderName: (set) => `${placeholders}${createHash('sha256').update(set).digest('hex').slice(0, 8)}`,
    isPlaceholder: (name) => name.startsWith(placeholders),
  };
}
