/** What one agent of a pool will say it can do: from its image, its devices and the pool's tags. */
import type { AgentContext } from '../ci-service.ts';
import { advertised, type Capabilities, gpuCapabilities, sharedCapabilities, tagCapabilities } from './capabilities.ts';
import { type AgentInside, lookInside, readInside } from './look-inside.ts';

export interface AgentKind {
  readonly inside: AgentInside;
  /** Written into the agent's `.capabilities`: what it would not find out by itself. */
  readonly told: Capabilities;
  /** All that it will say, as far as that is known before it was online. */
  readonly all: Capabilities;
  /** What others of its kind say as well. */
  readonly shared: Capabilities;
  /** The pool of the config. */
  readonly pool: string;
  /** One word for `shared` without what the agent's first session will say better. */
  readonly set: string;
}

/** @throws OnejobError of the sandbox that is asked */
export async function kindOf(context: AgentContext, tags: readonly string[], signal: AbortSignal): Promise<AgentKind> {
  const inside = readInside(await context.ask(lookInside, signal));
  const devices = { ...tagCapabilities(tags), ...gpuCapabilities(context.devices, context.cuda) };
  const told = { ...devices, 'onejob.name': context.name, 'onejob.pool': context.pool, 'onejob.slot': context.slot };
  const own: Record<string, string> = {
    'Agent.OS': 'Linux',
    'Agent.OSArchitecture': inside.arch === 'aarch64' || inside.arch === 'arm64' ? 'ARM64' : 'X64',
    InteractiveSession: 'False',
    ...(inside.version !== null && { 'Agent.Version': inside.version }),
    ...(inside.root !== null && { 'Agent.HomeDirectory': inside.root }),
  };
  const all = { ...advertised(inside.environment), ...inside.tools, ...told, ...own };
  const shared = sharedCapabilities(all);
  return { inside, told, all, shared, pool: context.pool, set: JSON.stringify([context.pool, sharedCapabilities(devices)]) };
}
