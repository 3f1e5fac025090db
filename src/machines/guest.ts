/**
 * What a machine gets when it joins: the config of its onejob, and the secrets that its agents need of the services of its pools. They
 * travel once, encrypted, to a machine that has proved itself with its token, and stay in its memory.
 */
import { stringify } from 'yaml';
import type { Variables } from '../base/variables.ts';
import { serviceType } from '../ci/types.ts';
import type { CloudHost, ServiceConfig } from '../config/config.ts';
import { readSecret, type SecretReference } from '../schema/secret-reference.ts';
import type { JoinAnswer, JoinFile } from './join/protocol.ts';

export interface GuestParts {
  readonly services: readonly ServiceConfig[];
  /** Those of them that say where their jobs come from. */
  readonly origins: ReadonlySet<string>;
  readonly secretsKey: SecretReference | null;
  readonly variables: Variables;
}

/** Folder of the machine that is only in memory. */
const folder = '/run/onejob-cloud/secrets';

/** The beginning of the names of a machine's agents, which no other machine has; a `-` follows. */
export function agentPrefix(host: string, run: string): string {
  return `${host}-${run.slice(-16, -10)}`;
}

/** @throws OnejobError E_SECRET */
export async function guestOf(host: CloudHost, run: string, parts: GuestParts): Promise<Pick<JoinAnswer, 'config' | 'files'>> {
  const { services, origins, secretsKey, variables } = parts;
  const { guest } = host;
  const files: JoinFile[] = [];
  const keep = async (name: string, secret: SecretReference) => {
    const path = `${folder}/${name}`;
    files.push({ path, mode: '0600', content: Buffer.from(await readSecret(secret, variables)).toString('base64') });
    return { file: path };
  };
  const used = new Set(host.pools.map(({ service }) => service));
  const written: Record<string, unknown> = {};
  for (const service of services) {
    if (!used.has(service.name)) continue;
    const keys = structuredClone(guest.services[service.name]) as Record<string, unknown>;
    const { secrets, notOnMachines = [] } = serviceType(service.type);
    for (const key of notOnMachines) delete keys[key];
    for (const [key, secret] of secrets(service)) {
      const path = key.split('.');
      if (path[0] !== undefined && path[0] in keys) place(keys, path, await keep(`${service.name}.${key}`, secret));
    }
    written[service.name] = keys;
  }
  const hasSecrets = [...used].some((name) => origins.has(name));
  const prefix = agentPrefix(host.host, run);
  const defaults = guest.defaults as { readonly name?: unknown };
  const config = {
    ...(Object.keys(written).length > 0 && { services: written }),
    // Only jobs of services that say where they come from may have encrypted values.
    ...(secretsKey !== null && hasSecrets && { secrets: { key: await keep('secrets.key', secretsKey) } }),
    defaults: { ...defaults, name: ownName(defaults.name, prefix) },
    pools: Object.fromEntries(
      Object.entries(guest.pools).map(([name, pool]) => {
        const keys = (pool ?? {}) as { readonly name?: unknown };
        return [name, { ...keys, ...(keys.name !== undefined && { name: ownName(keys.name, prefix) }) }];
      }),
    ),
  };
  return { config: stringify(config, { lineWidth: 0 }), files };
}

/** Two machines must not give their agents one name, and it must tell whose they are once their machine is gone. */
function ownName(name: unknown, prefix: string): string {
  const template = typeof name === 'string' ? name : '{host}-{pool}-{n}';
  const rest = template.replace(/^\{host\}-?/, '');
  return `${prefix}-${rest.replaceAll('{host}', prefix)}`;
}

function place(map: Record<string, unknown>, path: readonly string[], value: unknown): void {
  const [first = '', ...rest] = path;
  if (rest.length === 0) {
    map[first] = value;
    return;
  }
  const inner = (map[first] ?? {}) as Record<string, unknown>;
  map[first] = inner;
  place(inner, rest, value);
}
