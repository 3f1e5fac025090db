/** What `onejob doctor` says of GitHub: each a sentence with what to do. */

import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import { compareVersions } from '../../base/version.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Registrations } from '../early/registrations.ts';
import { clockFindings, saidOf } from '../service-findings.ts';
import type { GithubParts } from './parts.ts';
import type { GithubRegistry } from './registry.ts';
import { githubPlace, labelsOf } from './type.ts';

/** ms from which a wrong clock is a warning, and an error: an App's signature is good for ten minutes. */
const skewLimits = [30_000, 300_000] as const;

export async function githubFindings(
  { config, pools, client, clock }: GithubParts,
  registry: GithubRegistry,
  registrations: Registrations,
  signal: AbortSignal,
): Promise<Finding[]> {
  const subject = `service ${config.name}`;
  const found: Finding[] = [];
  const say = (level: typeof problem, message: string, hint = ''): void => void found.push(level(subject, message, hint));
  const refused = (error: unknown): void => {
    signal.throwIfAborted();
    const { message, hint } = saidOf(error);
    say(problem, message, hint ?? 'Try again later.');
  };
  const places = [...Map.groupBy(pools, ({ queue }) => githubPlace(queue))];

  const [first] = places;
  if (first !== undefined)
    try {
      const { version, date } = await client.server(first[0], signal);
      found.push(fine(subject, `${config.url} answers${version === null ? '' : ` with GitHub Enterprise Server ${version}`}.`));
      const skew = Number.isNaN(date) ? null : date - clock.wall();
      found.push(...clockFindings(subject, skew, skewLimits, 'GitHub refuses what an App signed'));
      await ofVersion(first[0]);
    } catch (error) {
      refused(error);
      return found;
    }
  for (const [place, own] of places) await ofPlace(place, own).catch(refused);
  for (const pool of registry.unguarded)
    say(
      problem,
      `The runner in the image of pool ${pool} does not run ACTIONS_RUNNER_HOOK_JOB_STARTED, so "forks" and "public" refuse nothing there.`,
      'Use the runner of GitHub (image: auto), or keep such jobs out with the runner group and write "forks: run" and "public: run".',
    );
  for (const { name, queue, standby, devices } of pools)
    if (!standby && devices.count !== 0 && registry.isDenied(githubPlace(queue)))
      say(
        problem,
        `Pool ${name} leases devices while jobs wait, but GitHub does not let this credential see which jobs of ${queue} wait.`,
        'Give it the permission Actions, read, or write "mode: scale-set" into the service.',
      );
  if (pools.length === 0 && registrations.open().length > 0)
    say(
      warning,
      `No pool of the config uses service ${config.name}, which still has runners that onejob registered.`,
      'onejob removes them when their agents are gone.',
    );
  return found;

  async function ofVersion(place: string): Promise<void> {
    const [newest] = await client.packages(place, `linux-${process.arch}`, signal);
    for (const [pool, version] of newest === undefined ? [] : registry.versions)
      if (newest !== undefined && compareVersions(version, newest.version) < 0)
        say(
          warning,
          `The runner in the image of pool ${pool} is version ${version}; GitHub offers ${newest.version}, and refuses older ones 30 days after its release.`,
          'Run "onejob image refresh", or put the newer runner into the image.',
        );
  }

  async function ofPlace(place: string, own: readonly PoolConfig[]): Promise<void> {
    const title = own[0]?.queue ?? place;
    const runners = await client.runners(place, signal);
    const ours = runners.filter(({ name }) => registrations.agentNames.agentOf(name) !== null);
    found.push(fine(subject, `onejob may list the runners of ${title}: ${runners.length}, ${ours.length} of them of this host.`));
    await (place.startsWith('repos/') ? ofRepository(place.slice('repos/'.length), title) : ofGroup(place, title));
    for (const pool of own) {
      // Machines in a cloud are others by nature.
      if (pool.elsewhere !== undefined) continue;
      const labels = new Set((registry.labels.get(pool.name) ?? labelsOf(pool)).map((label) => label.toLowerCase()));
      const others = runners.filter((one) => !ours.includes(one) && [...labels].every((label) => one.labels.includes(label)));
      if (others.length > 0)
        say(
          warning,
          `${others.length} other ${others.length === 1 ? 'runner' : 'runners'} of ${title} have all labels of pool ${pool.name} (${[...labels].join(', ')}), such as ${others[0]?.name}, and take its jobs.`,
          'Give the pool labels of its own with "tags", unless these runners are other hosts with the same pool.',
        );
    }
  }

  async function ofRepository(name: string, title: string): Promise<void> {
    const repository = await client.repository(name, signal);
    if (repository === null || repository.private) return;
    if (config.public === 'refuse')
      return say(
        problem,
        `${title} is public, and "public" is refuse: each of its jobs fails before its first step.`,
        'Write "public: run" in the service, once its sandboxes hold nothing that a stranger may see.',
      );
    const policy = await client.forkApproval(name, signal).catch(() => null);
    if (config.forks === 'run' && policy !== 'all_external_contributors')
      say(
        warning,
        `${title} is public, "forks" is run, and ${policy === null ? 'onejob cannot see whether' : 'not all'} pull requests from outside need an approval first.`,
        'Choose "Require approval for all external contributors" (settings of the repository, Actions, General).',
      );
  }

  async function ofGroup(place: string, title: string): Promise<void> {
    const names = (await client.groups(place, signal)).map(({ name }) => name);
    if (names.some((name) => name.toLowerCase() === config.group.toLowerCase())) return;
    say(problem, `${title} has no runner group "${config.group}".`, `Fix "group" of the service. There are: ${names.join(', ')}.`);
  }
}
