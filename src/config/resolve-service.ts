/** From what is written of a service to all that holds of it. Pure; a service that says too little is left out. */
import type { SecretReference } from '../secrets/reference.ts';
import type { AgentPackageConfig, AzureCredential, BuildkiteServiceConfig, ServiceConfig } from './config.ts';
import { azureDefaults, buildkiteDefaults } from './defaults.ts';
import type { WrittenService } from './written.ts';

type Keys = WrittenService['keys'];

/** A file cannot say `auto`: only the drop-in does. */
const registrations = ['manager', 'in-agent', 'image', 'auto'] as const;

export function resolveService(name: string, { type, keys }: WrittenService): ServiceConfig | null {
  if (type === 'own-queue') return { name, type };
  if (type === 'buildkite') return resolveBuildkite(name, keys);
  const credential = resolveCredential(keys);
  if (typeof keys.url !== 'string' || credential === null) return null;
  return {
    name,
    type,
    url: keys.url,
    credential,
    registration: registrations.find((one) => one === keys.registration) ?? azureDefaults.registration,
    pollEvery: typeof keys.poll === 'number' ? keys.poll : azureDefaults.poll,
    bootTimeout: typeof keys.boot_timeout === 'number' ? keys.boot_timeout : azureDefaults.boot_timeout,
    agentPackage: resolvePackage(mapIn(keys.agent)),
  };
}

function resolveBuildkite(name: string, keys: Keys): BuildkiteServiceConfig | null {
  const token = secretIn(keys.token);
  if (token === null) return null;
  const written = mapIn(keys.agent);
  const agent = resolvePackage(written);
  const ms = (key: 'poll' | 'boot_timeout' | 'hold_timeout') => {
    const found = keys[key];
    return typeof found === 'number' ? found : buildkiteDefaults[key];
  };
  return {
    name,
    type: 'buildkite',
    endpoint: typeof keys.endpoint === 'string' ? keys.endpoint : buildkiteDefaults.endpoint,
    token,
    registration: keys.registration === 'in-agent' ? 'in-agent' : buildkiteDefaults.registration,
    metricsToken: secretIn(keys.metrics_token),
    pollEvery: ms('poll'),
    bootTimeout: ms('boot_timeout'),
    holdTimeout: ms('hold_timeout'),
    // What an owner brings has the version that it has; what onejob fetches is pinned.
    agentPackage: agent.from === null ? { ...agent, version: agent.version ?? buildkiteDefaults.agent.version } : agent,
  };
}

function resolveCredential(keys: Keys): AzureCredential | null {
  const token = secretIn(keys.token);
  if (token !== null) return { kind: 'pat', token };
  const { tenant, client, secret: written, authority } = mapIn(keys.principal);
  const secret = secretIn(written);
  if (typeof tenant !== 'string' || typeof client !== 'string' || secret === null) return null;
  return {
    kind: 'principal',
    tenant,
    client,
    secret,
    authority: typeof authority === 'string' ? authority : azureDefaults.authority,
  };
}

/** A version that only the name of the package tells is as good as one that is written. */
function resolvePackage({ version, from, sha256 }: Keys): AgentPackageConfig {
  const place = typeof from === 'string' ? from : null;
  const told = place === null ? undefined : /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(place)?.[1];
  return {
    version: typeof version === 'string' && version !== 'latest' ? version : (told ?? null),
    from: place,
    sha256: typeof sha256 === 'string' ? sha256 : null,
  };
}

function secretIn(found: unknown): SecretReference | null {
  return typeof found === 'object' && found !== null ? (found as SecretReference) : null;
}

function mapIn(found: unknown): Keys {
  return typeof found === 'object' && found !== null ? (found as Keys) : {};
}
