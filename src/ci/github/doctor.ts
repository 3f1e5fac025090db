/** What `onejob doctor` says of GitHub: each a sentence with what to do. */

import type { Finding } from '../../base/finding.ts';
import { compareVersions } from '../../base/version.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Registrations } from '../early/registrations.ts';
import { clockFindings, ServiceReport } from '../kit/doctor.ts';
import type { GithubParts } from './parts.ts';
import type { GithubRegistry } from './registry.ts';
import { githubPlace, labelsOf } from './type.ts';

/** ms from which a wrong clock is a warning, and an error: an App's signature is good for ten minutes. */
const skewLimits = [30_000, 300_000] as const;

export async function githubFindings(
  parts: GithubParts,
  registry: GithubRegistry,
  registrations: Registrations,
  signal: AbortSignal,
): Promise<Finding[]> {
  const { config, pools } = parts;
  const report = new ServiceReport(config.name, signal);
  const asking = { ...parts, registry, registrations, report, signal };
  const places = [...Map.groupBy(pools, ({ queue }) => githubPlace(queue))];

  const [first] = places;
  if (first !== undefined && !(await report.ask(() => ofServer(first[0], asking)))) return report.found;
  for (const [place, own] of places) await report.ask(() => ofPlace(place, own, asking));
  for (const pool of registry.unguarded)
    report.problem(
      `The runner in the image of pool ${pool} does not run ACTIONS_RUNNER_HOOK_JOB_STARTED, so "forks" and "public" refuse nothing there.`,
      'Use the runner of GitHub (image: auto), or keep such jobs out with the runner group and write "forks: run" and "public: run".',
    );
  for (const { name, queue, standby, devices } of pools)
    if (!standby && devices.count !== 0 && registry.isDenied(githubPlace(queue)))
      report.problem(
        `Pool ${name} leases devices while jobs wait, but GitHub does not let this credential see which jobs of ${queue} wait.`,
        'Give it the permission Actions, read, or write "mode: scale-set" into the service.',
      );
  if (pools.length === 0) report.unused(registrations.open().length);
  return report.found;
}

interface Asking extends GithubParts {
  readonly registry: GithubRegistry;
  readonly registrations: Registrations;
  readonly report: ServiceReport;
  readonly signal: AbortSignal;
}

/** Its answer, its clock, and the version of runners that it wants. */
async function ofServer(place: string, { config, client, clock, registry, report, signal }: Asking): Promise<void> {
  const { version, date } = await client.server(place, signal);
  report.ok(`${config.url} answers${version === null ? '' : ` with GitHub Enterprise Server ${version}`}.`);
  const skew = Number.isNaN(date) ? null : date - clock.wall();
  report.add(clockFindings(report.subject, skew, skewLimits, 'GitHub refuses what an App signed'));
  const [newest] = await client.packages(place, `linux-${process.arch}`, signal);
  for (const [pool, inside] of newest === undefined ? [] : registry.versions)
    if (newest !== undefined && compareVersions(inside, newest.version) < 0)
      report.warn(
        `The runner in the image of pool ${pool} is version ${inside}; GitHub offers ${newest.version}, and refuses older ones 30 days after its release.`,
        'Run "onejob image refresh", or put the newer runner into the image.',
      );
}

/** What the credential may do there, and other runners that take jobs of our pools. */
async function ofPlace(place: string, own: readonly PoolConfig[], asking: Asking): Promise<void> {
  const { client, registry, registrations, report, signal } = asking;
  const title = own[0]?.queue ?? place;
  const runners = await client.runners(place, signal);
  const ours = runners.filter(({ name }) => registrations.agentNames.agentOf(name) !== null);
  report.ok(`onejob may list the runners of ${title}: ${runners.length}, ${ours.length} of them of this host.`);
  await (place.startsWith('repos/') ? ofRepository(place.slice('repos/'.length), title, asking) : ofGroup(place, title, asking));
  for (const pool of own) {
    // Machines in a cloud are others by nature.
    if (pool.elsewhere !== undefined) continue;
    const labels = new Set((registry.labels.get(pool.name) ?? labelsOf(pool)).map((label) => label.toLowerCase()));
    const others = runners.filter((one) => !ours.includes(one) && [...labels].every((label) => one.labels.includes(label)));
    report.rivals(
      title,
      `all labels of pool ${pool.name} (${[...labels].join(', ')})`,
      others.map(({ name }) => name),
    );
  }
}

async function ofRepository(name: string, title: string, { config, client, report, signal }: Asking): Promise<void> {
  const repository = await client.repository(name, signal);
  if (repository === null || repository.private) return;
  if (config.public === 'refuse')
    return report.problem(
      `${title} is public, and "public" is refuse: each of its jobs fails before its first step.`,
      'Write "public: run" in the service, once its sandboxes hold nothing that a stranger may see.',
    );
  const policy = await client.forkApproval(name, signal).catch(() => null);
  if (config.forks === 'run' && policy !== 'all_external_contributors')
    report.warn(
      `${title} is public, "forks" is run, and ${policy === null ? 'onejob cannot see whether' : 'not all'} pull requests from outside need an approval first.`,
      'Choose "Require approval for all external contributors" (settings of the repository, Actions, General).',
    );
}

async function ofGroup(place: string, title: string, { config, client, report, signal }: Asking): Promise<void> {
  const names = (await client.groups(place, signal)).map(({ name }) => name);
  if (names.some((name) => name.toLowerCase() === config.group.toLowerCase())) return;
  report.problem(`${title} has no runner group "${config.group}".`, `Fix "group" of the service. There are: ${names.join(', ')}.`);
}
