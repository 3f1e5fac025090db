/** One service of a Compose file as one agent, with all that had to be said about it. */
import { posix } from 'node:path';
import type { Agent, Plain, Remark } from './agent.ts';
import { readCommandLine, variableOf } from './agent-flags.ts';
import type { ComposeFile } from './compose-file.ts';
import { readDevices } from './devices.ts';
import { readEnvironment } from './environment.ts';
import { fitKeys } from './fit.ts';
import { readFlags } from './flags.ts';
import { readImage } from './image.ts';
import { looksSecret, soundsSecret } from './interpolate.ts';
import { readLimits, sayLeft } from './limits.ts';
import { readMounts } from './mounts.ts';
import { isMap, listOf, numberOf, textOf, wordsOf } from './plain.ts';

export interface ServiceInput {
  readonly compose: ComposeFile;
  readonly key: string;
  /** With `extends` and variables filled in. */
  readonly service: Readonly<Record<string, unknown>>;
  /** Whether it is the only service of its file. */
  readonly isOnly: boolean;
  /** Absolute path of the folder that was read. */
  readonly root: string;
  /** Of a file, by its path relative to the root; null when there is none. */
  read(path: string): string | null;
  remark(remark: Remark): void;
}

export interface ServiceFound {
  readonly agent: Agent;
  /** Folder its image is built from, relative to the root. */
  readonly context: string | null;
}

/** null for a service that is no agent. Never throws. */
export function readService({ compose, key, service, isOnly, root, read, remark }: ServiceInput): ServiceFound | null {
  const { file } = compose;
  const folder = posix.dirname(file);
  const say = (level: Remark['level'], path: readonly (string | number)[], message: string): void =>
    remark({ file, line: compose.line(['services', key, ...path]), level, message });
  const held: Remark[] = [];
  const tell = (where: string, line: number | null, level: Remark['level'], message: string) =>
    held.push({ file: where, line, level, message });
  const hold: typeof say = (level, path, message) => tell(file, compose.line(['services', key, ...path]), level, message);

  const cpus = numberOf(service.cpus);
  const { env, all, flags: said, cpu } = readEnvironment(service.environment, cpus, hold);
  const words = [...shellWords(service.entrypoint), ...shellWords(service.command)];
  const line = readCommandLine(words);
  const built = readImage({ service, folder, read, say: hold, tell });
  const isAgent =
    line.isStart ||
    said.length > 0 ||
    built.hasAgent ||
    listOf(service.env_file).some((item) => /token|buildkite|agent/i.test(fileOf(item) ?? '')) ||
    (isOnly && /buildkite/i.test(key));
  if (!isAgent) {
    say('warning', [], `the service "${key}" is not carried over: nothing shows that it starts a Buildkite agent`);
    return null;
  }
  for (const one of held) remark(one);
  sayLeft(service, say);
  const hostname = textOf(service.hostname);
  const leaf = folder === '.' ? posix.basename(root) : posix.basename(folder);
  const fallback = isOnly ? leaf : key;
  const flags = readFlags({
    flags: [
      ...said.map((one) => ({ ...one, isVariable: true })),
      ...line.flags.map((one) => ({ name: one.name, value: one.value, path: commandPath(service, one.at), isVariable: false })),
    ],
    hostname: hostname ?? fallback,
    fallback: hostname !== null && isName(hostname) ? hostname : fallback,
    say,
  });
  if (line.rest.length > 0) {
    // A word may be a token.
    say(
      'warning',
      ['command'],
      `${line.rest.length === 1 ? 'a word' : `${line.rest.length} words`} of the command are not understood and not carried over`,
    );
  }
  const mounts = readMounts({
    volumes: service.volumes,
    named: compose.value.volumes,
    name: flags.name,
    folder: posix.join(root, folder),
    say,
  });
  const devices = readDevices({ env: all, service, say });
  const kept = Object.fromEntries(
    flags.others.flatMap(({ name, value, path }) => {
      const variable = variableOf(name);
      if (variable === null || soundsSecret(name) || looksSecret(value)) {
        say('warning', path, `--${name} is not carried over`);
        return [];
      }
      say('note', path, `--${name} is kept as the variable ${variable}`);
      return [[variable, value]];
    }),
  );
  const limits = readLimits(service, say);
  const jobs: Record<string, Plain> = { ...env, ...kept };
  const keys: Record<string, Plain> = {
    queue: flags.queue,
    ...(flags.priority === null ? {} : { priority: flags.priority }),
    ...(flags.tags.length === 0 ? {} : { tags: flags.tags.join(',') }),
    ...(built.image === null ? {} : { image: built.image }),
    ...(cpu === null ? {} : { cpu_env: cpu.variable, cpus: cpu.count }),
    ...limits,
    ...(Object.keys(jobs).length === 0 ? {} : { env: jobs }),
    ...(mounts.caches.length === 0 ? {} : { caches: mounts.caches }),
    ...(mounts.volumes.length === 0 ? {} : { volumes: mounts.volumes }),
  };
  for (const [flag, path] of Object.entries(flags.folders)) {
    const [host, inside] = hostFolder(path, mounts.hostOf);
    if (host !== null) {
      keys[flag] = host;
      // Agents see it by that key.
      const rest = mounts.volumes.filter((volume) => volume !== `${host}:${path.replace(/\/$/, '')}`);
      if (rest.length > 0) keys.volumes = rest;
      else delete keys.volumes;
    } else
      say(
        'note',
        ['command'],
        inside ? nothingThere(flag, path) : `${path} (--${flag}-path) is in the image: ${ofImage(flag, built)}`,
      );
  }
  if (cpu !== null && limits.cpus === undefined)
    say('note', ['environment', cpu.variable], `${cpu.variable} follows from "cpus", which also holds its jobs to as many CPUs`);
  if (hostname !== null && hostname !== flags.name)
    say('note', ['hostname'], `jobs see the agent's name as the name of their host, not ${hostname}`);
  const fitting = fitKeys(keys, (what, why) => say('warning', [], `${what} is not carried over: ${why}`));
  const tokenFile = tokenFileOf(service.env_file, folder);
  if (tokenFile !== null) {
    const what = `the token goes into a file that only root reads (see the config); what else is in ${tokenFile} is not carried over, as nobody looked into it`;
    say('note', ['env_file'], what);
  } else if (!flags.hasToken) say('note', [], 'where it has its token from does not show; the config names a file for it');
  const deploy = isMap(service.deploy) ? numberOf(service.deploy.replicas) : null;
  const most = devices.by === 'uuid' || devices.by === 'index' ? 64 : 512;
  const asked = Math.min(most, Math.max(1, Math.round(numberOf(service.scale) ?? deploy ?? 1)) * flags.spawn);
  const times = devices.by === 'all' ? 1 : asked;
  if (asked > 1) {
    const what =
      times === 1
        ? `${asked} copies of it had all GPUs, and one agent has them now: write the devices of each`
        : `${asked} copies become a pool whose agents are called ${flags.name}-1, ${flags.name}-2, …`;
    say(times === 1 ? 'warning' : 'note', ['deploy'], what);
  }
  return {
    agent: {
      folder,
      file,
      line: compose.line(['services', key]),
      service: key,
      name: flags.name,
      hostname,
      times,
      tokenFile,
      endpoint: flags.endpoint,
      hasSecretsKey: built.hasSecretsKey,
      devices,
      keys: fitting,
      heading: compose.heading,
    },
    context: built.context,
  };
}

/** A command in a shell is looked into where it plainly starts an agent. */
function shellWords(written: unknown): readonly string[] {
  const words = wordsOf(written);
  const at = words.findIndex((word, index) => /^-l?c$/.test(word) && /(^|\/)(ba|da|z)?sh$/.test(words[index - 1] ?? ''));
  const script = at < 0 ? undefined : /buildkite-agent\s+start[^;&|]*/.exec(words[at + 1] ?? '')?.[0];
  return script === undefined ? words : wordsOf(script);
}

function commandPath(service: Readonly<Record<string, unknown>>, at: number): readonly (string | number)[] {
  const before = wordsOf(service.entrypoint).length;
  if (at < before) return ['entrypoint', at];
  return Array.isArray(service.command) ? ['command', at - before] : ['command'];
}

function fileOf(item: unknown): string | null {
  return isMap(item) ? textOf(item.path) : textOf(item);
}

/** Of several the one that sounds like it. */
function tokenFileOf(written: unknown, folder: string): string | null {
  const files = listOf(written).flatMap((item) => fileOf(item) ?? []);
  const file = files.find((one) => /token/i.test(one)) ?? files.find((one) => /buildkite|agent|secret/i.test(one)) ?? files[0];
  return file === undefined ? null : file.startsWith('/') ? file : posix.normalize(posix.join(folder, file));
}

/** Where a folder of the container lies on the host; whether it lies in a volume at all. */
function hostFolder(path: string, hostOf: ReadonlyMap<string, string>): readonly [string | null, boolean] {
  for (const [container, host] of hostOf) {
    if (path === container) return [host, true];
    if (path.startsWith(`${container}/`))
      return [posix.join(host, path.slice(container.length)), !/^\/(root|home)/.test(container)];
  }
  return [null, false];
}

function ofImage(flag: string, { hasSecretsKey }: { readonly hasSecretsKey: boolean }): string {
  if (flag === 'plugins') return 'write a folder of the host into "plugins" if they are to be there';
  const secrets = hasSecretsKey
    ? 'encrypted variables are opened by onejob itself ("secrets" in the config); '
    : 'if they open encrypted variables (SECRET_…), write "secrets" into the config, without which onejob refuses such jobs; ';
  return `${secrets}for other hooks write a folder of the host into "hooks"`;
}

function nothingThere(flag: string, path: string): string {
  return `${path} (--${flag}-path) is not carried over`;
}

function isName(text: string): boolean {
  return /^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/.test(text);
}
