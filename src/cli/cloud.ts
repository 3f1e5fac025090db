/** `onejob cloud`: machines in clouds, by the daemon where one runs, else by this command itself. */

import { OnejobError, toFailure } from '../base/errors.ts';
import { createLog } from '../base/log.ts';
import { offerText } from '../clouds/offer.ts';
import type { Config } from '../config/config.ts';
import { lookAtHost } from '../config/host-look.ts';
import { loadConfig } from '../config/load.ts';
import { fromErrorView } from '../contract/http-errors.ts';
import type { CloudHostView, MachineView } from '../contract/schema.ts';
import { sleep } from '../core/clock.ts';
import { createOutbound } from '../http/outbound.ts';
import type { OwnedCloud } from '../machines/cloud-memory.ts';
import { type Machines, openAdapters, openMachines, unlisted } from '../machines/open.ts';
import { sweepRegistrations, type Tagged } from '../machines/registrations.ts';
import { machineView } from '../machines/service.ts';
import { type SweepResult, sweep } from '../machines/sweep.ts';
import type { Cloud, Thing } from '../ports/cloud.ts';
import { suggestAtEnd } from '../schema/problem.ts';
import { openToRead } from '../store/open-to-read.ts';
import { openWhenFree } from '../store/store.ts';
import { systemClock as clock } from '../system/system-clock.ts';
import { openHostServices } from './cloud-services.ts';
import { findDaemon, withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { formatAge, plural, titledTable } from './text.ts';
import { types } from './types.ts';

export interface CloudFlags {
  readonly timeout?: number;
  readonly now?: boolean;
  readonly wait: boolean;
}

export interface SweepFlags {
  readonly owner?: string;
  readonly cloud?: readonly string[];
  readonly all?: boolean;
  readonly dryRun?: boolean;
  readonly timeout?: number;
}

/** ms to wait for a machine. */
const usualPatience = 45 * 60_000;
/** ms for which a daemon continues at most. */
const longestWish = 24 * 3_600_000;
/** ms to wait until a sweep shows nothing. */
const usualSweep = 15 * 60_000;
/** ms between two looks. */
const poll = 1_000;

/**
 * `used`: what the command needs of it, so that a pipeline need not have the secrets of everything else.
 * @throws OnejobError E_CONFIG, E_USAGE if it names no cloud
 */
export async function cloudConfig(session: Session, used = (config: Config): Config => config): Promise<Config> {
  const { config } = await loadConfig({
    types,
    ...configSource(session),
    look: lookAtHost,
    isUsed: (key, whole) => used(whole).secrets.some(([one]) => one === key),
  });
  if (config.clouds.length > 0) return config;
  throw wrongUsage('The config names no cloud.', 'Write one under "clouds"; see docs/cloud.md.');
}

/** The part of a config that commands about some hosts use: their clouds, and the services of their pools. */
const ofHosts =
  (names: readonly string[]) =>
  (config: Config): Config => {
    const hosts = config.hosts.filter(({ host }) => names.includes(host));
    return partOf(config, hosts, new Set(hosts.map(({ cloud }) => cloud)));
  };

/** The part that commands about some clouds use. */
export const ofClouds =
  (names: readonly string[]) =>
  (config: Config): Config => {
    const clouds = new Set(names);
    return partOf(
      config,
      config.hosts.filter(({ cloud }) => clouds.has(cloud)),
      clouds,
    );
  };

function partOf(config: Config, hosts: Config['hosts'], clouds: ReadonlySet<string>): Config {
  const services = new Set(hosts.flatMap(({ pools }) => pools.map(({ service }) => service)));
  const isUsed = (key: string): boolean => {
    const [kind, name = ''] = key.split('.');
    return kind === 'services' ? services.has(name) : kind === 'clouds' ? clouds.has(name) : kind !== 'notify';
  };
  return {
    ...config,
    hosts,
    notify: null,
    secrets: config.secrets.filter(([key]) => isUsed(key)),
    clouds: config.clouds.filter(({ name }) => clouds.has(name)),
    services: config.services.filter(({ name }) => services.has(name)),
  };
}

export function hostOf(config: Config, name: string) {
  const found = config.hosts.find(({ host }) => host === name);
  if (found !== undefined) return found;
  const names = config.hosts.map(({ host }) => host);
  throw wrongUsage(`The config has no host ${JSON.stringify(name)}; ${suggestAtEnd(name, names)}`);
}

/** The adapters, with the owner of each, for commands that ask the clouds themselves. */
export async function adapters(session: Session, config: Config, owner: string | null) {
  const { context, version } = session;
  const outbound = createOutbound(context.environment.proxies);
  const log = createLog({ json: session.output.json, stream: context.stderr });
  const parts = { clock, fetch: outbound.fetch, log, variables: context.variables, version };
  const clouds = await openAdapters(config.clouds, parts, owner ?? (await ownerOf(config)));
  return {
    clouds,
    [Symbol.dispose]() {
      for (const { cloud } of clouds.values()) cloud.close?.();
      outbound.close();
    },
  };
}

/** The id of the installation. */
async function ownerOf(config: Config): Promise<string> {
  if (config.clouds.every(({ owner }) => owner !== null)) return '';
  using store = openToRead(config.stateDir);
  if (store.owner !== null) return store.owner;
  throw wrongUsage('Cannot tell whose machines are meant: no state of a daemon was found here.', 'Name the owner with --owner.');
}

/** What a daemon and this command can both do. */
interface HostControl {
  hosts(): Promise<CloudHostView[]>;
  up(host: string, wait: number, signal: AbortSignal): Promise<CloudHostView>;
  down(host: string, now: boolean): Promise<CloudHostView>;
  /** null: a daemon has them. */
  readonly machines: Machines | null;
}

/**
 * Runs `work` with the daemon, or with a controller of its own. Only the latter reads the config and its secrets.
 * @throws OnejobError E_USAGE if there is no such host
 */
async function withControl<T>(session: Session, only: string, work: (control: HostControl) => Promise<T>): Promise<T> {
  const connection = await findDaemon(session);
  if (connection !== null) {
    using _ = { [Symbol.dispose]: () => connection.close() };
    const { client } = connection;
    const control = {
      hosts: client.machines,
      up: (host: string, wait: number, signal: AbortSignal) =>
        client.call('POST /v1/machines/:host/up', { params: { host }, body: { wait } }, signal),
      down: (host: string, now: boolean) => client.call('POST /v1/machines/:host/down', { params: { host }, body: { now } }),
      machines: null,
    };
    await hostView(control, only);
    return await work(control);
  }
  const used = ofHosts([only]);
  const whole = await cloudConfig(session, used);
  hostOf(whole, only);
  const part = used(whole);
  // Another cloud is not this command's business. Other hosts of this one stay known, for what they have in the store.
  const config = { ...whole, clouds: part.clouds };
  const { context, version, output } = session;
  await using parts = new AsyncDisposableStack();
  const store = await openWhenFree(config.stateDir, { temporary: false, tellToLeave: async () => {} });
  parts.defer(() => store.close());
  const outbound = createOutbound(context.environment.proxies);
  parts.defer(() => outbound.close());
  // The command itself tells what happens.
  const log = { ...createLog({ json: output.json, stream: context.stderr }), info() {} };
  const { variables } = context;
  const { services } = parts.use(await openHostServices(session, part));
  const given = { config, store, clock, log, fetch: outbound.fetch, variables, version, services, only, own: null };
  const machines = await openMachines(given);
  parts.defer(() => machines.close());
  const { service } = machines;
  const later =
    <A extends unknown[], R>(ask: (...given: A) => R) =>
    async (...given: A): Promise<R> =>
      ask(...given);
  await machines.start();
  const control = { hosts: later(service.hosts), up: service.up, down: later(service.down) };
  return await work({ ...control, machines });
}

/** `gave up`: it took longer than `patience` ms. */
type FollowEnd = number | 'interrupted' | 'gave up';

/** Follows the machines of a host until `isOver` says how it ended, or `signal` aborts. */
async function follow(
  { output }: Session,
  control: HostControl,
  name: string,
  { patience, signal }: { readonly patience: number; readonly signal: AbortSignal },
  isOver: (view: CloudHostView) => number | null,
  saysReason = true,
): Promise<FollowEnd> {
  const began = clock.now();
  const told = new Map<string, string>();
  let problems = new Set<string>();
  let reason: string | null = null;
  try {
    for (;;) {
      const view = await hostView(control, name);
      for (const machine of view.machines) {
        if (told.get(machine.run) === machine.state) continue;
        told.set(machine.run, machine.state);
        output.say(machineWords(machine));
      }
      for (const run of told.keys())
        if (told.get(run) !== 'gone' && !view.machines.some((one) => one.run === run)) {
          told.set(run, 'gone');
          output.say(`machine ${run} is gone: two complete lists show nothing of it`);
        }
      const now = unlistedBy(control);
      for (const problem of now) if (!problems.has(problem)) output.say(problem);
      problems = new Set(now);
      if (saysReason && view.reason !== reason && view.reason !== null) output.say(`${name} waits: ${view.reason}`);
      reason = view.reason;
      const code = isOver(view);
      if (code !== null) return code;
      const waited = clock.now() - began;
      if (signal.aborted) return 'interrupted';
      if (waited > patience) return 'gave up';
      output.progress(`${name}: ${view.machines.map(({ state }) => state).join(', ') || 'no machine'}, ${formatAge(waited)}`);
      await sleep(clock, poll, signal);
    }
  } finally {
    output.progress(null);
  }
}

/** What this command cannot list; a daemon tells that in its own place. */
function unlistedBy({ machines }: HostControl): string[] {
  return machines === null ? [] : [...machines.clouds.keys()].flatMap((name) => unlisted(machines.controller, name));
}

/** Lines about what could not be listed: one for all of a cloud with the same reason, such as `cloud aws: volumes in us-west-2 (no answer)`. */
export function unlistedWords(host: string, unlisted: readonly string[]): string[] {
  if (unlisted.length === 0) return [];
  const parts = unlisted.map((text) => {
    const [, cloud = '', what = text, reason = ''] = /^(cloud [^:]+: )(.*?)( \([^()]*\))?$/s.exec(text) ?? [];
    return { cloud, what, reason };
  });
  const groups = Map.groupBy(parts, ({ cloud, reason }) => `${cloud}${reason}`);
  const lines = [...groups.values()].map((same) => {
    const { cloud = '', reason = '' } = same[0] ?? {};
    return `could not list ${cloud}${same.map(({ what }) => what).join(', ')}${reason}`;
  });
  return [...lines, `"onejob cloud check ${host}" may say why`];
}

/** @throws OnejobError E_USAGE if the daemon's config has no such host */
async function hostView(control: Pick<HostControl, 'hosts'>, name: string): Promise<CloudHostView> {
  const hosts = await control.hosts();
  const found = hosts.find(({ host }) => host === name);
  if (found !== undefined) return found;
  const names = hosts.map(({ host }) => host);
  const what = names.length === 0 ? 'no "hosts".' : `no host ${JSON.stringify(name)}; ${suggestAtEnd(name, names)}`;
  throw wrongUsage(`The config of the daemon has ${what}`, 'The config file may have changed since; see "onejob config apply".');
}

/** ms within which a second signal is the same one: a wrapper sends it to its child, and again to the process group. */
const sameSignal = 500;

/** Signals of the terminal or of a CI service, in turn: the first one aborts `stop`, the next one `hurry`. */
export function interrupts({ context }: Pick<Session, 'context'>) {
  const [stop, hurry] = [new AbortController(), new AbortController()];
  let first = 0;
  const interrupt = (): void => {
    if (!stop.signal.aborted) {
      first = clock.now();
      stop.abort();
    } else if (clock.now() - first > sameSignal) hurry.abort();
  };
  const releases = [context.process.onSignal(interrupt), context.process.onHangup(interrupt)];
  const release = (): void => {
    // The process ends soon: another Ctrl-C must not kill it before its store is closed.
    if (!stop.signal.aborted) for (const each of releases) each();
  };
  return { stop: stop.signal, hurry: hurry.signal, [Symbol.dispose]: release };
}

/** What a command to type ends with, so that it uses the same config. */
const sameConfig = ({ flags }: Session): string => (flags.config === undefined ? '' : ` --config ${flags.config}`);

function machineWords({ run, offer, state, why, id, place, console: text }: MachineView): string {
  const what = `machine ${run} (${offerText(offer)})`;
  switch (state) {
    case 'intent':
      return `${what}: asking the cloud`;
    case 'made':
      return `${what}: created as ${id} in ${place}; setting its end`;
    case 'booting':
      return `${what}: boots`;
    case 'joined':
      return `${what}: has joined`;
    case 'draining':
      return `${what}: drains. ${why ?? ''}`;
    default:
      return `${what}: is being removed. ${why ?? ''}${text === null ? '' : ` Its console ended with:\n${text.slice(-1500)}`}`;
  }
}

export async function upHost(session: Session, name: string, { timeout = usualPatience, wait }: CloudFlags): Promise<number> {
  const { output } = session;
  const down = `"onejob cloud down ${name}${sameConfig(session)}"`;
  return withControl(session, name, async (control) => {
    if (!wait && control.machines !== null)
      throw wrongUsage('No daemon is running, so "up" must wait until the machine has joined: leave out --no-wait.');
    using asked = interrupts(session);
    const began = clock.now();
    output.progress(`checking whether a machine of ${name} can be made`);
    const first = await control.up(name, Math.min(timeout, longestWish), asked.stop).catch((error: unknown) => {
      if (!asked.stop.aborted) throw error;
      return null;
    });
    output.progress(null);
    if (first === null) {
      const made =
        control.machines === null ? `the daemon had not answered. To end all machines of ${name}: ${down}` : 'nothing was made';
      output.say(`interrupted; ${made}`);
      return exitCodes.cancelled;
    }
    const before = new Set(first.machines.flatMap(({ run, state }) => (state === 'ending' ? [run] : [])));
    const isUp = ({ machines, wanted, refused }: CloudHostView): number | null => {
      if (machines.length === 0 && refused !== null) throw fromErrorView(refused);
      if (machines.some(({ state }) => state === 'joined')) return exitCodes.ok;
      // A machine that came and failed is replaced, as long as somebody wants one.
      return wanted === 0 && machines.every(({ run }) => before.has(run)) ? exitCodes.failed : null;
    };
    let end: FollowEnd = exitCodes.ok;
    if (!wait) output.say(`the daemon will try for up to ${formatAge(timeout)} to create a machine of ${name}`);
    else end = await follow(session, control, name, { patience: timeout, signal: asked.stop }, isUp);
    if (end === exitCodes.failed) output.say(`the request for a machine of ${name} is over: it was called off or timed out`);
    const gaveUp = `gave up after ${formatAge(timeout)}`;
    if (end === 'interrupted' && control.machines !== null) await takeBack(session, control, name, end, asked.hurry);
    else if (end === 'gave up' && control.machines !== null) await takeBack(session, control, name, gaveUp, asked.stop);
    else if (end === 'interrupted') {
      const left = formatAge(Math.max(0, timeout - (clock.now() - began)));
      output.say(
        `interrupted; the daemon will try for up to ${left} more to create a machine of ${name}. To end all its machines: ${down}`,
      );
    } else if (end === 'gave up')
      output.say(
        `${gaveUp}. The daemon asks for no other machine because of this command; one that still boots may join. To end all machines of ${name}: ${down}`,
      );
    const view = await hostView(control, name);
    await output.result(view, () => []);
    if (typeof end === 'number') return end;
    return end === 'interrupted' ? exitCodes.cancelled : exitCodes.failed;
  });
}

/** ms to see a machine go that nobody waits for. */
const takeBackPatience = 5 * 60_000;

/** Removes what `up` has made without a daemon: nobody would be there for it to join. Says what may live. */
async function takeBack(session: Session, control: HostControl, name: string, why: string, hurry: AbortSignal): Promise<void> {
  const { output } = session;
  output.say(
    `${why}; removing machines of ${name} that have not joined. Press Ctrl-C ${why === 'interrupted' ? 'again ' : ''}to leave them.`,
  );
  control.machines?.controller.callOff(name);
  const limits = { patience: takeBackPatience, signal: hurry };
  await follow(session, control, name, limits, ({ machines }) => (machines.every(hasJoined) ? exitCodes.ok : null), false);
  const left = (await hostView(control, name)).machines.filter((machine) => !hasJoined(machine));
  for (const { run, id, place, expiresAt, end } of left) {
    const what = id === null ? run : `${run} (${id} in ${place})`;
    const held = end === null ? 'its end was not set yet' : `what ends it then: ${end}`;
    output.say(`machine ${what} may exist until ${iso(expiresAt)} UTC; ${held}`);
  }
  if (left.length > 0) output.say(`remove it with "onejob cloud down ${name}${sameConfig(session)}"`);
}

const hasJoined = ({ joinedAt }: MachineView): boolean => joinedAt !== null;

export async function downHost(
  session: Session,
  name: string,
  { timeout = usualPatience, wait, now = false }: CloudFlags,
): Promise<number> {
  const { output } = session;
  return withControl(session, name, async (control) => {
    if (!wait && control.machines !== null)
      throw wrongUsage('No daemon is running, so "down" must wait until the machines are gone: leave out --no-wait.');
    using asked = interrupts(session);
    // First, so that no other machine is made meanwhile.
    await control.down(name, now);
    const drains = !now && control.machines?.drainsOthers === true;
    const { runs, unknown: unlisted } = (await control.machines?.controller.adopt(name, drains)) ?? { runs: [], unknown: [] };
    for (const line of unlistedWords(name, unlisted)) output.say(line);
    if (!drains)
      for (const run of runs)
        output.say(`machine ${run} was made by another host: it is removed without a drain, so jobs that run there are lost`);
    if (runs.length > 0)
      output.say(`if a daemon there still has it, run "onejob cloud down ${name}" there, or it makes another one for waiting jobs`);
    let end: FollowEnd = exitCodes.ok;
    // Nobody else removes them: what does not drain in half of the time is ended, so that the rest is enough to see it gone.
    const limit = clock.now() + timeout / 2;
    let isForced = !drains;
    const isDown = ({ machines }: CloudHostView): number | null => {
      if (machines.length === 0) return exitCodes.ok;
      if (!isForced && clock.now() > limit) {
        isForced = true;
        output.say(`${name} has not drained within ${formatAge(timeout / 2)}: ending its jobs`);
        control.down(name, true).catch((error: unknown) => output.say(`failed to end its jobs: ${toFailure(error).message}`));
      }
      return null;
    };
    if (wait) end = await follow(session, control, name, { patience: timeout, signal: asked.stop }, isDown, false);
    for (const left of (wait ? await control.machines?.clearing.finish() : null) ?? [])
      output.say(`left at a CI service until "onejob cloud sweep" removes it: ${left}`);
    if (end === 'interrupted') output.say('interrupted');
    if (end === 'gave up') output.say(`gave up after ${formatAge(timeout)}`);
    const isSure = end === exitCodes.ok && unlisted.length === 0;
    if (!isSure) output.say(`something of ${name} may still exist: see "onejob cloud list"`);
    output.say(`${name} gets no other machine until "onejob cloud up ${name}${sameConfig(session)}"`);
    await output.result(await hostView(control, name), () => []);
    if (end === 'interrupted') return exitCodes.cancelled;
    return isSure ? exitCodes.ok : exitCodes.failed;
  });
}

export async function checkHosts(session: Session, names: readonly string[]): Promise<number> {
  const used = names.length === 0 ? undefined : ofHosts(names);
  const config = await cloudConfig(session, used);
  const hosts = names.length === 0 ? config.hosts : names.map((name) => hostOf(config, name));
  if (hosts.length === 0) throw wrongUsage('The config has no "hosts".', 'See docs/cloud.md.');
  using opened = await adapters(session, used?.(config) ?? config, 'check');
  const { output } = session;
  let isGood = true;
  for (const host of hosts) {
    const cloud = opened.clouds.get(host.cloud)?.cloud;
    if (cloud === undefined) continue;
    output.progress(`checking ${host.host} at ${host.cloud}`);
    const image = host.image ?? cloud.usualImage;
    const { signal } = new AbortController();
    const findings = await cloud.preflight({ ...host, image }, signal);
    output.progress(null);
    if (findings.some(({ level }) => level === 'error')) isGood = false;
    const marks = { ok: '✓', warning: '!', error: '✗' } as const;
    await output.list(
      findings.map((finding) => ({ host: host.host, ...finding })),
      `${host.host}: nothing was checked`,
      () => [
        output.colors.bold(`${host.host} (${host.cloud})`),
        ...findings.map(
          ({ level, subject, message, hint }) => `${marks[level]} ${subject}: ${message}${hint === null ? '' : ` ${hint}`}`,
        ),
      ],
    );
  }
  return isGood ? exitCodes.ok : exitCodes.failed;
}

const thingRow = (cloud: string, thing: Thing) => ({
  CLOUD: cloud,
  KIND: thing.kind,
  ID: thing.id,
  PLACE: thing.place,
  STATE: thing.state,
  HOST: thing.host ?? '',
  MACHINE: thing.run ?? '',
  'ENDS AT': thing.expires === null ? '' : new Date(thing.expires * 1000).toISOString().slice(0, 16).replace('T', ' '),
});

/** What one cloud has of an owner. What could not be listed is said, and makes it incomplete. */
async function listOne({ output }: Session, name: string, cloud: Cloud, owner: string, everywhere: boolean) {
  output.progress(`listing ${name}`);
  const { signal } = new AbortController();
  const { things, unknown } = await cloud.list(owner, { places: [], everywhere }, signal).catch((error: unknown) => {
    if (!(error instanceof OnejobError)) throw error;
    return { things: [], unknown: [toFailure(error).message.replace(/\.$/, '')] };
  });
  output.progress(null);
  if (unknown.length > 0)
    output.say(`could not list all of cloud ${name}: ${unknown.join(', ')}. "onejob cloud check" may say why.`);
  return { things, isComplete: unknown.length === 0 };
}

export async function listThings(session: Session, { owner }: { readonly owner?: string }): Promise<number> {
  const config = await cloudConfig(session);
  using opened = await adapters(session, config, owner ?? null);
  const { output } = session;
  const found: { cloud: string; thing: Thing }[] = [];
  let isComplete = true;
  for (const [name, { cloud, owner: own }] of opened.clouds) {
    const listed = await listOne(session, name, cloud, owner ?? own, true);
    found.push(...listed.things.map((thing) => ({ cloud: name, thing })));
    isComplete &&= listed.isComplete;
  }
  await output.list(
    found.map(({ cloud, thing }) => ({ cloud, ...thing })),
    isComplete ? 'No resources found.' : 'No other resources found.',
    () =>
      titledTable(
        found.map(({ cloud, thing }) => thingRow(cloud, thing)),
        output,
      ),
  );
  return isComplete ? exitCodes.ok : exitCodes.failed;
}

export async function sweepClouds(session: Session, flags: SweepFlags): Promise<number> {
  const { owner, cloud: only, all = false, dryRun = false, timeout = usualSweep } = flags;
  const used = only === undefined ? undefined : ofClouds(only);
  const whole = await cloudConfig(session, used);
  const names = whole.clouds.map(({ name }) => name);
  for (const name of only ?? [])
    if (!names.includes(name)) throw wrongUsage(`The config has no cloud ${JSON.stringify(name)}; ${suggestAtEnd(name, names)}`);
  const config = used?.(whole) ?? whole;
  if (owner !== undefined && !/^[a-z0-9][a-z0-9_-]{0,62}$/.test(owner))
    throw wrongUsage(`${JSON.stringify(owner)} is not an owner: lower-case letters, digits, "-" and "_", at most 63.`);
  using opened = await adapters(session, config, owner ?? null);
  const { output } = session;
  using asked = interrupts(session);
  const chosen = [...opened.clouds];
  let isClean = true;
  let isRefused = false;
  try {
    for (const [name, { cloud, owner: own }] of chosen) {
      output.progress(`listing ${name}`);
      const told = (text: string) => output.say(`${name}: ${text}`);
      const options = { owner: owner ?? own, all, dryRun, patience: timeout, told };
      const result = await sweep(cloud, options, clock, asked.stop);
      output.progress(null);
      const { left, unknown } = result;
      isRefused ||= result.isRefused;
      const [kept, nameless] = [result.kept.filter(({ run }) => run !== null), result.kept.filter(({ run }) => run === null)];
      if (left.length > 0 || unknown.length > 0 || nameless.length > 0) isClean = false;
      await output.result({ cloud: name, owner: options.owner, ...result }, () => [
        `${name}: ${sweptWords(result, dryRun)}${kept.length === 0 ? '' : `, kept ${plural(kept.length, 'thing')} of machines that work`}`,
        ...left.map(({ kind, id, place }) => `  ${dryRun ? 'would remove' : 'lives'}: ${kind} ${id} in ${place}`),
        ...nameless.map(({ kind, id, place }) => `  has the owner's tag, but no name of a machine: ${kind} ${id} in ${place}`),
        ...unknown.map((what) => `  unknown: ${what}`),
      ]);
    }
    // It waits for complete lists of the clouds.
    if (isRefused) output.say('registrations at CI services were not looked for, because nobody knows which machines exist');
    else if (!(await sweepServices(session, config, chosen, flags, asked.stop))) isClean = false;
  } catch (error) {
    if (!asked.stop.aborted) throw error;
    const names = chosen.map(([name]) => name).join(', ');
    output.say(`interrupted; something of ${names} may still exist. Run it again, or see "onejob cloud list"`);
    return exitCodes.cancelled;
  } finally {
    output.progress(null);
  }
  return isClean ? exitCodes.ok : exitCodes.failed;
}

function sweptWords({ removed, left, unknown }: SweepResult, dryRun: boolean): string {
  if (dryRun && left.length > 0) return `would remove ${plural(left.length, 'thing')}`;
  if (removed.length > 0 || left.length > 0) return `removed ${plural(removed.length, 'thing')}`;
  return unknown.length === 0 ? 'nothing to remove' : 'nothing to remove in what could be listed';
}

/** Removes what machines of the config's hosts have left at CI services. Whether nothing is left. */
async function sweepServices(
  session: Session,
  config: Config,
  clouds: readonly (readonly [string, OwnedCloud])[],
  { owner, dryRun = false, timeout = usualSweep }: SweepFlags,
  signal: AbortSignal,
): Promise<boolean> {
  const { output } = session;
  const hosts = config.hosts.map(({ host }) => host);
  if (hosts.length === 0) return true;
  await using opened = await openHostServices(session, config);
  if (opened.services.every(({ removeNamed }) => removeNamed === undefined)) return true;
  /** Of every owner that may have machines of these hosts. */
  async function existing(): Promise<readonly Tagged[] | null> {
    const owned = clouds.flatMap(([, { cloud, owner: own }]) =>
      [...new Set([own, owner ?? own])].map((one) => [cloud, one] as const),
    );
    const lists = await Promise.all(
      owned.map(([cloud, one]) => cloud.list(one, { places: [], everywhere: true }, signal).catch(() => null)),
    );
    const complete = lists.filter((list) => list !== null && list.unknown.length === 0);
    return complete.length < lists.length ? null : complete.flatMap((list) => list?.things ?? []);
  }
  output.progress('looking for registrations of machines that are gone');
  const found = await sweepRegistrations(opened.services, hosts, existing, { dryRun, patience: timeout }, clock, signal);
  output.progress(null);
  for (const { service, result } of found) {
    const { removed, left, unknown } = result;
    await output.result({ service, ...result }, () => [
      `${service}: ${dryRun ? 'would remove' : 'removed'} ${plural(removed.length, 'registration')} of machines that are gone, ${left.length} left`,
      ...removed.map((name) => `  ${dryRun ? 'would remove' : 'removed'}: ${name}`),
      ...left.map((name) => `  left: ${name}`),
      ...unknown.map((what) => `  unknown: ${what}`),
    ]);
  }
  return found.every(
    ({ result: { removed, left, unknown } }) => left.length + unknown.length + (dryRun ? removed.length : 0) === 0,
  );
}

export async function listReceipts(session: Session, limit: number): Promise<number> {
  const { output } = session;
  const receipts = await withDaemon(
    session,
    (client) => client.call('GET /v1/receipts', { query: { limit } }),
    async () => {
      using store = openToRead((await session.place()).stateDir);
      return store.machines.newest(limit).map((machine) => machineView(machine, machine.since, null));
    },
  );
  const rows = receipts.map((one) => ({
    MACHINE: one.run,
    HOST: one.host,
    OFFER: offerText(one.offer),
    MADE: iso(one.bornAt),
    GONE: iso(one.absentAt.at(-1) ?? one.since),
    COST: one.cost === null ? 'unknown' : `$${one.cost.toFixed(2)}`,
    BY: one.by,
    WHY: one.why ?? '',
  }));
  await output.list(receipts, 'No machine is gone.', () => titledTable(rows, output));
  return exitCodes.ok;
}

const iso = (ms: number): string => new Date(ms).toISOString().slice(0, 19).replace('T', ' ');

export async function showConsole(session: Session, name: string): Promise<number> {
  const isRun = /^onejob-[0-9a-f]{16}$/.test(name);
  const used = isRun ? undefined : ofHosts([name]);
  const config = await cloudConfig(session, used);
  if (!isRun) hostOf(config, name);
  using opened = await adapters(session, used?.(config) ?? config, null);
  const { output } = session;
  const signal = new AbortController().signal;
  let count = 0;
  let isComplete = true;
  for (const [key, { cloud, owner }] of opened.clouds) {
    const listed = await listOne(session, key, cloud, owner, false);
    isComplete &&= listed.isComplete;
    for (const thing of listed.things) {
      if (thing.kind !== 'machine' || (isRun ? thing.run : thing.host) !== name) continue;
      count += 1;
      const text = await cloud.console(thing, signal);
      await output.result({ run: thing.run, id: thing.id, console: text }, () => [
        output.colors.dim(`${thing.run} (${thing.id} in ${thing.place})`),
        text === '' ? 'The cloud has no console output yet.' : text,
      ]);
    }
  }
  if (count > 0) return exitCodes.ok;
  if (!isComplete) {
    output.say(`It is unknown whether a machine of ${name} exists.`);
    return exitCodes.failed;
  }
  const hint = 'See "onejob cloud list"; "onejob cloud receipts --json" has the console of machines that ended without joining.';
  throw new OnejobError('E_USAGE', `No machine of ${name} exists.`, { hint });
}
