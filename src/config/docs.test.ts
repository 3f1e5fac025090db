import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { types } from '../cli/types.ts';
import { aboutOf } from '../schema/kinds.ts';
import { hostFile, hostMaps, nestedKeys, poolFile, schemasOf, topFile } from './interpret.ts';

const { services, clouds } = schemasOf(types);
const mapOf = (service: string, map: string) => services[service]?.maps[map] as typeof topFile;

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const sections = {
  top: topFile,
  pool: poolFile,
  ...nestedKeys,
  ...Object.fromEntries(Object.entries(services).map(([type, { keys }]) => [type, keys])),
  ...services['azure-pipelines']?.maps,
  'agent of buildkite': mapOf('buildkite', 'agent'),
  app: mapOf('github', 'app'),
  webhook: mapOf('github', 'webhook'),
  docker: mapOf('github', 'docker'),
  'agent of github': mapOf('github', 'agent'),
  'agent of gitea': mapOf('gitea', 'agent'),
  'agent of gitlab': mapOf('gitlab', 'agent'),
};
const cloudSections = Object.entries(clouds).flatMap(([type, { keys, maps }]) => [
  [`cloud ${type}`, keys] as const,
  ...Object.entries(maps).map(([name, inner]) => [`${name} of cloud ${type}`, inner] as const),
]);
const inside: Record<string, (key: string) => string> = {
  top: (key) => key,
  pool: (key) =>
    `services: { julia: { type: own-queue } }\npools: { x: {} }\ndefaults: { ${key.startsWith('benchmark:') ? `devices: 1, ${key}` : key} }`,
  benchmark: (key) => `pools: { x: { devices: 1, benchmark: { ${key} } } }`,
  api: (key) => `api: { ${key} }`,
  upgrade: (key) => `upgrade: { ${key} }`,
  join: (key) => {
    const away = ['package: "https://a/onejob.tgz"', `sha256: "${'a'.repeat(64)}"`];
    const rest = key.startsWith('through') ? away : ['listen: "127.0.0.1:7718"', 'url: "https://a"', 'package: /srv/onejob.tgz'];
    return `join: { ${[...rest.filter((one) => one.split(':')[0] !== key.split(':')[0]), key].join(', ')} }`;
  },
  disk: (key) => `disk: { ${key} }`,
  secrets: (key) => `secrets: { ${key} }`,
  notify: (key) => `notify: { ${/^(webhook|command)/.test(key) ? key : `command: [x], ${key}`} }`,
  buildkite: (key) =>
    `services: { a: { type: buildkite, token: { env: T }, ${key} } }`.replace('token: { env: T }, token', 'token'),
  github: (key) => {
    const token = /^(token|app)/.test(key) ? [] : ['token: { env: T }'];
    return `services: { a: { type: github, ${[...token, key].join(', ')} } }`;
  },
  app: (key) => {
    const rest = ['id: 1', 'private_key: { env: T }'].filter((other) => other.split(':')[0] !== key.split(':')[0]);
    return `services: { a: { type: github, app: { ${[...rest, key].join(', ')} } } }`;
  },
  'agent of github': (key) =>
    `services: { a: { type: github, token: { env: T }, agent: { ${key}${key.startsWith('sha256') ? ', version: 1.2.3' : ''} } } }`,
  webhook: (key) => {
    const rest = ['listen: "127.0.0.1:8787"', 'secret: { env: S }'].filter((other) => other.split(':')[0] !== key.split(':')[0]);
    return `services: { a: { type: github, token: { env: T }, webhook: { ${[...rest, key].join(', ')} } } }`;
  },
  docker: (key) => {
    const rest = ['socket: /run/x.sock', 'folder: /srv/x'].filter((other) => other.split(':')[0] !== key.split(':')[0]);
    return `services: { a: { type: github, token: { env: T }, docker: { ${[...rest, key].join(', ')} } } }`;
  },
  gitea: (key) => forge('gitea', key),
  gitlab: (key) => forge('gitlab', key),
  'agent of gitea': (key) => forge('gitea', `agent: { ${key} }`),
  'agent of gitlab': (key) => forge('gitlab', `agent: { ${key} }`),
  'agent of buildkite': (key) =>
    `services: { a: { type: buildkite, token: { env: T }, agent: { ${key}${key.startsWith('sha256') ? ', from: /srv/agent' : ''} } } }`,
  'azure-pipelines': (key) =>
    azure(`${key.startsWith('url') ? '' : 'url: "https://a"'}`, /^(token|principal)/.test(key) ? '' : 'token: { env: T }', key),
  principal: (key) =>
    azure(
      'url: "https://dev.azure.com/a"',
      `principal: { ${['tenant: t', 'client: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b', 'secret: { env: T }']
        .filter((other) => other.split(':')[0] !== key.split(':')[0])
        .concat(key)
        .join(', ')} }`,
    ),
  agent: (key) =>
    azure('url: "https://a", token: { env: T }', `agent: { ${key}${key.startsWith('sha256') ? ', version: 1.2.3' : ''} }`),
};

/** What entries of `clouds` need. */
const needed: Readonly<Record<string, string>> = {
  aws: 'region: us-west-2, scheduler_role: "arn:aws:iam::123456789012:role/onejob"',
  gcp: 'project: acme-ci, region: us-central1',
  azure:
    'subscription: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b, location: westeurope, subnet: "/subscriptions/5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/s"',
};

/** `key` instead of one of the same name. */
function cloudWith(type: string, key: string): string {
  const [name] = key.split(':');
  const rest = (needed[type] ?? '').split(/, (?=\w+:)/).filter((one) => one.split(':')[0] !== name);
  return `clouds: { c: { type: ${type}, ${[...rest, key].join(', ')} } }`;
}

/** In an entry of `hosts`. */
function hostWith(key: string): string {
  const rest = ['cloud: aws', 'types: [g6.xlarge]', 'pools: { gpu: {} }'].filter((one) => one.split(':')[0] !== key.split(':')[0]);
  const join = 'join: { listen: "127.0.0.1:7718", url: "http://127.0.0.1:7718", package: /srv/onejob.tgz }';
  return `clouds: { aws: { type: aws, ${needed.aws} } }\nhosts: { burst: { ${[...rest, key].join(', ')} } }\n${join}`;
}

function forge(type: string, key: string): string {
  const rest = [
    ...(key.startsWith('url') ? [] : ['url: "https://git.example.org"']),
    ...(key.startsWith('token') ? [] : ['token: { env: T }']),
  ];
  return `services: { a: { type: ${type}, ${[...rest, key].join(', ')} } }`;
}

function azure(...keys: string[]): string {
  return `services: { a: { ${['type: azure-pipelines', ...keys.filter((key) => key !== '')].join(', ')} } }`;
}

const hostSections = { host: hostFile, 'budget of a host': hostMaps.budget, 'image of a host': hostMaps.image };
const wraps: Readonly<Record<string, (key: string) => string>> = {
  host: hostWith,
  'budget of a host': (key) => hostWith(`budget: { ${key} }`),
  'image of a host': (key) => hostWith(`image: { from: ami-0abc1234def567890, ${key} }`.replace(/from: ami\S+, from/, 'from')),
};

describe.each([...cloudSections, ...Object.entries(hostSections)])('%s', (section, schema) => {
  it.each(Object.keys(schema?.shape ?? {}))('%s has a meaning and an example that is right', async (key) => {
    const { description, example, kind } = aboutOf((schema?.shape as Record<string, unknown> | undefined)?.[key]);
    expect(description).toMatch(/\.$/);
    expect(kind).not.toBe('');
    const [, map, type = ''] = /^(?:(\w+) of )?cloud (\w+)$/.exec(section) ?? [];
    const text = `${key}: ${example}`;
    const lines = await folder.check(wraps[section]?.(text) ?? cloudWith(type, map === undefined ? text : `${map}: { ${text} }`));
    // An example shows one key: that another one belongs to it, or that a file must be there, is not a mistake of its own.
    expect(
      lines.filter(
        (line) =>
          !/warning|does not exist|without|write one of|has no "(client|tenant)"|need "security_group"|is not used/.test(line),
      ),
    ).toEqual([]);
  });
});

const alone =
  /warning|does not exist|nothing to build on|"cpus" is not set|has only one of|needs "join"|there is no such|"services" has no/;

describe.each(Object.entries(sections).filter(([, schema]) => Object.keys(schema.shape).length > 0))('%s', (section, schema) => {
  it.each(Object.keys(schema.shape))('%s has a meaning and an example that is right', async (key) => {
    const { description, example, kind } = aboutOf(schema.shape[key as keyof typeof schema.shape]);
    expect(description).toMatch(/\.$/);
    expect(kind).not.toBe('');
    const wrap = inside[section] ?? ((text: string) => `pools: { x: {} }\ndefaults: { ${section}: { ${text} } }`);
    const lines = await folder.check(wrap(`${key}: ${example}`));
    // An example shows one key: that another one belongs to it, or that a file must be there, is not a mistake of its own.
    expect(lines.filter((line) => !alone.test(line))).toEqual([]);
  });
});
