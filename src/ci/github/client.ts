/** The calls of GitHub's REST API that onejob makes. All throw OnejobError E_CI_*, E_SECRET. */
import { OnejobError } from '../../base/errors.ts';
import type { OfferedPackage } from '../kit/in-image.ts';
import { allPages } from '../kit/pages.ts';
import { Rest, type RestParts } from '../kit/rest.ts';
import { createAccess, type GithubAccess } from './access.ts';
import type { GithubCredential } from './config.ts';
import * as wire from './wire.ts';

export interface GithubClientOptions extends Pick<RestParts, 'clock' | 'fetch' | 'version'> {
  /** Of the REST API, without a slash at its end. */
  readonly base: string;
  readonly credential: GithubCredential;
  /** @throws OnejobError E_SECRET */
  readonly secret: () => Promise<string>;
}

/** Rows of a page; more are never sent. */
const pageSize = 100;
/** How many runs with waiting jobs are looked into. */
const mostRuns = 20;
/** From how many runs on, and how often, ms, those with running jobs are read: with each step that such a job begins, its answer is new. */
const [freeRuns, runPace] = [5, 60_000];

/** Where the REST API of a GitHub is (docs, "Getting started with the REST API"). */
export function apiOf(url: string): string {
  const { protocol, hostname, host } = new URL(url);
  if (hostname === 'github.com') return 'https://api.github.com';
  return hostname.endsWith('.ghe.com') ? `${protocol}//api.${host}` : `${url}/api/v3`;
}

export interface NewRunner {
  readonly name: string;
  readonly group: number;
  readonly labels: readonly string[];
}

/** `place`: whose runners, as a part of the path: `orgs/acme`, `repos/acme/app`, `enterprises/acme`. */
export class GithubClient {
  readonly #parts: GithubClientOptions;
  readonly #common: Omit<RestParts, 'authorization' | 'hints'>;
  readonly #access: (place: string) => GithubAccess;
  readonly #rests = new Map<string, Rest>();
  /** Jobs of runs that have running ones, as they were read last. */
  readonly #running = new Map<number, { readonly of: string; readonly at: number; readonly rows: readonly wire.GithubJob[] }>();

  constructor(parts: GithubClientOptions) {
    this.#parts = parts;
    const { base, clock, fetch, version, credential, secret } = parts;
    const headers = { 'X-GitHub-Api-Version': '2022-11-28' };
    this.#common = { base, clock, fetch, version, accept: 'application/vnd.github+json', headers };
    this.#access = createAccess({ ...this.#common, credential, secret });
  }

  /** @throws OnejobError E_CI_POOL when the credential sees no such place, E_CI_* */
  runners(place: string, signal: AbortSignal): Promise<wire.Runner[]> {
    return allPages(pageSize, async (page) => {
      const query = { per_page: String(pageSize), page: String(page) };
      const call = { path: runnersOf(place), query, doing: `list the runners of ${place}`, isRepeated: true };
      const found = await this.#restOf(place).find(wire.runnerPage, call, signal);
      if (found !== null) return found;
      throw noPlace(place);
    });
  }

  runner(place: string, id: string, signal: AbortSignal): Promise<wire.Runner | null> {
    const call = { path: `${runnersOf(place)}/${id}`, doing: `look at runner ${id} of ${place}` };
    return this.#restOf(place).find(wire.runner, call, signal);
  }

  async runnerNamed(place: string, name: string, signal: AbortSignal): Promise<wire.Runner | null> {
    const query = { name, per_page: String(pageSize) };
    const call = { path: runnersOf(place), query, doing: `find runner ${name} of ${place}` };
    const { rows } = await this.#restOf(place).read(wire.runnerPage, call, signal);
    return rows.find((one) => one.name === name) ?? null;
  }

  /** `busy`: it runs a job, or did when it was last heard of. */
  async deleteRunner(place: string, id: string, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
    const call = { method: 'DELETE', path: `${runnersOf(place)}/${id}`, doing: `remove runner ${id} from ${place}` } as const;
    const answered = await this.#restOf(place).ask(call, signal);
    if (answered.ok) return 'removed';
    if (answered.status === 404) return 'absent';
    if (answered.status === 422) return 'busy';
    throw this.#restOf(place).unexpected(call, answered);
  }

  /**
   * Registers a runner for one job. Sent once: after E_CI_UNREACHABLE, E_CI_ANSWER or an abort it may exist.
   * @throws OnejobError E_CI_NAME_TAKEN
   */
  async generateJitConfig(
    place: string,
    { name, group, labels }: NewRunner,
    signal: AbortSignal,
  ): Promise<{ id: number; config: string }> {
    const path = `${runnersOf(place)}/generate-jitconfig`;
    const body = { name, runner_group_id: group, labels, work_folder: '_work' };
    const call = { method: 'POST', path, body, doing: `register runner ${name}` } as const;
    const answered = await this.#restOf(place).ask(call, signal);
    if (answered.status === 409) throw nameTaken(name, answered.why);
    if (answered.status === 404) throw noPlace(place);
    const { runner, encoded_jit_config: config } = this.#restOf(place).expected(wire.jitConfig, call, answered);
    return { id: runner.id, config };
  }

  /** Good for an hour, and for any number of runners: it only buys the token of the scale set API. */
  async registrationToken(place: string, signal: AbortSignal): Promise<string> {
    const path = `${runnersOf(place)}/registration-token`;
    const call = { method: 'POST', path, doing: `get a registration token of ${place}` } as const;
    return (await this.#restOf(place).send(wire.registrationToken, call, signal)).token;
  }

  groups(place: string, signal: AbortSignal): Promise<wire.RunnerGroup[]> {
    return allPages(pageSize, (page) => {
      const query = { per_page: String(pageSize), page: String(page) };
      const call = { path: `/${place}/actions/runner-groups`, query, doing: `list the runner groups of ${place}` };
      return this.#restOf(place).read(wire.groupPage, call, signal);
    });
  }

  /**
   * Jobs of a repository's unfinished runs. GitHub has no such list of an organisation. `waiting`: those that no runner has; null: it
   * has so many unfinished runs that not all were read, and those that were have none. `taken`: those that a runner has or had.
   */
  async unfinishedJobs(
    place: string,
    signal: AbortSignal,
  ): Promise<{ readonly waiting: wire.GithubJob[] | null; readonly taken: wire.GithubJob[] }> {
    const rest = this.#restOf(place);
    const doing = `list the waiting jobs of ${place}`;
    const lists = await Promise.all(
      ['queued', 'in_progress'].map((status) => {
        const query = { status, per_page: String(mostRuns) };
        return rest.read(wire.runPage, { path: `/${place}/actions/runs`, query, doing, isRepeated: true }, signal);
      }),
    );
    const ids = new Set(lists.flatMap(({ rows }) => rows.map(({ id }) => id)));
    for (const [id, { of }] of this.#running) if (of === place && !ids.has(id)) this.#running.delete(id);
    const pages = [...ids].map(async (id) => {
      const known = this.#running.get(id);
      if (ids.size > freeRuns && known !== undefined && this.#parts.clock.now() - known.at < runPace) return known.rows;
      const call = { path: `/${place}/actions/runs/${id}/jobs`, query: { per_page: String(pageSize) }, doing, isRepeated: true };
      const { rows } = await rest.read(wire.githubJobPage, call, signal);
      if (rows.some(({ status }) => status === 'in_progress'))
        this.#running.set(id, { of: place, at: this.#parts.clock.now(), rows });
      else this.#running.delete(id);
      return rows;
    });
    const all = (await Promise.all(pages)).flat();
    const waiting = all.filter(({ status }) => status === 'queued');
    const isComplete = lists.every(({ total, rows }) => total <= rows.length);
    const taken = all.filter(({ runner_name }) => runner_name !== null);
    return { waiting: waiting.length === 0 && !isComplete ? null : waiting, taken };
  }

  /** The job of a run that the runner with this name got, in whichever try; null: it has none there. */
  async jobOf(
    place: string,
    { repository, run, runner }: { readonly repository: string; readonly run: number; readonly runner: string },
    signal: AbortSignal,
  ): Promise<wire.GithubJob | null> {
    const query = { filter: 'all', per_page: String(pageSize) };
    const call = { path: `/repos/${repository}/actions/runs/${run}/jobs`, query, doing: `look at run ${run} of ${repository}` };
    const rows = await allPages(pageSize, (page) =>
      this.#restOf(place).read(wire.githubJobPage, { ...call, query: { ...query, page: String(page) } }, signal),
    );
    return rows.find(({ runner_name }) => runner_name === runner) ?? null;
  }

  /** null: the credential does not see it. `place`: whose runners may take it. */
  job(place: string, repository: string, job: number, signal: AbortSignal): Promise<wire.GithubJob | null> {
    const call = { path: `/repos/${repository}/actions/jobs/${job}`, doing: `look at job ${job} of ${repository}` };
    return this.#restOf(place).find(wire.job, call, signal);
  }

  /** Packages of the runner for a platform such as `linux-x64`: the newest only, which is all that GitHub offers. */
  async packages(place: string, platform: string, signal: AbortSignal): Promise<OfferedPackage[]> {
    const [os, arch = ''] = platform.split('-');
    const call = { path: `${runnersOf(place)}/downloads`, doing: `list the packages of the runner` };
    const found = await this.#restOf(place).read(wire.downloads, call, signal);
    const fits = found.filter((one) => one.os === os && one.architecture === arch);
    return fits.flatMap(({ download_url: address, filename, sha256_checksum }) => {
      const named = /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(filename)?.[1];
      return named === undefined ? [] : [{ version: named, url: address, sha256: sha256_checksum?.toLowerCase() ?? null }];
    });
  }

  /** null: this token does not see it. */
  repository(name: string, signal: AbortSignal) {
    const call = { path: `/repos/${name}`, doing: `look at repository "${name}"` };
    return this.#restOf(`repos/${name}`).find(wire.repository, call, signal);
  }

  /** Whose pull requests from forks need somebody's approval before they run; null: GitHub does not say. */
  async forkApproval(name: string, signal: AbortSignal): Promise<string | null> {
    const path = `/repos/${name}/actions/permissions/fork-pr-contributor-approval`;
    const call = { path, doing: `look at repository "${name}"` };
    const found = await this.#restOf(`repos/${name}`).find(wire.forkApproval, call, signal);
    return found?.approval_policy ?? null;
  }

  /** The version of an Enterprise Server; null: it is GitHub itself. And its clock, ms since the epoch. */
  async server(place: string, signal: AbortSignal): Promise<{ version: string | null; date: number }> {
    const call = { method: 'GET', path: '/meta', doing: 'ask for the version of the server' } as const;
    const answered = await this.#restOf(place).ask(call, signal);
    if (!answered.ok) throw this.#restOf(place).unexpected(call, answered);
    const { headers } = answered;
    return { version: headers.get('X-GitHub-Enterprise-Version'), date: Date.parse(headers.get('Date') ?? '') };
  }

  /** GitHub counts the calls of each installation, and of each person. */
  #restOf(place: string): Rest {
    const isOne = this.#parts.credential.kind === 'token' || this.#parts.credential.installation !== null;
    const key = isOne ? '' : place;
    const known = this.#rests.get(key);
    if (known !== undefined) return known;
    const made = new Rest({
      ...this.#common,
      ...this.#access(place),
      hints: {
        credential: 'Put a valid token where "token" of the service points, or check "app".',
        denied:
          'Give the App or the token the right to manage runners: Self-hosted runners, read and write (organisation), or Administration, read and write (repository).',
        answer: 'Check "url" of the service, and what answers there.',
      },
    });
    this.#rests.set(key, made);
    return made;
  }
}

function runnersOf(place: string) {
  return `/${place}/actions/runners`;
}

function noPlace(place: string): OnejobError {
  const message = `Cannot run jobs of ${place}: GitHub shows no such place, or no such runner group, to this credential.`;
  const hint = 'Fix "queue" in the config, or give the App or the token access to it.';
  return new OnejobError('E_CI_POOL', message, { hint, retry: true });
}

export function nameTaken(name: string, why: string): OnejobError {
  return new OnejobError('E_CI_NAME_TAKEN', `Cannot register runner ${name}: GitHub has one with that name (${why}).`, {
    hint: 'onejob removes it, and tries again.',
    retry: true,
  });
}
