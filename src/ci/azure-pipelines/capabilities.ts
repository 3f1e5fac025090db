/**
 * What an agent says it can do, from its image, its devices and its pool's tags, so that jobs can demand it. Demands compare no
 * numbers (docs demands.md), so values are written the way a person would type them.
 */
import { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import type { Device } from '../../gpu/inventory.ts';
import type { AgentContext } from '../../ports/ci-service.ts';
import { ifWritable } from '../kit/in-image.ts';

/** Agents that can do the same. */
export interface AgentKind {
  readonly inside: AgentInside;
  /** Written into `.capabilities`, because the agent would not find it out itself. */
  readonly told: Capabilities;
  /** What is known before it is online. */
  readonly all: Capabilities;
  /** What others of its kind say too. */
  readonly shared: Capabilities;
  /** Of the config. */
  readonly pool: string;
  /** One word for `shared` without what the agent's first session will say better. */
  readonly set: string;
}

export async function kindOf(context: AgentContext, tags: readonly string[], signal: AbortSignal): Promise<AgentKind> {
  const inside = readInside(await context.ask(signal));
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

/** Capabilities of one agent, which say nothing about others of its kind: its names, and what an engine says of its own grant. */
const personal =
  /^(?:Agent\.(?:Name|ComputerName)|HOSTNAME|InteractiveSession|PWD|OLDPWD|HOME|_)$|^onejob\.(?:name|slot)$|^SLURM|_VISIBLE_DEVICES$|^GPU_DEVICE_ORDINAL$/i;

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

/** Where images have an agent; the first that has one counts. From onejob, Microsoft's page for containers, and other images. */
const roots = '/opt/agent /azp/agent /azp /agent /vsts/agent /vsts /home/agent/agent /opt/azp /opt/azp/agent';
const starts = '/azp/start.sh /start.sh /vsts/start.sh /opt/azp/start.sh';
/** Agents look for these on the PATH (agent `NixCapabilitiesProvider`). */
const tools = 'ant bundle clang cmake curl docker git gulp java make mvn node npm python python3 ruby sh bash';

/**
 * As `CiService.asks`: what an image contains, such as the version of its agent, where its files belong, and its tools. Builtins
 * only, but for the agent itself.
 */
export const lookInside = [
  `for d in "\${ONEJOB_AGENT_ROOT:-}" ${roots}; do`,
  '  [ -n "$d" ] && [ -f "$d/bin/Agent.Listener" ] || continue',
  `  printf 'root=%s\\n' "$d"`,
  ifWritable('Agent.Listener'),
  // Only a failed call has its warnings read.
  '  if v=$(AGENT_ALLOW_RUNASROOT=1 "$d/bin/Agent.Listener" --version 2>/dev/null); then',
  `    printf 'version=%s\\n' "$v"; else`,
  `    printf 'problem=%s\\n' "$(AGENT_ALLOW_RUNASROOT=1 "$d/bin/Agent.Listener" --version 2>&1)"; fi`,
  '  break',
  'done',
  `for f in ${starts}; do if [ -f "$f" ]; then printf 'start=%s\\n' "$f"; break; fi; done`,
  `for t in ${tools}; do if p=$(command -v "$t"); then printf 'tool=%s=%s\\n' "$t" "$p"; fi; done`,
  `while IFS= read -r l; do case $l in Uid:*) set -- $l; printf 'uid=%s\\n' "$2"; break;; esac; done </proc/self/status`,
  `printf 'arch=%s\\n' "$(uname -m 2>/dev/null || echo unknown)"`,
  `printf 'environment\\n'`,
  'export -p',
].join('\n');

const version = z.string().regex(/^\d+\.\d+\.\d+/);

/** What an image contains. */
export interface AgentInside {
  /** Folder of the agent. */
  readonly root: string | null;
  /** Of `Agent.Listener --version`; null when it does not run. */
  readonly version: string | null;
  /** What it printed instead. */
  readonly problem: string | null;
  readonly uid: number;
  /** Whether the agent's folder can be written. */
  readonly isWritable: boolean;
  /** The image's own start script. */
  readonly start: string | null;
  /** What the agent will find and publish. */
  readonly environment: Capabilities;
  /** Programs that the agent looks for, by the name that it gives them. */
  readonly tools: Capabilities;
  readonly arch: string;
}

/** @throws OnejobError E_GATE_ENDED when the answer is not that script's */
export function readInside(answer: string): AgentInside {
  const found = new Map<string, string>();
  const seen: Record<string, string> = {};
  const [facts = '', exported = ''] = answer.split(/^environment\n/m, 2);
  for (const line of facts.split('\n')) {
    const at = line.indexOf('=');
    if (at === -1) continue;
    const [key, value] = [line.slice(0, at), line.slice(at + 1)];
    const tool = key === 'tool' ? value.indexOf('=') : -1;
    if (tool !== -1) seen[value.slice(0, tool)] = value.slice(tool + 1);
    else if (!found.has(key)) found.set(key, value);
  }
  const uid = found.get('uid');
  if (uid === undefined)
    throw new OnejobError('E_GATE_ENDED', 'Cannot inspect the image: the script that inspects it did not finish.', { retry: true });
  const said = found.get('version') ?? null;
  const known = version.safeParse(said?.trim());
  return {
    root: found.get('root') ?? null,
    version: known.success ? known.data : null,
    problem: known.success ? null : (found.get('problem') ?? said),
    uid: Number(uid),
    isWritable: found.get('writable') === 'yes',
    start: found.get('start') ?? null,
    environment: environmentOf(exported),
    tools: seen,
    arch: found.get('arch') ?? 'unknown',
  };
}

/** A value as a shell's `export -p` writes it: pieces, each quoted in its own way, or not at all. */
const piece = String.raw`'[^']*'|"(?:[^"\\]|\\[\s\S])*"|\$'(?:[^'\\]|\\[\s\S])*'|\\[\s\S]|[^'"\\\s]`;
const exports = new RegExp(`^(?:export|declare -x) ([A-Za-z_][A-Za-z0-9_]*)=((?:${piece})*)$`, 'gm');

/** Without the gate's own, and without values of several lines, which no job can demand. */
function environmentOf(exported: string): Capabilities {
  const found = [...exported.matchAll(exports)].map(([, name = '', value = '']) => [name, unquote(value)] as const);
  return Object.fromEntries(found.filter(([name, value]) => !name.startsWith('_oj') && !value.includes('\n')));
}

function unquote(text: string): string {
  const plain = (text.match(new RegExp(piece, 'g')) ?? []).map((one) => {
    if (one.startsWith("'")) return one.slice(1, -1);
    if (one.startsWith("$'")) return withBytes(one.slice(2, -1));
    return (one.startsWith('"') ? one.slice(1, -1) : one).replaceAll(/\\([\s\S])/g, '$1');
  });
  return plain.join('');
}

/** As bash writes bytes that its locale does not know: as octal numbers. */
function withBytes(text: string): string {
  const bytes = (text.match(/\\[0-7]{3}|\\[\s\S]|[^\\]+/g) ?? []).map((one) => {
    if (/^\\[0-7]/.test(one)) return Buffer.from([Number.parseInt(one.slice(1), 8)]);
    if (!one.startsWith('\\')) return Buffer.from(one);
    return Buffer.from(one === '\\n' ? '\n' : one === '\\t' ? '\t' : one.slice(1));
  });
  return Buffer.concat(bytes).toString();
}
