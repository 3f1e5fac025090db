/** The machines of a config: its clouds, the controller, and the server that machines call. */
import { readFileSync } from 'node:fs';
import { OnejobError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Variables } from '../base/variables.ts';
import type { CloudParts } from '../clouds/kit/caller.ts';
import { cloudType, type CloudConfig as KnownCloud } from '../clouds/types.ts';
import type { Config } from '../config/config.ts';
import type { MachineService } from '../contract/manager.ts';
import { type Clock, every } from '../core/clock.ts';
import type { Ports } from '../http/ports.ts';
import type { CiService } from '../ports/ci-service.ts';
import type { Cloud } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import { isWanted, type Machine } from '../store/machine.ts';
import type { Store } from '../store/store.ts';
import { cloudInit } from './boot/cloud-init.ts';
import type { OwnedCloud } from './cloud-memory.ts';
import { type Controller, createController } from './controller.ts';
import { machineEvents } from './events.ts';
import { MachineJobs, type MachineJobsParts } from './jobs.ts';
import { Post } from './join/post.ts';
import type { MachineFile } from './join/protocol.ts';
import { JoinServer } from './join/server.ts';
import { type Archive, isOutdated, readArchive, servedFile } from './package.ts';
import { Clearing } from './registrations.ts';
import { machineService } from './service.ts';

export interface MachinesParts {
  readonly config: Pick<Config, 'clouds' | 'hosts' | 'join' | 'services' | 'origins' | 'secretsKey'>;
  readonly store: Pick<Store, 'machines' | 'transaction' | 'owner'>;
  readonly clock: Clock;
  readonly log: Log;
  readonly fetch: typeof fetch;
  readonly variables: Variables;
  /** Of the daemon. */
  readonly ports?: Ports | undefined;
  readonly version: string;
  /** See `ControllerParts`. */
  readonly only?: string;
  /** Why services cannot serve pools of hosts; null: they can, or nobody asks them. Read again and again. */
  readonly away?: ReadonlyMap<string, string | null>;
  /** Those of the hosts' pools. */
  readonly services: readonly Pick<CiService, 'name' | 'removeNamed'>[];
  /** The own queue, and where its jobs have their logs; null: a command without a daemon, which has no jobs. */
  readonly own:
    | (Pick<MachineJobsParts, 'queue' | 'logs' | 'history' | 'mayStart'> & {
        /** Counts again how many jobs of the pool wait. */
        readonly recount: (pool: string) => void;
      })
    | null;
}

export interface Machines {
  readonly controller: Controller;
  /** What machines that are gone have left at CI services. */
  readonly clearing: Clearing;
  readonly clouds: ReadonlyMap<string, OwnedCloud>;
  /** For the API. */
  readonly service: MachineService;
  /** Jobs of the own queue on machines; null: a command without a daemon has none. */
  readonly jobs: MachineJobs | null;
  /** Whether machines that another host made can be told to drain: by mail. */
  readonly drainsOthers: boolean;
  /** Why jobs of the pool wait, as the end of a sentence; null: its machines are busy, or it has none. */
  waitsFor(pool: string): string | null;
  /** What needs a person, one sentence each. */
  problems(): string[];
  start(): Promise<void>;
  close(): Promise<void>;
}

/** s without a controller and without a job after which a machine ends itself. */
const away = 1800;
/** s before the end that the cloud holds at which the machine ends itself, where it can. */
const endsBefore = 60;
/** ms between two looks at the package and the certificate, which people replace. */
const lookEvery = 60_000;

/** The adapters of all clouds of the config, by name. `usualOwner`: of those that name none. */
export async function openAdapters(
  clouds: Config['clouds'],
  parts: CloudParts,
  usualOwner: string,
): Promise<Map<string, OwnedCloud>> {
  const made = clouds.map(async (config): Promise<readonly [string, OwnedCloud]> => {
    const cloud = await cloudType(config.type).open(config as unknown as KnownCloud, parts);
    return [config.name, { cloud, owner: config.owner ?? usualOwner }];
  });
  return new Map(await Promise.all(made));
}

/** Never fails: what is missing is a problem, and the pools of this host continue. */
export async function openMachines(parts: MachinesParts): Promise<Machines> {
  const { config, store, clock, log, fetch, variables, version } = parts;
  const clouds = await openAdapters(config.clouds, { clock, fetch, log, variables, version }, store.owner);
  const archive = config.join === null ? null : await readArchive(config.join);
  return new OpenMachines(parts, clouds, archive);
}

class OpenMachines implements Machines {
  readonly controller: Controller;
  readonly clearing: Clearing;
  readonly clouds: ReadonlyMap<string, OwnedCloud>;
  readonly service: MachineService;
  readonly jobs: MachineJobs | null;
  readonly #parts: MachinesParts;
  /** What machines install, or why they cannot; null: the config has no "join". */
  #archive: Archive | string | null;
  /** null: machines cannot call this host, or it has none. */
  readonly #server: JoinServer | null;
  readonly #post: Post | null;
  #callOff = (): void => {};

  constructor(parts: MachinesParts, clouds: ReadonlyMap<string, OwnedCloud>, archive: Archive | string | null) {
    const { config, store, clock, log, ports, only } = parts;
    const { hosts, join } = config;
    this.#parts = parts;
    this.#archive = archive;
    this.clouds = clouds;
    this.clearing = new Clearing({ clock, log, store, services: parts.services });
    this.controller = createController({
      clock,
      log,
      store,
      clouds,
      hosts,
      ...(only !== undefined && { only }),
      changed: (machine) => this.#changed(machine),
      deaf: () => this.#server?.problem?.why ?? null,
      userData: (host, cloud, birth) => this.#userData(host, cloud, birth),
    });
    this.jobs = this.#jobsOf();
    const { controller, jobs } = this;
    const handler = machineEvents({
      config,
      variables: parts.variables,
      controller,
      jobs,
      file: join === null ? null : servedFile(join),
    });
    this.#server =
      join === null || join.listen === null
        ? null
        : new JoinServer({ listen: join.listen, tls: join.tls, key: 'join.listen', clock, log, handler, ports });
    const cloudOf = (machine: Machine): Cloud | null => clouds.get(machine.cloud)?.cloud ?? null;
    const machines = () => this.controller.machines();
    this.#post = join?.url === null ? new Post({ clock, log, handler, machines, cloudOf }) : null;
    this.service = machineService(hosts, clouds, this.controller, parts.away ?? new Map());
  }

  #jobsOf(): MachineJobs | null {
    const { own, clock, log, version, config } = this.#parts;
    if (own === null) return null;
    return new MachineJobs({
      ...own,
      clock,
      log,
      version,
      pools: config.hosts.flatMap(({ pools }) => pools.filter(({ service }) => service === 'own')),
      machine: (run) => this.controller.get(run),
      counted: (run, change, pool) => {
        // First: a job that a machine has would still count as one that waits, and get a second machine.
        own.recount(pool);
        this.controller.took(run, change);
      },
    });
  }

  #changed(machine: Machine): void {
    if (machine.state === 'gone') {
      this.clearing.gone(machine);
      this.jobs?.gone(machine);
    }
    // One that has joined takes jobs.
    if (machine.state === 'joined') queueMicrotask(() => this.jobs?.look());
  }

  /** @throws OnejobError E_CONFIG */
  #userData(host: HostConfig, cloud: Cloud, birth: { readonly run: string; readonly token: string }): string {
    const { join, hosts } = this.#parts.config;
    if (join === null || this.#archive === null) throw new OnejobError('E_CONFIG', 'The config has no "join".');
    if (typeof this.#archive === 'string') throw new OnejobError('E_CONFIG', this.#archive);
    const { url, sha256 } = this.#archive;
    const pools = hosts.find((one) => one.host === host.host)?.pools ?? [];
    return cloudInit({
      ...birth,
      url: join.url,
      cloud: cloud.type as MachineFile['cloud'],
      away,
      opengl: host.opengl,
      package: { url: url ?? `${join.url}/cloud/onejob.tgz?run=${birth.run}`, sha256 },
      ca: join.ca === null ? null : readFileSync(join.ca, 'utf8'),
      has: (host.image ?? cloud.usualImage).has,
      gpu: pools.some(({ devices }) => devices.count !== 0),
      sandbox: pools.some(({ runtime }) => runtime === 'process'),
      guestEnds: cloud.capabilities.guestEnds,
      lifetime: Math.floor(host.lifetime / 1000) - endsBefore,
      setup: host.setup.join('\n'),
    });
  }

  get drainsOthers(): boolean {
    return this.#post !== null;
  }

  waitsFor(pool: string): string | null {
    const host = this.#parts.config.hosts.find(({ pools }) => pools.some(({ name }) => name === pool))?.host;
    if (host === undefined) return null;
    const known = this.controller.reason(host);
    if (known !== null) return known;
    const mine = this.controller.machines().filter((machine) => machine.host === host && isWanted(machine));
    const coming = mine.find(({ state }) => state !== 'joined');
    if (coming !== undefined) return `machine ${coming.run} starts`;
    const mute = mine.find(({ run }) => this.jobs?.isConnected(run) === false);
    if (mute === undefined) return null;
    return `machine ${mute.run} has joined, but not opened its connection for jobs: "journalctl -u onejob-attend" there says why`;
  }

  problems(): string[] {
    const problem = this.#server?.problem;
    const strange = this.controller.machines().filter(({ cloud }) => !this.clouds.has(cloud));
    const lost = [...Map.groupBy(strange, ({ cloud }) => cloud)].map(
      ([cloud, of]) =>
        `Cloud ${cloud} was removed from the config, so onejob cannot remove ${of.map(({ run }) => run).join(', ')}. Add it again until they are gone.`,
    );
    return [
      ...(problem == null ? [] : [`Machines cannot join: ${problem.why}. ${problem.hint}`]),
      ...(typeof this.#archive === 'string' ? [this.#archive] : []),
      ...lost,
      ...[...this.clouds.keys()].flatMap((name) => [...unlisted(this.controller, name), ...this.controller.refused(name)]),
    ];
  }

  async start(): Promise<void> {
    const { clock, log, config } = this.#parts;
    const { join } = config;
    this.jobs?.start();
    await this.#server?.open();
    this.#post?.start();
    this.controller.start();
    const look = async (): Promise<void> => {
      this.#server?.refresh();
      if (join !== null && this.#archive !== null && (await isOutdated(this.#archive, join)))
        this.#archive = await readArchive(join);
    };
    this.#callOff = every(clock, lookEvery, look, (error) => log.error('failed to look at what machines need', { error }));
    this.clearing.start();
  }

  async close(): Promise<void> {
    this.#callOff();
    this.#post?.close();
    this.controller.close();
    this.clearing.close();
    await this.jobs?.close();
    await this.#server?.close();
  }
}

/** Why nobody knows what exists in a cloud, a sentence each. */
export function unlisted(controller: Controller, name: string): string[] {
  const listed = controller.listed(name);
  if (listed === null) return [];
  if (listed.failed !== null) return [`Cannot list what exists in cloud ${name}: ${listed.failed}`];
  return listed.unknown.length === 0 ? [] : [`Cannot list all of cloud ${name}: ${listed.unknown.join(', ')}.`];
}
