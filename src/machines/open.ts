/** The machines of a config: its clouds, the controller, and the server that machines call. */
import { createHash } from 'node:crypto';
import { createReadStream, readFileSync, statSync } from 'node:fs';
import { attempt, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Variables } from '../base/variables.ts';
import type { CloudParts } from '../clouds/kit/caller.ts';
import { cloudType, type CloudConfig as KnownCloud } from '../clouds/types.ts';
import type { Config, JoinConfig } from '../config/config.ts';
import { type Clock, every } from '../core/clock.ts';
import type { Ports } from '../http/ports.ts';
import type { CiService } from '../ports/ci-service.ts';
import { isWanted, type Machine } from '../store/machine.ts';
import type { Store } from '../store/store.ts';
import { isReachable } from '../system/file-server.ts';
import { cloudInit } from './boot/cloud-init.ts';
import { type Controller, createController, type OwnedCloud } from './controller.ts';
import { guestOf } from './guest.ts';
import { createMachineJobs, type MachineJobs, type MachineJobsParts } from './jobs.ts';
import type { Desk } from './join/desk.ts';
import { createPost } from './join/post.ts';
import { createJoinServer } from './join/server.ts';
import { drained, ended, tokenCameAgain } from './plan.ts';
import { createClearing } from './registrations.ts';
import { machineService } from './service.ts';

type CloudsConfig = Pick<Config, 'clouds' | 'hosts' | 'join' | 'services' | 'origins' | 'secretsKey'>;

export interface MachinesParts {
  readonly config: CloudsConfig;
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

export type Machines = Awaited<ReturnType<typeof openMachines>>;

/** s between two reports of a machine. */
const beat = 15;
/** s without a controller and without a job after which a machine ends itself. */
const away = 1800;
/** s before the end that the cloud holds at which the machine ends itself, where it can. */
const endsBefore = 60;

/** Jobs that one machine can run, whatever it says. */
const mostJobs = 512;
/** ms between two looks at the package and the certificate, which people replace. */
const lookEvery = 60_000;

/** The adapters of all clouds of the config, by name. */
export async function openAdapters(
  clouds: CloudsConfig['clouds'],
  parts: CloudParts,
  usualOwner: string,
): Promise<Map<string, OwnedCloud>> {
  const made = clouds.map(
    async (cloud) =>
      [
        cloud.name,
        { cloud: await cloudType(cloud.type).open(cloud as unknown as KnownCloud, parts), owner: cloud.owner ?? usualOwner },
      ] as const,
  );
  return new Map(await Promise.all(made));
}

/** Never fails: what is missing is a problem, and the pools of this host go on. */
export async function openMachines(parts: MachinesParts) {
  const { config, store, clock, log, fetch, variables, version } = parts;
  const { hosts } = config;
  const { join } = config;
  const clouds = await openAdapters(config.clouds, { clock, fetch, log, variables, version }, store.owner);
  const read = async (): Promise<Archive | string | null> =>
    join === null ? null : archiveOf(join).catch((error: unknown) => toFailure(error).message);
  let archive = await read();
  const clearing = createClearing({ clock, log, store, services: parts.services });
  const controller = createController({
    clock,
    log,
    store,
    clouds,
    hosts,
    ...(parts.only !== undefined && { only: parts.only }),
    changed(machine) {
      if (machine.state === 'gone') {
        clearing.gone(machine);
        jobs?.gone(machine);
      }
      // One that has joined takes jobs.
      if (machine.state === 'joined') queueMicrotask(() => jobs?.look());
    },
    deaf: () => server?.problem?.why ?? null,
    userData(host, cloud, { run, token }) {
      if (join === null || archive === null) throw new OnejobError('E_CONFIG', 'The config has no "join".');
      if (typeof archive === 'string') throw new OnejobError('E_CONFIG', archive);
      const type = cloud.type as 'aws' | 'gcp' | 'azure';
      const pools = hosts.find((one) => one.host === host.host)?.pools ?? [];
      return cloudInit({
        run,
        token,
        url: join.url,
        cloud: type,
        away,
        opengl: host.opengl,
        package: { url: archive.url ?? `${join.url}/cloud/onejob.tgz?run=${run}`, sha256: archive.sha256 },
        ca: join.ca === null ? null : readFileSync(join.ca, 'utf8'),
        has: (host.image ?? cloud.usualImage).has,
        gpu: pools.some(({ devices }) => devices.count !== 0),
        guestEnds: cloud.capabilities.guestEnds,
        lifetime: Math.floor(host.lifetime / 1000) - endsBefore,
        setup: host.setup.join('\n'),
      });
    },
  });
  const { own } = parts;
  const jobs =
    own === null
      ? null
      : createMachineJobs({
          ...own,
          clock,
          log,
          version,
          pools: hosts.flatMap(({ pools }) => pools.filter(({ service }) => service === 'own')),
          machine: controller.get,
          counted(run, change, pool) {
            // First: a job that a machine has would still count as one that waits, and get a second machine.
            own.recount(pool);
            controller.took(run, change);
          },
        });
  const desk = deskOf(parts, controller, jobs);
  const server =
    join === null || join.listen === null
      ? null
      : createJoinServer({ listen: join.listen, tls: join.tls, key: 'join.listen', clock, log, desk, ports: parts.ports });
  const cloudOf = (machine: Machine) => clouds.get(machine.cloud)?.cloud ?? null;
  const post = join?.url === null ? createPost({ clock, log, desk, machines: controller.machines, cloudOf }) : null;
  let callOff = (): void => {};
  return {
    controller,
    clearing,
    hosts,
    clouds,
    service: machineService(hosts, clouds, controller, parts.away ?? new Map()),
    /** Jobs of the own queue on machines. */
    jobs,
    /** Whether machines that another host made can be told to drain: by mail. */
    drainsOthers: post !== null,
    /** Why jobs of the pool wait, as the end of a sentence; null: its machines are busy, or it has none. */
    waitsFor(pool: string): string | null {
      const host = hosts.find(({ pools }) => pools.some(({ name }) => name === pool))?.host;
      if (host === undefined) return null;
      const known = controller.reason(host);
      if (known !== null) return known;
      const mine = controller.machines().filter((machine) => machine.host === host && isWanted(machine));
      const coming = mine.find(({ state }) => state !== 'joined');
      if (coming !== undefined) return `machine ${coming.run} starts`;
      const mute = mine.find(({ run }) => jobs?.isConnected(run) === false);
      if (mute === undefined) return null;
      return `machine ${mute.run} has joined, but not opened its connection for jobs: "journalctl -u onejob-attend" there says why`;
    },
    /** What needs a person, one sentence each. */
    problems(): string[] {
      const unheard = server?.problem == null ? [] : [`Machines cannot join: ${server.problem.why}. ${server.problem.hint}`];
      const missing = typeof archive === 'string' ? [archive] : [];
      const strange = controller.machines().filter(({ cloud }) => !clouds.has(cloud));
      const lost = [...Map.groupBy(strange, ({ cloud }) => cloud)].map(
        ([cloud, of]) =>
          `The config has no cloud ${cloud} any more, so onejob cannot remove ${of.map(({ run }) => run).join(', ')}: put it back until they are gone.`,
      );
      return [
        ...unheard,
        ...missing,
        ...lost,
        ...[...clouds.keys()].flatMap((name) => [...unlisted(controller, name), ...controller.refused(name)]),
      ];
    },
    async start(): Promise<void> {
      jobs?.start();
      await server?.open();
      post?.start();
      controller.start();
      callOff = every(
        clock,
        lookEvery,
        async () => {
          server?.refresh();
          if (join !== null && (await isOlder(archive, join))) archive = await read();
        },
        (error) => log.error('failed to look at what machines need', { error }),
      );
      clearing.start();
    },
    async close(): Promise<void> {
      callOff();
      post?.close();
      controller.close();
      clearing.close();
      await jobs?.close();
      await server?.close();
    },
  };
}

/** Why nobody knows what exists in a cloud, a sentence each. */
export function unlisted(controller: Controller, name: string): string[] {
  const listed = controller.listed(name);
  if (listed === null) return [];
  if (listed.failed !== null) return [`Cannot list what exists in cloud ${name}: ${listed.failed}`];
  return listed.unknown.length === 0 ? [] : [`Cannot list all of cloud ${name}: ${listed.unknown.join(', ')}.`];
}

interface Archive {
  /** null: the controller serves it. */
  readonly url: string | null;
  readonly sha256: string;
  /** When its file was changed, ms. */
  readonly changedAt: number;
}

/** Whether another file has come in its place. */
async function isOlder(archive: Archive | string | null, { package: place }: JoinConfig): Promise<boolean> {
  if (place.startsWith('https:') || !(await isReachable(place))) return false;
  const found = attempt(() => statSync(place).mtimeMs);
  return typeof archive === 'string' ? found !== null : archive?.changedAt !== found;
}

/** The archive that machines install: its checksum and its address; null: the controller serves it. @throws OnejobError E_CONFIG */
async function archiveOf({ package: place, sha256 }: JoinConfig): Promise<Archive> {
  if (place.startsWith('https:')) return { url: place, sha256: sha256 ?? '', changedAt: 0 };
  const hash = createHash('sha256');
  let changedAt: number;
  try {
    if (!(await isReachable(place))) throw new Error('its file server does not answer');
    changedAt = statSync(place).mtimeMs;
    for await (const piece of createReadStream(place)) hash.update(piece);
  } catch (error) {
    throw new OnejobError('E_CONFIG', `Cannot read the package for machines, ${place}: ${messageOf(error)}.`, {
      hint: 'Put a release archive of onejob there, or change "join.package".',
    });
  }
  return { url: null, sha256: hash.digest('hex'), changedAt };
}

/** What machines tell becomes events of the controller. */
function deskOf({ config, variables }: MachinesParts, controller: Controller, jobs: MachineJobs | null): Desk {
  const { join, hosts, services, origins, secretsKey } = config;
  return {
    secretsOf(run) {
      const machine = controller.get(run);
      // A machine that has joined and is to end is told so.
      if (machine === null || (machine.state === 'ending' && machine.joinedAt === null)) return null;
      const { tokenHash: token, credentialHash: credential, joinedAt } = machine;
      return { token, credential, hasJoined: joinedAt !== null };
    },
    stage({ run, stage, text }) {
      if (stage === 'joined') return controller.joined(run);
      controller.change(run, (machine, now) => {
        if (machine.stage === stage) return machine;
        const known = { ...machine, stage };
        if (stage === 'failed') return ended(known, now, `It could not be set up: ${text.slice(-2000)}`, true);
        if (stage === 'drained')
          return ended(known, now, machine.why ?? 'It had no job and heard nothing of its controller.', false);
        if (stage === 'preempted') return drained(known, now, 'The cloud takes it back.', true);
        return known;
      });
    },
    bind(run, credential) {
      let isBound = false;
      controller.change(run, (machine) => {
        if (machine.credentialHash !== null) return machine;
        isBound = true;
        return { ...machine, credentialHash: credential };
      });
      return isBound;
    },
    async belongings(run) {
      const name = controller.get(run)?.host;
      const host = hosts.find((one) => one.host === name);
      if (host === undefined) throw new OnejobError('E_CONFIG', `The config has no host ${name} any more.`);
      // Also for a command without jobs: a daemon that starts later has some.
      const tunnel = host.pools.some(({ service }) => service === 'own');
      return { ...(await guestOf(host, run, { services, origins, secretsKey, variables })), beat, tunnel };
    },
    stolen(run, from) {
      controller.change(run, (machine, now) =>
        tokenCameAgain(
          machine,
          now,
          hosts.find(({ host }) => host === machine.host),
          from,
        ),
      );
    },
    beat({ run, busy, agents, slots, idleFor, problem }) {
      const machine = controller.get(run);
      // The machine says it, and its jobs may have its credential.
      const room = Math.min(slots ?? agents, mostJobs);
      const own = jobs?.on(run) ?? 0;
      const report = { busy: Math.max(own, Math.min(busy, room)), agents: room, problem };
      controller.report(run, { ...report, idleFor: own > 0 ? 0 : idleFor / 1000 });
      if (machine === null || machine.state === 'ending') return 'end';
      return machine.state === 'draining' ? 'drain' : 'stay';
    },
    unheard: controller.unheard,
    tunnel(run, pipe) {
      return jobs?.connected(run, pipe) ?? false;
    },
    package: join === null || join.package.startsWith('https:') ? null : join.package,
  };
}
