/**
 * The broker, put together: it is the idle agent of every slot at the service, and carries what running agents say. It outlives
 * the manager, and one of its kind that is killed is followed by another that goes on from the book.
 */
import { chmodSync } from 'node:fs';
import { describeProxies, type Proxies } from '../../../config/proxies.ts';
import type { Clock } from '../../../core/clock.ts';
import { OnejobError } from '../../../errors.ts';
import type { Log } from '../../../log.ts';
import { prepareDirectory, subdirectory } from '../../../store/directory.ts';
import { type Lead, leaderPid, takeLead } from '../../../store/lead.ts';
import type { HostFacts } from './agent.ts';
import { createAliases } from './aliases.ts';
import { openBook } from './book.ts';
import { createControl, unfinished } from './control.ts';
import { startControlServer } from './control-server.ts';
import { createDesired } from './desired.ts';
import { openDoors } from './doors.ts';
import { createEvents } from './events.ts';
import { type Fleet, startFleet } from './fleet.ts';
import { createGateway } from './gateway.ts';
import { gatewayServerOptions } from './gateway-limits.ts';
import { createHealth } from './health.ts';
import { createPace } from './pace.ts';
import { type BrokerState, protocolVersion } from './protocol.ts';
import { createSeal, installationKey } from './seal.ts';
import { openBrokerStore } from './store.ts';
import { createUpstream } from './upstream.ts';

export interface BrokerOptions {
  readonly stateDir: string;
  /** Where the manager finds it. */
  readonly socket: string;
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  /** By which services are reached. */
  readonly proxies: Proxies;
  readonly log: Log;
  readonly host: HostFacts;
  readonly random: () => number;
}

export interface Broker {
  /** Takes no more jobs and lets idle agents go; ends once nothing is left to be carried, or goes on with the next manager. */
  leave(): void;
  /** Ends at once; every agent stays as it is, for the next broker. */
  stop(): void;
  /** Resolves once it has ended. */
  readonly ended: Promise<void>;
}

/** ms without a manager after which a broker that carries nothing ends by itself. */
const lonelyLimit = 600_000;
/** ms that a broker that is to end waits for idle agents to have left. */
const leavingLimit = 10_000;
/** ms between two looks whether there is anything left to do. */
const lookInterval = 5_000;

/**
 * Resolves once it listens.
 * @throws OnejobError E_STATE_LED when this state directory has a broker already; E_STATE_*, E_SOCKET_*
 */
export async function startBroker(options: BrokerOptions): Promise<Broker> {
  const { clock, log, version, proxies } = options;
  await using parts = new AsyncDisposableStack();
  const dir = subdirectory(prepareDirectory(options.stateDir), 'broker');
  chmodSync(dir, 0o700);
  const lead = lock(dir);
  parts.defer(() => lead.release());
  const key = installationKey(dir);
  const seal = createSeal(key);
  const store = openBrokerStore(dir);
  parts.defer(() => store.close());

  const book = openBook({ store, seal, log, wall: () => clock.wall() });
  const aliases = createAliases(book, seal);
  const health = createHealth((changed) => {
    if (changed.kind === 'ok') log.info('service answers', { service: changed.service });
    else log.warn(changed.kind === 'away' ? 'service away' : 'token refused', { service: changed.service, reason: changed.why });
    events.service(changed);
  });
  let wasLeaving = false;
  const desired = createDesired(clock, () => {
    if (desired.isLeaving !== wasLeaving) log.info(wasLeaving ? 'broker goes on for a new manager' : 'broker leaves', {});
    wasLeaving = desired.isLeaving;
    for (const { service } of health.all()) if (desired.hasManager && desired.service(service) === null) health.forget(service);
    fleet?.look();
    look();
  });
  const upstream = createUpstream({ version, clock, proxies });
  parts.defer(() => upstream.close());
  let fleet: Fleet | null = null;
  const gateway = createGateway({
    ...{ book, aliases, log, version, proxies },
    service: (name) => desired.service(name),
    wall: () => clock.wall(),
    key: Buffer.from(key),
    heard: (id, sign) => fleet?.heard(id, sign),
  });

  const portFact = store.fact('port');
  const doors = await openDoors({
    handler: gateway.handle,
    options: gatewayServerOptions,
    watch: gateway.watch,
    ...{ clock, log },
    port: portFact === null ? null : Number(portFact),
    isPortKnown: () => book.all().some(({ shown }) => shown.agent !== null && shown.phase !== 'ending'),
    keepPort: (port) => store.setFact('port', String(port)),
    keepAddress: (address) => store.setFact('addresses', JSON.stringify([...new Set([...addresses(), address])])),
  });
  parts.defer(async () => {
    await gateway.close();
    await doors.close();
  });
  for (const address of addresses()) doors.open(address);

  function addresses(): readonly string[] {
    const found: unknown = JSON.parse(store.fact('addresses') ?? '[]');
    return Array.isArray(found) ? found.filter((each): each is string => typeof each === 'string') : [];
  }

  const state = (): BrokerState => ({
    protocol: protocolVersion,
    version,
    pid: process.pid,
    port: doors.port,
    proxy: describeProxies(proxies),
    agents: [...book.farewells(), ...book.all().map(({ shown }) => shown)],
    services: health.all(),
  });
  const events = createEvents({ book, desired, clock, state });
  parts.defer(() => events.close());

  const pace = createPace(clock, options.random);
  fleet = startFleet({ ...{ book, desired, upstream, health, pace, clock, log }, host: options.host, random: options.random });
  parts.defer(() => fleet?.close());

  const control = createControl({ book, aliases, desired, wall: () => clock.wall() });
  const server = await startControlServer({
    ...{ path: options.socket, control, events, state },
    listen(address) {
      doors.open(address);
      return doors.port;
    },
  });
  parts.use(server);
  log.info('broker listens', {
    socket: options.socket,
    port: doors.port,
    agents: book.all().length,
    proxy: describeProxies(proxies),
  });

  const { promise: over, resolve: stop } = Promise.withResolvers<void>();
  /** Agents that keep the broker from its end. Not for long those of which the service will see by itself that they are gone. */
  const left = () => {
    const { leavingSince } = desired;
    const isLate = leavingSince !== null && clock.now() - leavingSince > leavingLimit;
    return book.all().filter(({ shown, ending }) => {
      if (isLate) return unfinished.has(shown.phase) || (shown.phase === 'ending' && ending?.verdict !== null);
      return desired.isLeaving || shown.phase !== 'registering';
    }).length;
  };
  let callOff = (): void => {};
  let isOver = false;
  function look(): void {
    callOff();
    // Readers that go with its end say so, and a look begun then would keep the process.
    if (isOver) return;
    const { isLeaving, lonelySince } = desired;
    const isLonely = lonelySince !== null && clock.now() - lonelySince >= lonelyLimit;
    if ((isLeaving || isLonely) && left() === 0) {
      stop();
      return;
    }
    callOff = clock.after(isLeaving ? 1_000 : lookInterval, look);
  }
  const unwatch = book.watchAll(({ shown }) => {
    if (desired.isLeaving && shown.phase === 'gone') queueMicrotask(look);
  });
  look();

  const rest = parts.move();
  const ended = over.then(async () => {
    isOver = true;
    callOff();
    unwatch();
    const unended = book.all().filter(({ shown }) => unfinished.has(shown.phase)).length;
    await rest.disposeAsync();
    log.info('broker ended', { unfinished: unended });
  });
  return { leave: () => desired.leave(), stop, ended };
}

/** One broker per state directory: two would be the same agents twice. */
function lock(dir: string): Lead {
  try {
    return takeLead(dir);
  } catch (error) {
    if (!(error instanceof OnejobError) || error.code !== 'E_STATE_LED') throw error;
    const message = `Another broker (pid ${leaderPid(dir) ?? 'unknown'}) serves this installation already, in ${dir}.`;
    throw new OnejobError('E_STATE_LED', message, {
      hint: 'Nothing is to be done: that one is used.',
      cause: error,
    });
  }
}
