/** What the drop-in's arguments mean as a config. Pure, but for the folders that volumes name. */
import { realpathSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { Document, isMap } from 'yaml';
import type { CardShare } from '../../cli/share-cards.ts';
import { interpret } from '../../config/interpret.ts';
import { configError, type Instead } from '../../config/load.ts';
import { formatDuration } from '../../config/units.ts';
import { formatVolume, pathProblem } from '../../config/volumes.ts';
import { OnejobError } from '../../errors.ts';
import type { Mount } from '../../runtimes/runtime.ts';
import type { SecretReference } from '../../secrets/reference.ts';

export interface DropIn {
  /** Of the organisation or collection. */
  readonly url: string;
  readonly pool: string;
  readonly agents: number;
  /** Agents are called NAME_0, NAME_1, … */
  readonly name: string;
  /** null: the one that onejob builds for this host. */
  readonly image: string | null;
  /** ms between two looks at the service; null for the default. */
  readonly poll: number | null;
  readonly volumes: readonly Mount[];
  readonly cards: CardShare;
}

/** How a config file refers to a token. */
export type WrittenToken = { readonly file: string } | { readonly env: string };

/** ms. Shortest time between two looks at the service. */
const leastPoll = 2000;
/** ms. With a slow poll, an agent must not be given up before onejob can see it. */
const usualBoot = 180_000;

/** As in the Python manager: when memory runs out, the kernel kills agents first. */
const killedFirst = 1000;

function plain(given: DropIn, token: WrittenToken) {
  const { url, pool, agents, name, image, poll, volumes, cards } = given;
  const times = poll === null ? {} : { poll: formatDuration(poll), boot_timeout: formatDuration(Math.max(usualBoot, 2 * poll)) };
  return {
    services: { azure: { type: 'azure-pipelines', url, token, ...times } },
    pools: {
      azure: {
        service: 'azure',
        queue: pool,
        name: `${name}_{0..}`,
        agents,
        devices: cards.devices,
        image: image ?? 'auto',
        oom_score_adj: killedFirst,
        ...(volumes.length > 0 && { volumes: volumes.map(formatVolume) }),
      },
    },
  };
}

/** The config of the drop-in, with a reference to the token. @throws OnejobError E_CONFIG for an invalid argument */
export function dropInConfig(given: DropIn, token: SecretReference): Instead {
  const name = 'the command line';
  const place = { source: name, line: null, column: null };
  const value = plain(given, { env: 'AZP_TOKEN' });
  const { written, problems } = interpret({ value, locate: () => place });
  if (problems.length > 0) throw configError(problems);
  const keys = {
    ...written.services.get('azure')?.keys,
    token,
    // Nobody knows yet whether a foreign image contains an agent.
    ...(given.image !== null && { registration: 'auto' }),
  };
  return { name, written: { ...written, services: new Map([['azure', { type: 'azure-pipelines', keys }]]) } };
}

/** The same as a file. `remark`: how the file with the token is made, or null. */
export function dropInFile(given: DropIn, token: WrittenToken, remark: string | null): string {
  const before = remark === null ? '' : `# ${remark}\n`;
  const file = new Document(plain(given, token));
  const service = file.getIn(['services', 'azure'], true);
  // A config file cannot say `auto`, so its author decides.
  if (given.image !== null && isMap(service))
    service.comment = ' registration: image    # if the image has no agent but a start script of its own; it is given the token';
  return (before + file.toString({ lineWidth: 0 })).trimEnd();
}

/** `--poll-time` in ms, at least what the service allows. */
export function pollTime(seconds: number): number {
  return Math.max(leastPoll, seconds * 1000);
}

/** Variables that the Python manager gave to its containers by itself. */
const taken = ['AZP_URL', 'AZP_TOKEN', 'AZP_AGENT_NAME', 'AZP_POOL'];

/** `HOST:CONTAINER:VARIABLE` each, read-only; the third part is always a variable, even `ro`. @throws OnejobError E_USAGE */
export function dropInVolumes(specs: readonly string[], cwd: string): Mount[] {
  const variables = new Set<string>();
  const places = new Set<string>();
  return specs.map((spec) => {
    const fail = (why: string): never => {
      const hint = 'Type --volume HOST:CONTAINER:VARIABLE, such as --volume /data/imagenet:/datasets/imagenet:IMAGENET.';
      throw new OnejobError('E_USAGE', `--volume ${JSON.stringify(spec)} ${why}.`, { hint });
    };
    const [host = '', container = '', variable = '', ...more] = spec.split(':');
    if (more.length > 0 || spec.split(':').length < 3) fail('does not have three parts');
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(variable)) fail(`has an invalid variable name: ${JSON.stringify(variable)}`);
    if (taken.includes(variable)) fail(`sets ${variable}, which is reserved; choose another variable`);
    if (variables.has(variable)) fail(`sets ${variable} again: another volume already uses that variable; choose another`);
    variables.add(variable);
    if (places.has(container)) fail(`uses ${container} again: another volume is already mounted there; choose another path`);
    places.add(container);
    const why = pathProblem(container);
    if (why !== null) fail(`has a container path that ${why}`);
    return {
      host: folderAt(resolve(cwd, host)) ?? fail(`names ${resolve(cwd, host)}, which is not a folder on this host`),
      container,
      readOnly: true,
      variable,
      cache: null,
    };
  });
}

function folderAt(path: string): string | null {
  try {
    return statSync(path).isDirectory() ? realpathSync(path) : null;
  } catch {
    return null;
  }
}

/** Longest name of an agent, as in `config/check.ts`. */
const longestName = 63;

/** @throws OnejobError E_USAGE when agents cannot be called so. */
export function checkName(name: string, agents: number): void {
  const last = `${name}_${Math.max(0, agents - 1)}`;
  const why = !/^[A-Za-z0-9][A-Za-z0-9_.-]*$/.test(name)
    ? 'is not a valid agent name: use letters, digits, ".", "_" and "-", and begin with a letter or digit'
    : last.length > longestName
      ? `is too long: ${last} has more than ${longestName} characters`
      : null;
  if (why !== null)
    throw new OnejobError('E_USAGE', `The name ${JSON.stringify(name)} ${why}.`, { hint: 'Type another one: --name NAME.' });
}
