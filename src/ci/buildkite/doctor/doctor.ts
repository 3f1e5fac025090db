/** What `onejob doctor` says of Buildkite: each a sentence, with what to type where something is wrong. Changes nothing at the service. */

import { hasCode } from '../../../base/errors.ts';
import { type Finding, warning } from '../../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../../base/version.ts';
import type { PoolConfig } from '../../../config/config.ts';
import { deadline } from '../../../core/clock.ts';
import type { DiagnosticSandbox, DiagnosticSandboxes } from '../../../ports/ci-service.ts';
import { howToReplace } from '../../../schema/secret-reference.ts';
import { untrustedRecipe } from '../../kit/admission.ts';
import { clockFindings, ServiceReport, saidOf } from '../../kit/doctor.ts';
import { buildkiteRules } from '../agent/filter-rules.ts';
import type { QueueCounts, TokenIdentity } from '../api.ts';
import { type ApiWay, lackFindings, lookScript, readLook, wayFinding } from './doctor-inside.ts';
import { isOpenToUntrusted, poolFindings } from './doctor-pools.ts';
import type { DoctorParts } from './parts.ts';

/** ms for one sandbox, and for all of them. */
const [patience, patienceForAll] = [15_000, 25_000];
const atOnce = 3;

export async function buildkiteFindings(
  parts: DoctorParts,
  sandboxes: DiagnosticSandboxes,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { config, pools } = parts;
  const report = new ServiceReport(config.name, signal);
  const { state } = parts.program;
  report.runner(state, 'agent', howToHave(config.agentPackage.from));
  report.add((await parts.filter?.check()) ?? []);
  if (state.kind === 'ready') report.add(ageFindings(report.subject, state.version));
  const [token, ofPools, within] = await Promise.all([
    tokenFindings(parts, signal),
    poolFindings(parts),
    lookWithin(parts, classesOf(pools, sandboxes, parts), signal),
  ]);
  return [...token, ...report.found, ...within, ...ofPools];
}

/** The sandboxes of a pool's agents, or those of its untrusted jobs, whose agents use the filter. */
interface SandboxClass {
  readonly pool: PoolConfig;
  readonly whose: string;
  /** null: it has no image yet. */
  readonly sandbox: DiagnosticSandbox | null;
  readonly isUntrusted: boolean;
  /** Whether its programs are those of the pool's own, and also its network, so that the same problem affects both. */
  readonly isSameInside: boolean;
  readonly isSame: boolean;
}

function classesOf(
  pools: readonly PoolConfig[],
  sandboxes: DiagnosticSandboxes,
  about: Pick<DoctorParts, 'stateDir' | 'places'>,
): SandboxClass[] {
  // Where an engine places sandboxes, one to look into would wait in its queue.
  const here = pools.filter(({ recipe }) => recipe.wants === undefined);
  return here.flatMap((pool) => {
    const sandbox = sandboxes.like(pool.name);
    const own = { pool, whose: `agents of pool ${pool.name}`, sandbox, isUntrusted: false, isSameInside: false, isSame: false };
    const other = isOpenToUntrusted(pool)
      ? sandboxes.like(pool.name, (recipe) => untrustedRecipe(recipe, pool, null, about.stateDir, about.places))
      : null;
    if (!isOpenToUntrusted(pool) || (other === null && sandbox === null)) return [own];
    const isSameInside = sandbox?.recipe.image === other?.recipe.image;
    const isSame = isSameInside && sandbox?.recipe.network === other?.recipe.network;
    return [own, { pool, whose: `untrusted jobs of pool ${pool.name}`, sandbox: other, isUntrusted: true, isSameInside, isSame }];
  });
}

async function lookWithin(parts: DoctorParts, classes: readonly SandboxClass[], signal: AbortSignal): Promise<Finding[]> {
  // Equal sandboxes are checked once.
  const kindOf = ({ sandbox, whose, isUntrusted }: SandboxClass): string => `${sandbox?.kind ?? whose} ${isUntrusted}`;
  const first = new Map(classes.toReversed().map((one) => [kindOf(one), one]));
  const waiting = classes.filter((one) => first.get(kindOf(one)) === one);
  const found = new Map<SandboxClass, Finding[]>();
  using all = deadline(parts.clock, patienceForAll);
  const looking: Looking = { tried: new Set(), late: all.signal };
  const work = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift())
      found.set(next, await lookInto(parts, next, looking, signal));
  };
  await Promise.all(Array.from({ length: atOnce }, work));
  return classes.flatMap((one) => found.get(one) ?? []);
}

interface Looking {
  /** Ways that were tried: a way that fails takes long. */
  readonly tried: Set<string>;
  readonly late: AbortSignal;
}

async function lookInto(parts: DoctorParts, one: SandboxClass, looking: Looking, outer: AbortSignal): Promise<Finding[]> {
  const { whose, sandbox, pool } = one;
  const { config } = parts;
  const subject = `pool ${pool.name}`;
  if (sandbox === null) {
    const message = `Cannot check the sandboxes of ${whose}: they have no image yet.`;
    return [warning(subject, message, 'Type "onejob image build", or try again after onejob has created the first agent.')];
  }
  using own = deadline(parts.clock, patience, looking.late);
  const late = own.signal;
  const signal = AbortSignal.any([outer, late]);
  const unknown = (error: unknown, what: string, level: 'warning' | 'error'): Finding => {
    outer.throwIfAborted();
    const said = late.aborted ? { message: 'it took too long.', hint: null } : saidOf(error);
    return { level, subject, message: `Cannot ${what} of ${whose}: ${said.message}`, hint: said.hint ?? 'Try again later.' };
  };

  const list: Finding[] = [];
  let way: ApiWay | null = null;
  try {
    way = await wayTo(parts, one.isUntrusted, sandbox, signal);
    const key = JSON.stringify(way);
    if (looking.tried.has(key)) way = null;
    looking.tried.add(key);
  } catch (error) {
    list.push(unknown(error, 'open a way to the filter for sandboxes', 'error'));
  }
  try {
    const found = readLook(await sandbox.ask(lookScript(way), signal));
    if (way !== null) list.push(wayFinding(subject, whose, way, found));
    if (one.isSameInside) return list;
    const image = sandbox.hasImage ? sandbox.recipe.image : null;
    const mounted = config.agentPackage.from !== 'image';
    const isWithoutGit = /^(1|t|true)$/i.test(sandbox.recipe.env.BUILDKITE_SKIP_CHECKOUT ?? '');
    list.push(...lackFindings(subject, found, { image, mounted, isWithoutGit }));
    if (!mounted && found.agent !== null) list.push(...ageFindings(subject, found.agent));
  } catch (error) {
    const { kind } = parts.program.state;
    // The agent's program is missing: another finding says why.
    if (one.isSame) return list;
    const isWithout = hasCode(error, 'E_MOUNT_MISSING') && kind !== 'ready' && kind !== 'image';
    const level = hasCode(error, 'E_NETWORK_UNGUARDED') ? 'error' : 'warning';
    if (!isWithout) list.push(unknown(error, 'look into a sandbox', level));
  }
  return list;
}

async function wayTo({ config, filter }: DoctorParts, isUntrusted: boolean, sandbox: DiagnosticSandbox, signal: AbortSignal) {
  const { network } = sandbox.recipe;
  if (!isUntrusted) return { endpoint: config.endpoint, isFilter: false, network };
  if (filter === null) return null;
  const { isRemote } = sandbox;
  const { origin } = await filter.listenFor({ isRemote, hostAddress: (port, inner) => sandbox.hostAddress(port, inner) }, signal);
  return { endpoint: `${origin}/${buildkiteRules.root}`, isFilter: true, network };
}

/** First version that exits as its job did (`reflect-exit-status`; agent changelog). */
const oldest = '3.103.0';

/** How to get an agent, or name one of this host. */
function howToHave(from: string | null): string {
  return from === null
    ? 'If this host cannot reach the releases, name the program: write "agent: { from: /path/to/buildkite-agent }" into the service.'
    : 'Check "agent" of the service; "agent: { from: /path/to/buildkite-agent }" names a program that is already on this host.';
}

function ageFindings(subject: string, version: string): Finding[] {
  if (compareVersions(leadingVersion(version) ?? '0', oldest) >= 0) return [];
  const message = `The agent is version ${version}; before ${oldest} it does not report how its job ended, and "onejob jobs" shows all jobs as passed.`;
  return [warning(subject, message, 'Use a newer agent: "agent: { version: … }" of the service, or of the image.')];
}

type TokenParts = Pick<DoctorParts, 'config' | 'pools' | 'api' | 'tokens' | 'clock'>;

/** ms. A service that signs addresses for uploads refuses requests that are minutes off. */
const skewLimits = [30_000, 300_000] as const;

export function ofClock(subject: string, skew: number | null): Finding[] {
  return clockFindings(subject, skew, skewLimits, 'times of jobs are wrong, and uploads may be refused');
}

/** ms before its end from which a token is reported. */
const soon = 14 * 86_400_000;

export async function tokenFindings(parts: TokenParts, signal: AbortSignal): Promise<Finding[]> {
  const { config, api, tokens } = parts;
  const { metricsToken } = config;
  const report = new ServiceReport(config.name, signal);
  let skew: number | null = null;
  const isIn = await report.ask(
    async () => {
      const told = await api.identity((await tokens.service()).trim(), signal);
      skew = told?.skew ?? null;
      if (told !== null) ofIdentity(told.value, parts, report);
      else report.warn(`${config.endpoint} does not identify the token.`, 'Check whether "endpoint" is the Agent API.');
    },
    { refused: `${howToReplace(config.token)}.` },
  );
  // Without the service there is no more to check.
  if (!isIn) return report.found;
  const without = 'everything but the counts works without it.';
  const refused =
    metricsToken === null
      ? `Set "metrics_token" to a token that may read metrics; ${without}`
      : `${howToReplace(metricsToken)}, or remove "metrics_token"; ${without}`;
  await report.ask(
    async () => {
      const told = await api.counts((await tokens.metrics()).trim(), signal);
      skew ??= told.skew;
      ofQueues(told.value, parts, report);
    },
    { level: 'warning', refused },
  );
  report.add(ofClock(report.subject, skew));
  return report.found;
}

/** Who a token is, as the end of a sentence: ` of organisation …, cluster …, for queue … only`. */
export function whatIs({ organisation, cluster, queue }: TokenIdentity): string {
  const of = organisation === null ? '' : ` of organisation ${organisation}`;
  const where = cluster === null ? '' : `, cluster ${JSON.stringify(cluster)}`;
  return `${of}${where}${queue === null ? '' : `, for queue ${JSON.stringify(queue)} only`}`;
}

function ofIdentity(identity: TokenIdentity, { config, pools, clock }: TokenParts, report: ServiceReport): void {
  const { cluster, queue, type, expires } = identity;
  report.ok(`${config.endpoint} accepts the token${whatIs(identity)}${type === null ? '' : ` (${type})`}.`);
  for (const pool of pools) {
    if (queue === null || pool.queue === queue) continue;
    report.problem(
      `The token is only for queue ${JSON.stringify(queue)}, but pool ${pool.name} takes its jobs from ${JSON.stringify(pool.queue)}.`,
      `Write "queue: ${queue}" in pool ${pool.name}, or use a token for the whole cluster.`,
    );
  }
  if (config.registration === 'in-agent')
    report.warn(
      `The agent token enters every sandbox ("registration: in-agent"): every job of ${pools.length === 1 ? 'pool' : 'pools'} ${pools.map(({ name }) => name).join(', ')} can read it and take any job with it.`,
      cluster === null
        ? 'Let only trusted people create jobs for these queues; with clusters this is not necessary.'
        : 'Remove "registration": the token belongs to a cluster, so onejob can reserve jobs with it.',
    );
  else if (cluster === null)
    report.problem(
      'The token belongs to no cluster, and onejob can only reserve jobs of a cluster.',
      'Use a token of a cluster: on the website, Agents, the cluster, Agent Tokens. Without clusters: "registration: in-agent".',
    );
  if (expires === null || expires - clock.wall() >= soon) return;
  const day = new Date(expires).toISOString().slice(0, 10);
  const how = `Create a new one. ${howToReplace(config.token)}.`;
  if (expires <= clock.wall()) report.problem(`The token expired on ${day}.`, how);
  else report.warn(`The token expires on ${day}.`, how);
}

function ofQueues({ known, scheduled }: QueueCounts, { pools }: TokenParts, report: ServiceReport): void {
  const others = [...known].toSorted().slice(0, 5);
  const those = others.length === 0 ? '' : ` It lists ${others.join(', ')}.`;
  for (const queue of new Set(pools.map((pool) => pool.queue))) {
    const name = JSON.stringify(queue);
    if (known.has(queue)) report.ok(`Queue ${name} exists; ${howManyWait(scheduled.get(queue) ?? 0)} in it.`);
    else
      report.warn(
        `The service does not list queue ${name}: the queue has no agent and no job, or does not exist.`,
        `Create it on the website (Agents, the cluster, Queues), or fix "queue" of the pool.${those}`,
      );
  }
}

export function howManyWait(jobs: number): string {
  return jobs === 1 ? 'one job waits' : `${jobs} jobs wait`;
}
