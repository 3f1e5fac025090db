/** `onejob azure`: takes the arguments of the Python manager of Azure agents, and runs the daemon with them in the foreground. */

import { existsSync, realpathSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
import { Document, isMap } from 'yaml';
import { attempt, OnejobError } from '../../base/errors.ts';
import { formatDuration } from '../../base/units.ts';
import { azureUrlToKeep, parseAzureUrl } from '../../ci/azure-pipelines/url.ts';
import type { Environment } from '../../config/environment.ts';
import { interpret } from '../../config/interpret.ts';
import { checkConfig, configError, type Instead } from '../../config/load.ts';
import type { Mount } from '../../ports/runtime.ts';
import { checkSecret, type SecretReference } from '../../schema/secret-reference.ts';
import { formatVolume, pathProblem } from '../../schema/volumes.ts';
import type { CliContext } from '../context.ts';
import { exitCodes } from '../exit.ts';
import { configSource, type Session } from '../session.ts';
import { type CardShare, lookAtCards, shareCards } from '../share-cards.ts';
import { types } from '../types.ts';
import { up } from '../up.ts';

export interface AzureArguments {
  readonly token: string;
  readonly url: string;
  readonly pool: string;
  readonly agents: number;
  readonly name: string | null;
  readonly image: string | null;
  /** s */
  readonly timeout: number | null;
  readonly pollTime: number | null;
  readonly volumes: readonly string[];
  readonly printConfig: boolean;
}

/** `image` null: the one that onejob builds for this host. Agents are called NAME_0, NAME_1, … */
export interface DropIn extends Pick<AzureArguments, 'url' | 'pool' | 'agents' | 'image'> {
  readonly name: string;
  /** ms between two looks at the service; null for the default. */
  readonly poll: number | null;
  readonly volumes: readonly Mount[];
  readonly cards: CardShare;
}

/** Runs the daemon; with `printConfig` prints the file that says the same instead. */
export async function azure(session: Session, typed: AzureArguments, cards = lookAtCards): Promise<number> {
  const { context, output, flags } = session;
  if (flags.config !== undefined) {
    const why = '--config belongs to "onejob up"; "onejob azure" takes all of its config from the command line.';
    throw new OnejobError('E_USAGE', why, { hint: 'Type "onejob up --config FILE", or omit --config.' });
  }
  const token = await givenToken(typed.token, context);
  const name = typed.name ?? hostname();
  checkName(name, typed.agents);
  const { url, remark } = addressOf(typed.url);
  const volumes = dropInVolumes(typed.volumes, context.cwd);
  const shared = shareCards(typed.agents, await cards(session));
  const poll = typed.pollTime === null ? null : pollTime(typed.pollTime);
  const given: DropIn = { url, pool: typed.pool, agents: typed.agents, name, image: typed.image, poll, volumes, cards: shared };

  const instead = dropInConfig(given, token);
  const { errors } = await checkConfig({ types, ...configSource(session), instead, look: null });
  if (errors.length > 0) throw configError(errors, null);

  if (token.kind === 'memory') output.say(`warning: ${onCommandLine}`);
  if (remark !== null) output.say(remark);
  for (const line of ignored(typed, poll)) output.say(line);
  output.say(shared.line);
  if (!typed.printConfig) return up(session, { temporary: false, instead });
  await output.print(dropInFile(given, ...writtenOf(token, context.environment)));
  return exitCodes.ok;
}

function addressOf(typed: string): { url: string; remark: string | null } {
  const parsed = parseAzureUrl(typed);
  if (parsed.ok) return { url: parsed.value, remark: null };
  // The Python manager was documented to take the address of a project; agents belong to the organisation all the same.
  const url = azureUrlToKeep(typed);
  if (url !== null) return { url, remark: `the address ${parsed.why.replace(/; keep .*$/, '')}; onejob uses ${url}` };
  const why = parsed.why.startsWith('expected') ? `is invalid: ${parsed.why}` : parsed.why;
  const hint = 'Type onejob azure PAT URL POOL, such as: onejob azure @pat.txt https://dev.azure.com/acme gpu';
  throw new OnejobError('E_USAGE', `The address (second argument) ${why}.`, { hint });
}

/** Options that the Python manager ignored, or that mean something else here. */
function ignored({ timeout, pollTime: asked }: AzureArguments, poll: number | null): string[] {
  const lines: string[] = [];
  if (timeout !== null)
    lines.push(
      '--timeout has no effect, as in the Python manager: onejob has a limit for each kind of call to the Engine, so a pull may take long and a query may not',
    );
  if (asked !== null && poll !== null && poll > asked * 1000)
    lines.push(
      `--poll-time ${asked}: onejob asks the service every ${poll / 1000} s, which is the minimum; it starts a new agent at once when one ends, without polling`,
    );
  return lines;
}

const onCommandLine =
  'the token was on the command line: every user of this host could read it for a moment; they can read it in the arguments of a wrapper such as npx for as long as that runs, and the shell may have stored it in its history; @FILE or - keep it off the command line';

/**
 * The drop-in's first argument: a personal access token, `@FILE` with one, or `-` for the environment. No message contains the
 * argument, unless it is the path of a file. @throws OnejobError E_USAGE, E_SECRET
 */
async function givenToken(argument: string, context: CliContext): Promise<SecretReference> {
  if (argument === '-') return fromEnvironment(context);
  if (argument.startsWith('@')) return inFile(resolve(context.cwd, argument.slice(1)), `onejob azure ${argument}`);
  const token = argument.trim();
  const fail = (message: string, hint: string): never => {
    throw new OnejobError('E_USAGE', message, { hint });
  };
  const inside = 'Type @FILE with the file that contains it, or - to take it from AZP_TOKEN_FILE or AZP_TOKEN.';
  if (token === '') fail('The personal access token is empty.', inside);
  if (/^https?:\/\//i.test(token))
    fail('The first argument is an address: the personal access token before it is missing.', inside);
  if (existsSync(resolve(context.cwd, token)))
    fail(`The first argument is a file, ${token}, not a personal access token.`, `Type @${token}.`);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a token that was read from a file in a wrong way has them
  if (/[\s\u0000-\u001f\u007f]/.test(token))
    fail('The personal access token is malformed: it contains whitespace or line breaks.', inside);
  return { kind: 'memory', name: 'the command line', expires: null, read: () => token };
}

async function fromEnvironment(context: CliContext): Promise<SecretReference> {
  const { AZP_TOKEN_FILE: file, AZP_TOKEN: token } = context.variables;
  if (file) return inFile(resolve(context.cwd, file), 'AZP_TOKEN_FILE');
  if (token) return { kind: 'env', variable: 'AZP_TOKEN', expires: null };
  const hint = 'Set AZP_TOKEN_FILE to the file that contains the personal access token, or type @FILE.';
  throw new OnejobError('E_USAGE', 'The first argument is -, but neither AZP_TOKEN_FILE nor AZP_TOKEN is set.', { hint });
}

async function inFile(path: string, from: string): Promise<SecretReference> {
  const reference: SecretReference = { kind: 'file', path, expires: null };
  const { problem } = await checkSecret(reference, 0);
  if (problem !== null) {
    const hint = `Put it into ${path}, readable only for the user that onejob runs as (mode 600), or name another file.`;
    throw new OnejobError('E_SECRET', `Cannot read the personal access token (${from}): ${problem}.`, { hint });
  }
  return reference;
}

/** How a config file refers to a token. */
export type WrittenToken = { readonly file: string } | { readonly env: string };

/** A token of the command line gets a file that is still to be made, and a remark on how. */
function writtenOf(token: SecretReference, { uid, configHome }: Environment): readonly [WrittenToken, string | null] {
  if (token.kind === 'file') return [{ file: token.path }, null];
  if (token.kind === 'env') return [{ env: token.variable }, null];
  const file = uid === 0 ? '/etc/onejob/azure.pat' : join(configHome, 'onejob', 'azure.pat');
  return [{ file }, `Put the token there first: install -D -m 600 /dev/stdin ${file}`];
}

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
  const { written, problems } = interpret({ value, locate: () => place }, types);
  if (problems.length > 0) throw configError(problems, null);
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
    const folder = resolve(cwd, host);
    return {
      host:
        attempt(() => (statSync(folder).isDirectory() ? realpathSync(folder) : null)) ??
        fail(`names ${folder}, which is not a folder on this host`),
      container,
      readOnly: true,
      variable,
      cache: null,
    };
  });
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
