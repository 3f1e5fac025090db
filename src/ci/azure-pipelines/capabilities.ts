/**
 * What an agent says it can do, from its image, its devices and its pool's tags, so that jobs can demand it. Demands compare no
 * numbers (docs demands.md), so values are written the way a person would type them.
 */
import type { Device } from '../../gpu/inventory.ts';
import type { AgentContext } from '../ci-service.ts';
import { lookInside, readInside } from './look-inside.ts';

export type AgentKind = Readonly<Awaited<ReturnType<typeof kindOf>>>;

/**
 * `told`: written into `.capabilities`, because the agent would not find it out itself. `all`: what is known before it is online.
 * `shared`: what others of its kind say too. `set`: one word for `shared` without what the agent's first session will say better.
 */
export async function kindOf(context: AgentContext, tags: readonly string[], signal: AbortSignal) {
  const inside = readInside(await context.ask(lookInside, signal));
  const devices = { ...tagCapabilities(tags), ...gpuCapabilities(context.devices, context.cuda) };
  const told: Capabilities = { ...devices, 'onejob.name': context.name, 'onejob.pool': context.pool, 'onejob.slot': context.slot };
  const own: Record<string, string> = {
    'Agent.OS': 'Linux',
    'Agent.OSArchitecture': inside.arch === 'aarch64' || inside.arch === 'arm64' ? 'ARM64' : 'X64',
    InteractiveSession: 'False',
    ...(inside.version !== null && { 'Agent.Version': inside.version }),
    ...(inside.root !== null && { 'Agent.HomeDirectory': inside.root }),
  };
  const all: Capabilities = { ...advertised(inside.environment), ...inside.tools, ...told, ...own };
  const shared = sharedCapabilities(all);
  return { inside, told, all, shared, pool: context.pool, set: JSON.stringify([context.pool, sharedCapabilities(devices)]) };
}

export type Capabilities = Readonly<Record<string, string>>;

/** Longest value that the service takes from an agent, in characters (agent `EnvironmentCapabilitiesProvider.cs`). */
const longest = 1023;

/** Of the devices an agent was granted; empty without devices. */
export function gpuCapabilities(devices: readonly Device[], cuda: string | null): Capabilities {
  const [first] = devices;
  if (first === undefined) return {};
  const memory = Math.min(...devices.map(({ memoryMiB }) => memoryMiB ?? Number.POSITIVE_INFINITY));
  const found: Record<string, string | null> = {
    'gpu.count': String(devices.length),
    'gpu.model': first.model,
    'gpu.vendor': first.vendor,
    'gpu.memory': Number.isFinite(memory) ? String(Math.floor(memory / 1024)) : null,
    'gpu.mig': first.mig !== null && 'profile' in first.mig ? first.mig.profile : null,
    compute: first.computeCapability,
    cuda: first.vendor === 'nvidia' ? cuda : null,
  };
  return Object.fromEntries(Object.entries(found).flatMap(([key, value]) => (value === null ? [] : [[key, oneLine(value)]])));
}

/** Of a pool's tags, each `key` or `key=value`; the last value of a key counts. */
export function tagCapabilities(tags: readonly string[]): Capabilities {
  return Object.fromEntries(
    tags.map((tag) => {
      const at = tag.indexOf('=');
      return at === -1 ? [tag.trim(), 'true'] : [tag.slice(0, at).trim(), oneLine(tag.slice(at + 1))];
    }),
  );
}

/** As a `.capabilities` file: one `KEY=VALUE` a line (agent `UserCapabilitiesProvider.cs`). */
export function capabilitiesFile(capabilities: Capabilities): string {
  return Object.entries(capabilities)
    .map(([key, value]) => `${key}=${value}\n`)
    .join('');
}

/** Capabilities of one agent, which say nothing about others of its kind. */
const personal = /^(?:Agent\.(?:Name|ComputerName)|HOSTNAME|InteractiveSession|PWD|OLDPWD|HOME|_)$|^onejob\.(?:name|slot)$/i;

/** Variables of a shell and its sandbox, and those that agents omit (agent `EnvironmentCapabilitiesProvider.cs`). */
const passing = /^(?:HOSTNAME|PWD|OLDPWD|SHLVL|_|TERM|LS_COLORS|PS1|SYSTEM_ACCESSTOKEN|VSO_AGENT_IGNORE)$/i;

/** The environment that an agent publishes: without what its image excludes. */
export function advertised(environment: Capabilities): Capabilities {
  const ignored = new Set((environment.VSO_AGENT_IGNORE ?? '').split(',').map((name) => name.trim().toLowerCase()));
  const isShown = (name: string) => !passing.test(name) && !ignored.has(name.toLowerCase());
  return Object.fromEntries(Object.entries(environment).filter(([name, value]) => isShown(name) && value.length <= longest));
}

/** What all agents of a kind have in common: what a placeholder may promise. */
export function sharedCapabilities(capabilities: Capabilities): Capabilities {
  const shared = Object.entries(capabilities).filter(([key, value]) => !personal.test(key) && value.length <= longest);
  return Object.fromEntries(shared.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function oneLine(text: string): string {
  return text.replaceAll(/\s+/g, ' ').trim().slice(0, longest);
}
