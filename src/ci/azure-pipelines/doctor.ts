/** What `onejob doctor` says of Azure Pipelines: each a sentence with what to do. Changes nothing at the service. */
import type { Finding } from '../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import type { Registrations } from '../early/registrations.ts';
import { clockFindings, ServiceReport, some } from '../kit/doctor.ts';
import type { AzureParts } from './parts.ts';
import { queuesOf } from './pools.ts';
import type { AzureRegistry } from './registry.ts';

/** ms without a new agent of its kind after which a placeholder is reported. */
const unusedAfter = 7 * 86_400_000;

/** Above this an agent cannot sign in: its assertion is valid for 5 min (agent `MessageListener.cs`, agent issue 2393). */
const skewLimits = [60_000, 240_000] as const;

export function ofClock(subject: string, skew: number | null): Finding[] {
  return clockFindings(subject, skew, skewLimits, 'agents cannot sign in with a wrong clock');
}

export async function azureFindings(
  parts: AzureParts,
  registry: AzureRegistry,
  registrations: Registrations,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { config, pools, client } = parts;
  const report = new ServiceReport(config.name, signal);
  const asking = { ...parts, registry, registrations, report, signal };
  const isIn = await report.ask(async () => {
    const { user, skew } = await client.connection(signal);
    report.ok(`${config.url} answers${user === null ? '' : `, and identifies the credential as ${user}`}.`);
    report.add(ofClock(report.subject, skew));
  });
  if (!isIn) return report.found;
  for (const { name } of queuesOf(pools)) await report.ask(() => ofPool(name, asking));
  const left = registrations.open().map(({ name }) => name);
  if (pools.length === 0 && left.length > 0)
    report.warn(
      `No pool of the config uses service ${config.name}, which still has entries that onejob created: ${some(left)}.`,
      'onejob removes agents automatically when they are gone; "onejob down --forget" removes the placeholders.',
    );
  await report.ask(() => ofVersion(asking));
  if (config.registration === 'in-agent' || config.registration === 'image' || registry.seen.handsOutToken)
    report.warn(
      `Agents register themselves with the service ("registration: ${config.registration}"), so the token enters their sandboxes.`,
      'Use "registration: manager" with an image that has the agent.',
    );
  if (registry.builds.isDenied || registry.ends.isDenied)
    report.warn(
      'The credential is not allowed to read builds, so onejob cannot show the repository, branch and reason of jobs, and does not know whether the script of a failed job failed: its verdict is unknown.',
      'To see them, give it the scope Build (Read).',
    );
  return report.found;
}

interface Asking extends AzureParts {
  readonly registry: AzureRegistry;
  readonly registrations: Registrations;
  readonly report: ServiceReport;
  readonly signal: AbortSignal;
}

async function ofPool(queue: string, asking: Asking): Promise<void> {
  const { client, registry, registrations, report, signal } = asking;
  registry.agentPools.forget(queue);
  const pool = await registry.agentPools.find(queue, signal);
  const agents = await client.agents(pool.id, {}, signal);
  const ours = agents.filter(({ name }) => registrations.agentNames.agentOf(name) !== null).length;
  report.ok(`Agent pool "${queue}" has ${agents.length} entries, ${ours} of them for agents of this host.`);
  if (pool.autoUpdate === true)
    report.warn(
      `Agent pool "${queue}" updates its agents automatically: an agent that has to update ends without a job.`,
      'Turn off "Allow agents in this pool to automatically update" in its settings; onejob keeps its images current.',
    );
  await ofPlaceholders(queue, pool.id, new Set(agents.map(({ name }) => name)), asking);
}

async function ofPlaceholders(queue: string, pool: number, there: ReadonlySet<string>, asking: Asking): Promise<void> {
  const { client, clock, registry, registrations, report, signal } = asking;
  const made = registrations.open().filter((one) => one.placeholder && one.place === String(pool));
  if (made.length === 0)
    return report.warn(
      `Agent pool "${queue}" has no placeholder of this host yet: jobs fail instead of waiting while the pool has no agent.`,
      'onejob creates it before the first agent; type "onejob status" to see what prevents that.',
    );
  const own = made.filter(({ name }) => there.has(name));
  const [first] = own;
  const remote = first === undefined ? null : registrations.remoteOf(first.agent);
  const entry = remote === null ? null : await client.agent(pool, Number(remote.id), {}, signal);
  if (entry?.enabled === false)
    return report.warn(
      `The placeholder of agent pool "${queue}" is disabled at the service, so onejob could not check whether it may manage agents.`,
      "Enable it on the pool's page, unless it is disabled on purpose.",
    );
  // This call changes nothing, and shows whether the credential may manage agents.
  if (entry === null || (await client.setEnabled(pool, entry.id, true, signal)) === 'absent')
    return report.warn(
      `The placeholder of agent pool "${queue}" is gone from the service.`,
      'onejob creates it again with the next agent.',
    );
  const ids = new Set(own.map(({ agent }) => registrations.remoteOf(agent)?.id));
  const uncounted = (registry.latest.get(pool) ?? []).filter(
    ({ matchedAgents }) =>
      matchedAgents?.some(({ name }) => name !== null && registrations.agentNames.agentOf(name) !== null) &&
      !matchedAgents.some(({ id }) => ids.has(String(id))),
  );
  const unused = own.filter(({ usedAt }) => usedAt !== null && clock.wall() - usedAt > unusedAfter);
  const many = own.length === 1 ? 'one placeholder' : `${own.length} placeholders`;
  report.ok(`onejob may manage agent pool "${queue}", and jobs wait in it while it has no agent (${many}).`);
  if (uncounted.length > 0)
    report.warn(
      `The service does not count the placeholder of agent pool "${queue}" for ${uncounted.length} of its waiting jobs, although agents of this host meet their demands.`,
      "Such jobs fail while the pool has no agent; compare the capabilities of both on the pool's page.",
    );
  if (unused.length > 0)
    report.warn(
      `Agent pool "${queue}" has placeholders for kinds of agents that onejob has not created for a week: ${some(unused.map(({ name }) => name))}. Jobs that match only these placeholders wait forever.`,
      "On the pool's page, remove those whose devices, driver or tags will not come back.",
    );
}

async function ofVersion({ client, registry, report, signal }: Asking): Promise<void> {
  const { insideVersion } = registry.seen;
  if (insideVersion === null) return;
  const [newest] = await client.packages(process.arch === 'arm64' ? 'linux-arm64' : 'linux-x64', signal);
  if (newest === undefined || compareVersions(leadingVersion(insideVersion) ?? '0', newest.version) >= 0)
    return report.ok(`The agent in the images is version ${insideVersion}, as new as the service's.`);
  return report.warn(
    `The agent in the images is version ${insideVersion}; the service offers ${newest.version}, and gives no jobs to agents that are too old.`,
    'Run "onejob image refresh".',
  );
}
