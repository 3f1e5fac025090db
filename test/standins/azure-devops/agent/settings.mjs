/**
 * The three files that make an agent configured, read as strictly as .NET reads them, and more: a wrong casing, a value of the
 * wrong length or a key that others may read ends the agent with a sentence (agent `ConfigurationStore.cs`, `RSAFileKeyManager.cs`).
 */
import { createPrivateKey } from 'node:crypto';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

const lengths = { modulus: 256, d: 256, p: 128, q: 128, dp: 128, dq: 128, inverseQ: 128 };
const optionalSettings = {
  acceptTeeEula: 'boolean',
  skipCapabilitiesScan: 'boolean',
  skipSessionRecover: 'boolean',
  disableLogUploads: 'boolean',
  alwaysExtractTask: 'boolean',
  notificationSocketAddress: 'string',
  notificationPipeName: 'string',
  monitorSocketAddress: 'string',
  debugMode: 'boolean',
};

export function isConfigured(root) {
  return existsSync(join(root, '.agent'));
}

/** `.agent`, `.credentials` and the private key. Throws with a sentence. */
export function readSettings(root) {
  const settings = readAgent(root);
  const credentials = readCredentials(root);
  return { settings, credentials, privateKey: readKey(root) };
}

function readAgent(root) {
  const { value, wrong } = readJson(root, '.agent');
  const { agentId, agentName, poolId, poolName, serverUrl, workFolder, ...rest } = value;
  if (!Number.isInteger(agentId) || agentId <= 0) wrong('agentId', 'a positive whole number');
  if (!Number.isInteger(poolId) || poolId <= 0) wrong('poolId', 'a positive whole number');
  for (const [name, text] of Object.entries({ agentName, poolName, workFolder })) {
    if (typeof text !== 'string' || text === '') wrong(name, 'a text that is not empty');
  }
  if (!isUrl(serverUrl)) wrong('serverUrl', 'an http address');
  for (const [name, given] of Object.entries(rest)) {
    if (optionalSettings[name] === undefined) wrong(name, 'absent: no such setting, or one that this agent must not have');
    if (typeof given !== optionalSettings[name]) wrong(name, `a ${optionalSettings[name]}`);
  }
  return value;
}

function readCredentials(root) {
  const { value, wrong } = readJson(root, '.credentials', true);
  if (value.scheme !== 'OAuth') wrong('scheme', '"OAuth"');
  const data = value.data ?? wrong('data', 'there');
  if (!/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(data.clientId)) wrong('data.clientId', 'a GUID in lower case');
  if (!isUrl(data.authorizationUrl)) wrong('data.authorizationUrl', 'an http address');
  if (data.oauthEndpointUrl !== undefined && !isUrl(data.oauthEndpointUrl)) wrong('data.oauthEndpointUrl', 'an http address');
  const { clientId, authorizationUrl, oauthEndpointUrl = authorizationUrl } = data;
  return { clientId, authorizationUrl, oauthEndpointUrl };
}

function readKey(root) {
  const { value, wrong } = readJson(root, '.credentials_rsaparams', true);
  const bytes = { exponent: decode(value.exponent) ?? wrong('exponent', 'base64') };
  for (const [name, length] of Object.entries(lengths)) {
    bytes[name] = decode(value[name]) ?? wrong(name, 'standard base64');
    if (bytes[name].length !== length) wrong(name, `${length} bytes, not ${bytes[name].length}`);
  }
  const number = (name) => BigInt(`0x${bytes[name].toString('hex')}`);
  if (number('p') * number('q') !== number('modulus')) wrong('modulus', 'the product of p and q');
  const [n, e, d, p, q, dp, dq, qi] = ['modulus', 'exponent', 'd', 'p', 'q', 'dp', 'dq', 'inverseQ'].map((name) =>
    bytes[name].toString('base64url'),
  );
  return createPrivateKey({ format: 'jwk', key: { kty: 'RSA', n, e, d, p, q, dp, dq, qi } });
}

/** Standard base64 with its padding, and nothing else. */
function decode(text) {
  if (typeof text !== 'string' || text === '') return null;
  const bytes = Buffer.from(text, 'base64');
  return bytes.toString('base64') === text ? bytes : null;
}

function isUrl(text) {
  return typeof text === 'string' && /^https?:\/\/[^ ]+$/.test(text) && URL.canParse(text);
}

function readJson(root, name, secret = false) {
  const file = join(root, name);
  const wrong = (key, wanted) => {
    throw new Error(`Cannot use ${file}: "${key}" must be ${wanted}.`);
  };
  let text;
  try {
    text = readFileSync(file, 'utf8').replace(/^\uFEFF/, '');
  } catch (error) {
    throw new Error(`Cannot read ${file}: ${error.message}`);
  }
  const mode = statSync(file).mode & 0o777;
  if (secret && (mode & 0o077) !== 0)
    throw new Error(`Cannot use ${file}: its mode is ${mode.toString(8)}, so others could read it.`);
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`Cannot use ${file}: ${error.message}`);
  }
  if (typeof value !== 'object' || value === null) throw new Error(`Cannot use ${file}: it is no JSON object.`);
  return { value, wrong };
}
