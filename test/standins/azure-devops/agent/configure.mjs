/** `configure` and `remove` with a PAT, as `config.sh --unattended` does them (agent `ConfigurationManager.cs`). */
import { generateKeyPairSync } from 'node:crypto';
import { rmSync, writeFileSync } from 'node:fs';
import { hostname, release } from 'node:os';
import { join } from 'node:path';
import { scanCapabilities } from './capabilities.mjs';
import { agentToken, connect } from './connection.mjs';
import { stamp } from './diag.mjs';
import { Ending } from './session.mjs';
import { isConfigured, readSettings } from './settings.mjs';

const switchesOnly = new Set(['unattended', 'replace', 'accepttee', 'acceptteeeula', 'once', 'version', 'help', 'commit']);
const files = ['.agent', '.credentials', '.credentials_rsaparams'];
const mine = 'VSTS_AGENT_INPUT_';

/** Command and flags, lower case, from the command line and from VSTS_AGENT_INPUT_…, which leave the environment. */
export function readArguments(words, environment) {
  const flags = {};
  let command = null;
  for (let at = 0; at < words.length; at += 1) {
    const word = words[at];
    if (!word.startsWith('--')) {
      command ??= word.toLowerCase();
      continue;
    }
    const name = word.slice(2).toLowerCase();
    if (switchesOnly.has(name)) flags[name] = 'true';
    else flags[name] = words[++at] ?? '';
  }
  for (const [name, value] of Object.entries(environment)) {
    if (!name.startsWith(mine)) continue;
    flags[name.slice(mine.length).toLowerCase()] ??= value;
    delete environment[name];
  }
  return { command: command ?? 'run', flags };
}

async function connectWithPat(flags) {
  if ((flags.auth ?? 'pat').toLowerCase() !== 'pat')
    throw new Ending(1, `This stand-in signs in with --auth pat only, not ${flags.auth}.`);
  for (const name of ['url', 'token'])
    if (!flags[name]) throw new Ending(1, `Invalid configuration provided for ${name}. Terminating unattended configuration.`);
  const header = `Basic ${Buffer.from(`VstsAgent:${flags.token}`).toString('base64')}`;
  return await connect(flags.url, async () => header, 'Basic');
}

/** Adds the agent, or replaces one of its name, and writes its files. */
export async function configure({ root, version, flags, print, trace }) {
  if (isConfigured(root))
    throw new Ending(
      1,
      "Cannot configure the agent because it is already configured. To reconfigure the agent, run './config.sh remove' first.",
    );
  if (flags.unattended === undefined) throw new Ending(1, 'This stand-in is configured with --unattended only.');
  print('>> Connect:');
  print('Connecting to server ...');
  const connection = await connectWithPat(flags);
  print('>> Register Agent:');
  const poolName = flags.pool || 'Default';
  const { value: pools } = await connection.call('GET', 'pools', {}, { query: { poolName, poolType: 'automation' } });
  const pool = pools?.value?.[0];
  if (pool === undefined) throw new Ending(1, `Agent pool not found: '${poolName}'`);
  print('Scanning for tool capabilities.');
  print('Connecting to the server.');
  const name = flags.agent || hostname();
  const { publicKey, parameters } = makeKey();
  const systemCapabilities = scanCapabilities({ root, name, version });
  const body = {
    name,
    version,
    osDescription: `Linux ${release()}`,
    maxParallelism: 1,
    provisioningState: 'Provisioned',
    systemCapabilities,
    authorization: { publicKey },
  };
  const poolId = pool.id;
  const { value: found } = await connection.call('GET', 'agents', { poolId }, { query: { agentName: name } });
  const old = found?.value?.[0];
  if (old !== undefined && flags.replace === undefined)
    throw new Ending(1, `Pool ${poolId} already contains an agent with name ${name}.`);
  const { value: agent } =
    old === undefined
      ? await connection.call('POST', 'agents', { poolId }, { body })
      : await connection.call('PUT', 'agents', { poolId, agentId: old.id }, { body: { id: old.id, ...body } });
  print(old === undefined ? 'Successfully added the agent' : 'Successfully replaced the agent');
  trace(`Agent ${agent.id} in pool ${poolId}`);

  const secret = { mode: 0o600 };
  const write = (file, value) => writeFileSync(join(root, file), JSON.stringify(value), secret);
  write('.credentials_rsaparams', parameters);
  write('.credentials', { scheme: 'OAuth', data: credentials(agent.authorization, flags.url, connection.deployment) });
  const serverUrl = realUrl(flags.url, agent);
  write('.agent', {
    acceptTeeEula: true,
    agentId: agent.id,
    agentName: name,
    poolId,
    poolName,
    serverUrl,
    workFolder: flags.work || '_work',
  });
  const { credentials: kept, privateKey } = readSettings(root);
  print('Testing agent connection.');
  await connect(serverUrl, agentToken(kept, privateKey));
  print(`${stamp()}: Settings Saved.`);
  return 0;
}

function credentials({ clientId, authorizationUrl }, url, deployment) {
  const endpoint = new URL(authorizationUrl);
  if (deployment === 'onPremises') endpoint.host = new URL(url).host;
  return { clientId, authorizationUrl, oauthEndpointUrl: endpoint.href };
}

/** The service may name the collection's real path; host and scheme stay those that the person gave. */
function realUrl(url, agent) {
  const told = agent.properties?.ServerUrl?.$value;
  if (typeof told !== 'string') return url;
  const real = new URL(url);
  real.pathname = new URL(told).pathname;
  return real.href;
}

function makeKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const jwk = privateKey.export({ format: 'jwk' });
  const padded = (text, length) => {
    const bytes = Buffer.from(text, 'base64url');
    return Buffer.concat([Buffer.alloc(Math.max(0, length - bytes.length)), bytes]).toString('base64');
  };
  const publicKey = { exponent: padded(jwk.e, 0), modulus: padded(jwk.n, 256) };
  const halves = { p: jwk.p, q: jwk.q, dp: jwk.dp, dq: jwk.dq, inverseQ: jwk.qi };
  const parameters = Object.fromEntries(Object.entries(halves).map(([key, text]) => [key, padded(text, 128)]));
  return { publicKey, parameters: { ...publicKey, d: padded(jwk.d, 256), ...parameters } };
}

/** Deletes the agent's entry and its files. */
export async function remove({ root, flags, print }) {
  print('Removing agent from the server');
  if (isConfigured(root)) {
    const { settings } = readSettings(root);
    const connection = await connectWithPat({ ...flags, url: flags.url ?? settings.serverUrl });
    await connection.call('DELETE', 'agents', { poolId: settings.poolId, agentId: settings.agentId });
  }
  for (const file of files) rmSync(join(root, file), { force: true });
  print('Removing .credentials and .agent. Success');
  return 0;
}
