/** The stand-ins of the three clouds on ports of this machine, each with what a config needs to use it. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { systemClock } from '../../src/system/system-clock.ts';
import { type AwsOptions, type AwsStandin, createAws, schedulerRole, testKey } from '../standins/aws/standin.ts';
import {
  azureCloud,
  client,
  clientSecret,
  location,
  securityGroup,
  subnet,
  subscription,
  tenant,
} from '../standins/azure-cloud/azure-cloud.ts';
import { createGcp } from '../standins/gcp/standin.ts';
import { freePort } from './free-port.ts';
import { scratch } from './scratch.ts';
import { createAuthority } from './tls-front.ts';

/** What a machine at a stand-in does. */
export interface Machines {
  /** It runs. `id`: as onejob calls it. `text`: for cloud-init. */
  boot(id: string, text: string): void;
  /** The cloud ends it. */
  end(id: string): void;
}

export interface Guest {
  /** Its metadata service, at the address that all clouds have. */
  readonly metadata: typeof fetch;
  /** Writes on its console. */
  print(text: string): void;
}

export interface CloudStandin extends AsyncDisposable {
  /** Keys of its entry in `clouds`, without the owner. */
  readonly keys: string;
  /** For the controller. */
  readonly env: Readonly<Record<string, string>>;
  /** How machines reach the controller, and the keys of `join` for that; its files go into the folder. */
  readonly scheme: 'http' | 'https';
  join(dir: string): string;
  /** What a host's `types` may name. */
  readonly types: readonly string[];
  /** What the machine of that id has of the cloud. */
  guest(id: string): Guest;
  /** Ids of all that exists and costs money or holds a name. */
  left(): string[];
}

/** Line of a config by which machines reach the controller of a home, on a port of its own, and get a package from it. */
export async function joinOf({ dir }: { readonly dir: string }): Promise<string> {
  const [port, archive] = [await freePort(), join(dir, 'onejob.tgz')];
  writeFileSync(archive, 'a package');
  return `join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }`;
}

/** What a machine reads at its metadata service, which a stand-in has at an address for each. */
export const metadataAt =
  (standin: typeof fetch, id: string): typeof fetch =>
  (input, init) =>
    standin(String(input).replace('http://169.254.169.254/', `http://standin/machines/${id}/`), init);

/** As cloud-init reads it. */
const unpacked = (userData: Buffer): string => (userData[0] === 0x1f ? gunzipSync(userData) : userData).toString();

export async function awsStandin(
  machines: Machines,
  options: Partial<AwsOptions> = {},
): Promise<CloudStandin & { readonly aws: AwsStandin }> {
  const aws = createAws({
    clock: systemClock,
    times: { boot: 200, end: 200 },
    hooks: { onBoot: ({ id, userData }) => machines.boot(id, unpacked(userData)), onEnd: ({ id }) => machines.end(id) },
    ...options,
  });
  const served = await aws.serve();
  return {
    aws,
    keys: `type: aws, region: us-west-2, endpoint: "${served.url}", scheduler_role: "${schedulerRole}", security_group: sg-0e00000000000000, credentials: { access_key_id: ${testKey.id}, secret_access_key: { env: AWS_SECRET } }`,
    env: { AWS_SECRET: testKey.secret },
    scheme: 'http',
    join: () => '',
    types: ['g6.xlarge', 'g5.xlarge'],
    left: aws.leftovers,
    guest: (id) => ({
      metadata: metadataAt(aws.fetch, id),
      print(text) {
        const machine = aws.world.machines.get(id);
        if (machine !== undefined) aws.world.print(machine, text);
      },
    }),
    async [Symbol.asyncDispose]() {
      aws.close();
      await served[Symbol.asyncDispose]();
    },
  };
}

export async function gcpStandin(machines: Machines): Promise<CloudStandin & { readonly gcp: ReturnType<typeof createGcp> }> {
  const gcp = createGcp({
    clock: systemClock,
    times: { start: 200, stop: 200 },
    hooks: { onBoot: ({ name, userData }) => machines.boot(name, userData), onEnd: ({ name }) => machines.end(name) },
  });
  const served = await gcp.serve();
  return {
    gcp,
    keys: `type: gcp, project: ${gcp.project}, region: us-central1, endpoint: "${gcp.origin}", credentials: { file: { env: GCP_KEY } }`,
    env: { GCP_KEY: gcp.keyFile() },
    scheme: 'http',
    join: () => '',
    types: ['g2-standard-4'],
    guest: (id) => ({
      metadata: metadataAt(gcp.fetch, id),
      print(text) {
        for (const machine of gcp.machines()) if (machine.name === id) machine.console += text;
      },
    }),
    left: () => [...gcp.machines(), ...gcp.disks(), ...gcp.addresses()].map(({ name }) => name),
    [Symbol.asyncDispose]: () => served[Symbol.asyncDispose](),
  };
}

/** With TLS, by an authority of its own that the controller and its machines are told of. Needs `openssl`. */
export async function azureStandin(machines: Machines): Promise<CloudStandin & { readonly azure: ReturnType<typeof azureCloud> }> {
  await using stack = new AsyncDisposableStack();
  const authority = createAuthority(stack.use(scratch()).path);
  const identity = authority.issue('127.0.0.1');
  const timing = { allocate: 200, boot: 200, report: 200, removeMachine: 200, removeGroup: 300, late: 100 };
  const azure = azureCloud({ timing, retryAfter: 1 });
  azure.world.hooks.onBoot = ({ id, userData }) => machines.boot(id, userData);
  azure.world.hooks.onEnd = ({ id }) => machines.end(id);
  stack.use(await azure.serve(identity));
  const { groups, resources } = azure.world;
  const all = stack.move();
  return {
    azure,
    keys: `type: azure, subscription: ${subscription}, location: ${location}, subnet: "${subnet}", security_group: "${securityGroup}", endpoint: "${azure.url}", login_endpoint: "${azure.url}", credentials: { tenant: ${tenant}, client: ${client}, secret: { env: AZURE_SECRET } }`,
    env: { AZURE_SECRET: clientSecret, NODE_EXTRA_CA_CERTS: authority.file },
    scheme: 'https',
    types: ['Standard_NC4as_T4_v3'],
    join(dir) {
      writeFileSync(join(dir, 'join.key'), identity.key, { mode: 0o600 });
      writeFileSync(join(dir, 'join.pem'), identity.cert);
      return `tls_cert: "${join(dir, 'join.pem')}", tls_key: "${join(dir, 'join.key')}", ca: "${authority.file}"`;
    },
    guest(id) {
      const name = id.slice(id.lastIndexOf('/') + 1);
      const print = (text: string) => void azure.consoles.set(name, (azure.consoles.get(name) ?? '') + text);
      return { metadata: metadataAt(azure.fetch, name), print };
    },
    left: () => [...groups.keys(), ...resources.keys()],
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}
