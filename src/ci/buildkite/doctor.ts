/** What `onejob doctor` says of Buildkite: each a sentence, with what to type where something is wrong. Changes nothing at the service. */

import type { BuildkiteServiceConfig, PoolConfig } from '../../config/config.ts';
import type { Proxies } from '../../config/proxies.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import type { SecretKeys } from '../../secrets/keys.ts';
import { proxyFindings } from '../proxy-findings.ts';
import type { Trial, TrialSandbox } from '../trial.ts';
import type { AgentBinaryState } from './agent-binary.ts';
import type { ServiceApi } from './api.ts';
import type { BrokerLook } from './broker-calls.ts';
import { ageFindings, brokerAbsent, brokerFindings, programFindings } from './doctor-broker.ts';
import { classesOf, type SandboxClass } from './doctor-classes.ts';
import { lackFindings, lookScript, readLook, type Way, wayFinding } from './doctor-inside.ts';
import { poolFindings } from './doctor-pools.ts';
import { tokenFindings } from './doctor-token.ts';

export interface DoctorParts {
  readonly config: BuildkiteServiceConfig;
  /** Those that take jobs from here. */
  readonly pools: readonly PoolConfig[];
  readonly stateDir: string;
  readonly proxies: Proxies;
  readonly api: Pick<ServiceApi, 'identity' | 'counts'>;
  /** @throws OnejobError E_SECRET */
  readonly token: () => Promise<string>;
  readonly metricsToken: (() => Promise<string>) | null;
  /** null: config names none. @throws OnejobError E_SECRET, E_SECRET_KEY */
  readonly keys: () => Promise<SecretKeys | null>;
  /** @throws OnejobError E_BROKER */
  readonly broker: (signal: AbortSignal) => Promise<BrokerLook>;
  /** Has the broker listen at an address, too; the port. @throws OnejobError E_BROKER */
  readonly door: (address: string, signal: AbortSignal) => Promise<number>;
  readonly program: () => AgentBinaryState;
  /** This manager starts no broker: there is one only where a daemon has left it. */
  readonly temporary: boolean;
  /** Of onejob. */
  readonly version: string;
  readonly clock: Clock;
  /** ms since the epoch. */
  readonly wall: () => number;
}

/** ms for one sandbox, from making it to its last word, and for all of them. */
const [patience, patienceForAll] = [15_000, 25_000];
/** Sandboxes that are made at the same time. */
const atOnce = 3;

export async function findings(parts: DoctorParts, trial: Trial, signal: AbortSignal): Promise<Finding[]> {
  const { config, pools } = parts;
  const looking = parts.broker(signal).catch((error: unknown) => {
    signal.throwIfAborted();
    return brokerAbsent(config.name, error, parts.temporary);
  });
  const [look, token, ofPools, within] = await Promise.all([
    looking,
    tokenFindings(parts, signal),
    poolFindings(parts),
    looking.then((look) => lookWithin(parts, classesOf(pools, trial, parts.stateDir), 'pid' in look ? look.port : null, signal)),
  ]);
  return [
    ...proxyFindings(config.name, config.endpoint, parts.proxies),
    ...token,
    ...programFindings(config.name, parts.program(), config.agentPackage.from),
    ...('pid' in look ? brokerFindings(config.name, look, parts) : [look]),
    ...within,
    ...ofPools,
  ];
}

/** `port`: the broker's; null while it is not there, then the way to it is not tried. */
async function lookWithin(
  parts: DoctorParts,
  classes: readonly SandboxClass[],
  port: number | null,
  signal: AbortSignal,
): Promise<Finding[]> {
  // Sandboxes that are the same are looked at once, for the first that has one.
  const first = new Map(classes.toReversed().map((one) => [one.sandbox?.kind ?? one.whose, one]));
  const waiting = classes.filter((one) => first.get(one.sandbox?.kind ?? one.whose) === one);
  const found = new Map<SandboxClass, Finding[]>();
  using all = deadline(parts.clock, patienceForAll);
  const looking: Looking = { port, tried: new Set(), late: all.signal };
  const work = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      found.set(next, await lookInto(parts, next, looking, signal));
    }
  };
  await Promise.all(Array.from({ length: atOnce }, work));
  return classes.flatMap((one) => found.get(one) ?? []);
}

interface Looking {
  readonly port: number | null;
  /** Ways that somebody has tried: one that leads nowhere takes its time. */
  readonly tried: Set<string>;
  readonly late: AbortSignal;
}

async function lookInto(parts: DoctorParts, one: SandboxClass, looking: Looking, outer: AbortSignal): Promise<Finding[]> {
  const { whose, sandbox, pool } = one;
  const { config } = parts;
  const subject = `pool ${pool.name}`;
  if (sandbox === null) {
    const message = `Nothing is known of the sandboxes of ${whose}: there is no image for them yet.`;
    return [{ level: 'warning', subject, message, hint: 'Type "onejob image build", or ask again once the first agent was made.' }];
  }
  using own = deadline(parts.clock, patience, looking.late);
  const late = own.signal;
  const signal = AbortSignal.any([outer, late]);
  const unknown = (error: unknown, what: string, level: 'warning' | 'error'): Finding => {
    outer.throwIfAborted();
    const why = late.aborted ? 'it took too long.' : messageOf(error);
    const hint = error instanceof OnejobError && !late.aborted ? error.hint : null;
    return { level, subject, message: `Cannot ${what} of ${whose}: ${why}`, hint: hint ?? 'Ask again later.' };
  };

  const list: Finding[] = [];
  let way: Way | null = null;
  try {
    way = looking.port === null ? null : await wayTo(parts, sandbox, looking.port, signal);
    const key = JSON.stringify(way);
    if (looking.tried.has(key)) way = null;
    looking.tried.add(key);
  } catch (error) {
    list.push(unknown(error, 'open a way to the broker for sandboxes', 'error'));
  }
  try {
    const found = readLook(await sandbox.ask(lookScript(way?.address ?? null, way?.port ?? 0), signal));
    if (way !== null) list.push(wayFinding(subject, whose, way, found));
    if (one.isSameInside) return list;
    const image = sandbox.hasImage ? sandbox.recipe.image : null;
    const mounted = config.agentPackage.from !== 'image';
    const isWithoutGit = /^(1|t|true)$/i.test(sandbox.recipe.env.BUILDKITE_SKIP_CHECKOUT ?? '');
    list.push(...lackFindings(subject, found, { image, mounted, isWithoutGit }));
    if (!mounted && found.agent !== null) list.push(...ageFindings(subject, found.agent));
  } catch (error) {
    const { kind } = parts.program();
    // What it lacks is the agent's program, of which another line says why.
    const isWithout = error instanceof OnejobError && error.code === 'E_MOUNT_MISSING' && kind !== 'ready' && kind !== 'image';
    const level = error instanceof OnejobError && error.code === 'E_NETWORK_UNGUARDED' ? 'error' : 'warning';
    if (!isWithout) list.push(unknown(error, 'look into a sandbox', level));
  }
  return list;
}

async function wayTo({ door }: DoctorParts, sandbox: TrialSandbox, port: number, signal: AbortSignal): Promise<Way> {
  const address = await sandbox.door(port, signal);
  return { address, port: await door(address, signal), network: sandbox.recipe.network };
}

function messageOf(error: unknown): string {
  return error instanceof OnejobError ? error.message : toFailure(error).message;
}
