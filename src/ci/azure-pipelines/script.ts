/**
 * The scripts that make a waiting sandbox an agent. Each becomes the process that handles TERM, which the agent's own `run.sh`
 * would swallow. Only builtins write secrets, so no argument and no temporary file contains them.
 */
import { generateKeyPair, type JsonWebKey } from 'node:crypto';
import { promisify } from 'node:util';
import { OnejobError } from '../../base/errors.ts';
import { inQuotes } from '../../base/quoted.ts';
import { copied, diagFolder } from '../kit/in-image.ts';
import { type Capabilities, capabilitiesFile } from './capabilities.ts';
import { baseOf, isHostedAzure } from './url.ts';
import type { RegisteredAgent } from './wire.ts';

export interface AgentScript {
  readonly root: string;
  readonly uid: number;
  /** Whether the agent can write there, as it does; otherwise it runs from a copy. */
  readonly isWritable: boolean;
  readonly workspace: string;
  readonly capabilities: Capabilities;
}

/** onejob has registered the agent: the script only writes its files. */
export function readyAgent(parts: AgentScript, files: readonly { readonly name: string; readonly text: string }[]): string {
  return [
    ...begin(parts),
    ...files.map(({ name, text }) => `rm -f ${name}; printf '%s' ${inQuotes(text)} >${name} || exit 1`),
    ...capabilities(parts),
    'umask 022',
    'exec ./bin/Agent.Listener run --once',
  ].join('\n');
}

export type SelfRegistration = Readonly<Record<'url' | 'pool' | 'name' | 'token', string>>;

/** The agent registers itself with a token, which is gone from the sandbox before a job can come. */
export function configuringAgent(parts: AgentScript, { url, pool, name, token }: SelfRegistration): string {
  const flags = `--unattended --acceptTeeEula --replace --auth pat --url ${inQuotes(url)} --pool ${inQuotes(pool)} --agent ${inQuotes(name)} --work _work`;
  return [
    ...begin(parts),
    ...capabilities(parts),
    'umask 022',
    // The agent removes it from its environment, and is another process than the one that runs jobs.
    `VSTS_AGENT_INPUT_TOKEN=${inQuotes(token)} ./config.sh ${flags} </dev/null || exit 1`,
    'exec ./bin/Agent.Listener run --once',
  ].join('\n');
}

/** The image's own start script, with what such scripts expect. It keeps the token, and its jobs may read it. */
export function startingImage(start: string, workspace: string, { url, pool, name, token }: SelfRegistration): string {
  const slash = start.lastIndexOf('/');
  return [
    `cd ${inQuotes(start.slice(0, slash) || '/')} || exit 1`,
    ...diagnostics(workspace),
    `export AZP_URL=${inQuotes(url)} AZP_TOKEN=${inQuotes(token)} AZP_POOL=${inQuotes(pool)} AZP_AGENT_NAME=${inQuotes(name)}`,
    // Keeps what the image itself excludes.
    'export AGENT_ALLOW_RUNASROOT=1 VSO_AGENT_IGNORE="${VSO_AGENT_IGNORE:+$VSO_AGENT_IGNORE,}AZP_TOKEN,AZP_TOKEN_FILE"',
    `if [ -x ${inQuotes(start)} ]; then exec ${inQuotes(start)} --once; fi`,
    `exec sh ${inQuotes(start)} --once`,
  ].join('\n');
}

function begin({ root, uid, isWritable, workspace }: AgentScript): string[] {
  const home = isWritable ? root : `${workspace}/.onejob/agent`;
  return [
    ...(isWritable ? [] : [`mkdir -p ${inQuotes(home)} || exit 1`]),
    `cd ${inQuotes(home)} || exit 1`,
    ...(isWritable ? [] : [...copied(root, false), ...settingsOf(root)]),
    ...diagnostics(workspace),
    ...(uid === 0 ? ['export AGENT_ALLOW_RUNASROOT=1'] : []),
    'umask 077',
  ];
}

/** What an image may say about its agents, apart from itself. */
const settingsOf = (root: string): readonly string[] =>
  ['.env', '.path', '.capabilities'].map(
    (name) => `[ ! -f ${inQuotes(`${root}/${name}`)} ] || cp ${inQuotes(`${root}/${name}`)} . || exit 1`,
  );

function diagnostics(workspace: string): string[] {
  const folder = inQuotes(`${workspace}/${diagFolder}`);
  return [`if mkdir -p ${folder} 2>/dev/null; then export AGENT_DIAGLOGPATH=${folder}; fi`];
}

function capabilities({ capabilities: found }: AgentScript): string[] {
  const text = capabilitiesFile(found);
  if (text === '') return [];
  // Keeps what the image has, also if its last line does not end.
  const whole = `if [ -s .capabilities ]; then printf '\\n' >>.capabilities; fi`;
  return [whole, `printf '%s' ${inQuotes(text)} >>.capabilities || exit 1`];
}

/**
 * The three files that make a sandbox an agent, as `config.sh` writes them (agent `ConfigurationStore.cs`,
 * `ConfigurationManager.cs`, `OAuthCredential.cs`). They contain the agent's own key, never the manager's credential. @throws
 * OnejobError E_CI_ANSWER when the service gave the agent no way to sign in
 */
export function agentFiles(
  agent: RegisteredAgent,
  pool: { readonly id: number; readonly name: string },
  { name, url: address, key }: { readonly name: string; readonly url: string; readonly key: Pick<AgentKey, 'rsaParameters'> },
): { readonly name: string; readonly text: string }[] {
  const url = baseOf(address);
  if (agent.authorization === null) {
    throw new OnejobError('E_CI_ANSWER', `Cannot start agent ${name}: ${url} registered it without a way to sign in.`, {
      hint: 'Azure DevOps Server before 2017 does not support this; set "registration: in-agent" for it.',
      retry: true,
    });
  }
  const { clientId, authorizationUrl } = agent.authorization;
  const settings = {
    acceptTeeEula: true,
    agentId: agent.id,
    agentName: name,
    poolId: pool.id,
    poolName: pool.name,
    serverUrl: agent.serverUrl === null ? url : onHostOf(url, agent.serverUrl),
    workFolder: '_work',
  };
  // The first is the audience of the agent's assertion and stays as the service has it. A Server behind another name than
  // its own is only reached by the one that is configured.
  const data = {
    clientId,
    authorizationUrl,
    oauthEndpointUrl: isHostedAzure(url) ? authorizationUrl : onHostOf(url, authorizationUrl),
  };
  return [
    { name: '.agent', text: JSON.stringify(settings) },
    { name: '.credentials', text: JSON.stringify({ scheme: 'OAuth', data }) },
    { name: '.credentials_rsaparams', text: key.rsaParameters },
  ];
}

/** `there` at scheme, host and port of `url`; `url` itself when `there` is not an address. */
function onHostOf(url: string, there: string): string {
  const found = URL.parse(there);
  if (found === null) return url;
  const moved = new URL(url);
  moved.pathname = found.pathname;
  moved.search = found.search;
  return moved.href;
}

export interface AgentKey {
  /** Standard base64, big-endian. */
  readonly publicKey: { readonly exponent: string; readonly modulus: string };
  /** Text of `.credentials_rsaparams`, the private key. */
  readonly rsaParameters: string;
}

const bits = 2048;
const whole = bits / 8;
const half = whole / 2;

/**
 * Bytes of each part of a private key, by its name in a JWK (.NET `RSAParameters`). .NET needs these exact lengths, but a JWK omits
 * leading zeros: without padding, about one agent in fifty could not start.
 */
const lengths = { n: whole, d: whole, p: half, q: half, dp: half, dq: half, qi: half } as const;

/** A new RSA-2048 key; takes about 100 ms, not on the main thread. */
export async function makeAgentKey(): Promise<AgentKey> {
  const { privateKey } = await promisify(generateKeyPair)('rsa', { modulusLength: bits, publicExponent: 0x10001 });
  return agentKeyOf(privateKey.export({ format: 'jwk' }));
}

/** @throws OnejobError E_BUG when a part is missing or longer than an RSA-2048 key has it */
export function agentKeyOf(jwk: JsonWebKey): AgentKey {
  const part = (name: keyof typeof lengths): string => {
    const bytes = Buffer.from(jwk[name] ?? '', 'base64url');
    const length = lengths[name];
    if (bytes.length === 0 || bytes.length > length) {
      const message = `Cannot create an agent's key: ${name} has ${bytes.length} bytes, not ${length}.`;
      throw new OnejobError('E_BUG', message, { retry: true });
    }
    return Buffer.concat([Buffer.alloc(length - bytes.length), bytes]).toString('base64');
  };
  const exponent = Buffer.from(jwk.e ?? '', 'base64url').toString('base64');
  const modulus = part('n');
  const exponents = { d: part('d'), dp: part('dp'), dq: part('dq'), exponent };
  const parameters = { ...exponents, inverseQ: part('qi'), modulus, p: part('p'), q: part('q') };
  return { publicKey: { exponent, modulus }, rsaParameters: JSON.stringify(parameters) };
}
