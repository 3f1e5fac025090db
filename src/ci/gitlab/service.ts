/**
 * GitLab, of which the engine for late binding asks jobs with the token of a runner. Each goes to the real runner in a sandbox, which
 * speaks for it with the job's own token.
 */

import { hash, randomUUID } from 'node:crypto';
import { isOwnName } from '../../base/image-reference.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import { hasEngine } from '../kit/admission.ts';
import { openAgentProgram } from '../kit/agent-program.ts';
import type { JobEnd } from '../kit/job-rows.ts';
import { noProxyFor } from '../kit/mounted.ts';
import { LateBound, openLate } from '../late/engine.ts';
import type { LatePort } from '../late/port.ts';
import type { OpenParts } from '../parts.ts';
import { trustedCaches } from '../stored/store.ts';
import { GitlabClient } from './client.ts';
import { gitlabFindings } from './doctor.ts';
import { jobFacts } from './facts.ts';
import { gitlabRules, gitlabRulesOf, runnerTokenOf } from './filter-rules.ts';
import type { GitlabParts, GitlabPortParts } from './parts.ts';
import { gitlabRunner } from './release.ts';
import { equippedForGitlab, gitlabScript } from './script.ts';
import type { GitlabServiceConfig } from './type.ts';
import { type GivenJob, gitlabEnd, givenJob, type JobKey, jobKey } from './wire.ts';

export function openGitlab(config: GitlabServiceConfig, parts: OpenParts): CiService {
  const { store, clock, variables, onejob, fetch } = parts;
  const { name, url } = config;
  const client = new GitlabClient({
    url,
    clock,
    fetch,
    version: onejob.version,
    systemId: `s_${hash('sha256', store.owner).slice(0, 12)}`,
    token: () => readSecret(config.token, variables),
  });
  const program = openAgentProgram(name, gitlabRunner(), config.agentPackage, parts);
  const port = gitlabPort({ config, client, program, pool: parts.pools[0] });
  return createGitlab({ ...openLate(name, port, parts), ...config, config, client, program });
}

export function createGitlab(parts: GitlabParts): CiService {
  const { config, program } = parts;
  const bound = new LateBound({ ...parts, service: config.name });
  return {
    ...bound.common,
    check: (signal) => gitlabFindings(parts, bound.trouble, signal),
    equip: (recipe) => equippedForGitlab(recipe, program.folder),
  };
}

export function gitlabPort({ config, client, program, pool }: GitlabPortParts): LatePort<GivenJob, JobKey> {
  /** The version that the server is told; the runner in the sandbox tells its own. */
  const version = (): string => (program.state.kind === 'ready' ? program.state.version : 'unknown');
  /** As the server or the client says it; null: it is not over. */
  const overOf = (state: string): JobEnd | null => {
    const end = gitlabEnd(state);
    if (end !== null) return { word: end, outcome: end };
    return state === 'gone' || state === 'over' ? { word: 'ended', outcome: null } : null;
  };

  return {
    endpoint: config.url,
    rules: gitlabRulesOf,
    schemas: { given: givenJob, key: jobKey },
    // What a job does at its end may take five minutes.
    pace: { look: 30_000, over: 360_000, cancelled: 360_000 },
    keyOf: ({ id, token, features }) => ({ id, token, reasons: features.failure_reasons }),
    idOf: ({ id }) => String(id),
    aboutOf(given) {
      const { pipeline, build, repository, branch, tag, reason, link, title } = jobFacts(given);
      const parts = [pipeline, build === null ? null : `#${build}`, title].filter((part) => part !== null);
      return { definition: pipeline, build, repository, branch: branch ?? tag, reason, link, title: parts.join(' ') };
    },
    factsOf: jobFacts,
    kinds: { all: [protectedCaches, trustedCaches], of: (given) => (isProtected(given) ? protectedCaches : trustedCaches) },
    envOf: ({ variables }) => Object.fromEntries(variables.map(({ key, value }) => [key, value])),
    // As the runner does it, but only once: `$NAME` and `${NAME}`.
    imageOf({ image, variables }, admitted) {
      // The runner makes a container of it, in the engine of the sandbox.
      if (hasEngine(pool, admitted)) return '';
      const values = new Map(variables.map(({ key, value }) => [key, value]));
      return (image?.name ?? '').replaceAll(
        /\$(?:\{(\w+)\}|(\w+))/g,
        (_, braced: string | undefined, plain: string | undefined) => {
          return values.get(braced ?? plain ?? '') ?? '';
        },
      );
    },
    whyNot({ image, services }, admitted) {
      const names = (services ?? []).map(({ name }) => name);
      if (names.length === 0) return null;
      const asks = `it asks for "services" (${names.join(', ')})`;
      if (pool?.recipe.containers === undefined)
        return `${asks}, which need "containers: true" in the pool; write that, or start them in its script.`;
      if (!hasEngine(pool, admitted))
        return `${asks}, which need an engine for containers, and an untrusted job has none (rule "trust.containers: refuse").`;
      if (image != null || imageOutside(pool) !== null) return null;
      return `${asks} but names no "image", and the image of the pool is onejob's own, which the engine of its containers cannot pull; write "image" into the job.`;
    },
    request: (mayHold, signal) => client.request(version(), mayHold, signal),
    async look(key, waits, signal) {
      // That the token is refused there may have other reasons, such as a list of addresses. A report of the runner is never refused so.
      const asked = waits ? await client.touch(key, 'pending', signal) : await client.state(key, signal);
      const state = asked ?? (await client.touch(key, 'running', signal));
      return overOf(state) ?? (state === 'canceling' ? 'cancelled' : 'ours');
    },
    async end(key, { words, why }, signal) {
      // A job that no runner has accepted yet takes no log. The answer also tells whether it is over.
      const state = await client.touch(key, 'running', signal);
      const over = overOf(state);
      if (over !== null) return over;
      await client.write(key, `\n${words.startsWith('onejob ') ? '' : 'onejob: '}${words}\n`, signal);
      const reason = why === 'refused' ? 'runner_unsupported' : 'runner_system_failure';
      const isKnown = key.reasons.length === 0 || key.reasons.includes(reason);
      const isOurs = await client.fail(key, isKnown ? reason : 'unknown_failure', signal);
      if (state === 'canceling') return { word: 'cancelled', outcome: 'cancelled' };
      return isOurs ? null : { word: 'ended', outcome: null };
    },
    // gitlab-runner 19.4 (`common/build.go`).
    failsOutside: (line) => line.includes('Job failed (system failure): '),
    // Of the shell, and of a container.
    exitIn: (line) => /Job failed: exit (?:status|code) (\d+)/.exec(line)?.[1] ?? null,
    script({ name, workspace }, given, { way: { origin, ca }, notes, secrets, leaveApart, trusted, caches }) {
      const { sealed, key } = leaveApart(payloadFor(given, new URL(origin).hostname, secrets));
      const url = `${origin}/${gitlabRules.root}/${sealed}`;
      const isContainer = hasEngine(pool, { trusted }) && (given.image != null || (given.services ?? []).length > 0);
      const container = isContainer ? { image: pool === undefined ? null : imageOutside(pool) } : null;
      const secret = randomUUID();
      const address = (given.cache ?? []).length > 0 ? caches('s3', secret) : null;
      const kept = address === null ? null : { address, secret };
      return gitlabScript({ name, url, token: runnerTokenOf(key), ca, workspace, notes, before: noProxyFor(url), container, kept });
    },
  };
}

/** Of refs that GitLab protects. Their jobs share no cache with others of the project, as in GitLab, which ends the keys differently. */
const protectedCaches = `${trustedCaches}-protected`;

/** A pipeline may set the variable, too, which then has two values. */
function isProtected({ git_info: git, variables }: GivenJob): boolean {
  if (git.protected != null) return git.protected;
  const said = variables.filter(({ key }) => key === 'CI_COMMIT_REF_PROTECTED');
  return said.length > 0 && said.every(({ value }) => value === 'true');
}

/** The image of a pool as other engines can pull it; null: they cannot. */
function imageOutside({ imageRecipe, recipe: { image } }: PoolConfig): string | null {
  return imageRecipe !== null || image === null || isOwnName(image) ? null : image;
}

/** What the runner in the sandbox gets: the job as it came, with the secrets of this host, and a way past proxies to the filter. */
function payloadFor(
  given: GivenJob,
  filter: string,
  secrets: readonly { readonly name: string; readonly value: string }[],
): string {
  const own = secrets.map(({ name: key, value }) => ({ key, value, masked: true, public: false, raw: true }));
  const host = filter.replace(/^\[(.*)\]$/, '$1');
  const open = given.variables
    .filter(({ key, value }) => /^no_proxy$/i.test(key) && value !== '')
    .map(({ key, value }) => ({ key, value: `${value},${host}`, public: true }));
  return JSON.stringify({ ...given, variables: [...given.variables, ...open, ...own] });
}
