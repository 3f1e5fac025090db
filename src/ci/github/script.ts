/** How a waiting sandbox becomes a runner, and what it says before a job's first step. Only builtins write secrets. */
import { OnejobError } from '../../base/errors.ts';
import { inQuotes } from '../../base/quoted.ts';
import type { AgentContext } from '../../ports/ci-service.ts';
import { copied, diagFolder, ifWritable } from '../kit/in-image.ts';
import { ownFolder } from '../kit/mounted.ts';

/** Where sandboxes have the runner of this host. */
export const mountedAt = `${ownFolder}/runner`;
/** Where images have a runner: onejob's own, GitHub's own, and others. */
const roots = '/opt/agent /home/runner /actions-runner /opt/actions-runner /opt/runner';

/** As `CiService.asks`. */
export const lookInside = [
  'export RUNNER_ALLOW_RUNASROOT=1',
  `for d in "\${ONEJOB_AGENT_ROOT:-}" ${roots}; do`,
  '  [ -n "$d" ] && [ -f "$d/bin/Runner.Listener" ] || continue',
  `  printf 'root=%s\\n' "$d"`,
  ifWritable('Runner.Listener'),
  `  printf 'version=%s\\n' "$("$d/bin/Runner.Listener" --version 2>&1)"`,
  '  break',
  'done',
  `printf 'end=yes\\n'`,
].join('\n');

export interface RunnerInside {
  /** Folder of the runner. */
  readonly root: string;
  readonly version: string;
  /** Whether the runner can write there, as it does; otherwise it runs from a copy. */
  readonly isWritable: boolean;
}

/** @throws OnejobError E_AGENT_ABSENT when the image has no runner that works, E_GATE_ENDED, of the runtime */
export async function runnerIn({ pool, ask }: Pick<AgentContext, 'pool' | 'ask'>, signal: AbortSignal): Promise<RunnerInside> {
  const answer = await ask(signal);
  const said = (key: string): string | null => new RegExp(`^${key}=(.*)$`, 'm').exec(answer)?.[1] ?? null;
  if (said('end') === null)
    throw new OnejobError('E_GATE_ENDED', 'Cannot inspect the image: the script that inspects it did not finish.', { retry: true });
  const [root, version] = [said('root'), said('version')];
  const absent = (what: string, hint: string): OnejobError =>
    new OnejobError('E_AGENT_ABSENT', `Cannot create agents for pool ${pool}: ${what}`, { hint });
  if (root === null)
    throw absent(
      'its image has no runner (onejob looked for bin/Runner.Listener in /opt/agent, /home/runner and others).',
      'Let onejob build the image ("image: auto", or "image: { base: … }"), mount a runner of this host ("agent: { folder: … }"), or set ONEJOB_AGENT_ROOT in the pool\'s env to the runner\'s folder.',
    );
  const known = /^\d+\.\d+\.\d+/.exec(version ?? '')?.[0];
  if (known === undefined)
    throw absent(
      `the runner in ${root} does not run: ${(version || 'it reports no version').slice(0, 300)}.`,
      'Usually a library is missing in the image; run "bin/Runner.Listener --version" in it.',
    );
  return { root, version: known, isWritable: said('writable') !== null };
}

export interface GithubScript extends Pick<RunnerInside, 'root' | 'isWritable'> {
  readonly workspace: string;
  /** The agent's own folder, which the Engine that jobs may use finds at the same path; null: jobs may use none. */
  readonly shared: string | null;
  /** Whether that Engine finds the runner of this host, too. */
  readonly seesMounts: boolean;
  /** `encoded_jit_config`: good for one job. */
  readonly config: string;
  readonly refuses: Refuses;
}

/** Whose jobs fail before their first step. */
export interface Refuses {
  readonly forks: boolean;
  readonly public: boolean;
}

/** What the script in front of a job writes about it, as JSON behind this word. */
export const jobMark = 'onejob: job ';

/**
 * The runner gets its configuration in a variable, which it removes from its environment (actions/runner, `CommandSettings.cs`). Its
 * own `run.sh` would restart it after its job when it wants to update itself, and swallow a TERM.
 */
export function githubScript({ root, isWritable, workspace, shared, seesMounts, config, refuses }: GithubScript): string {
  const own = `${workspace}/.onejob`;
  const home = shared ?? (isWritable ? root : `${own}/runner`);
  const [before, told] = [`${own}/before-job.sh`, `${own}/told`];
  return [
    `mkdir -p ${inQuotes(home)} ${inQuotes(`${workspace}/work`)} ${inQuotes(`${workspace}/${diagFolder}`)} ${inQuotes(own)} || exit 1`,
    `cd ${inQuotes(home)} || exit 1`,
    ...(home === root ? [] : copied(root, shared !== null && !(seesMounts && root === mountedAt))),
    // A job's files belong to the workspace, whose size is limited, unless an Engine must find them.
    `rm -rf _work _diag && ln -s ${inQuotes(`${workspace}/${diagFolder}`)} _diag || exit 1`,
    shared === null ? `ln -s ${inQuotes(`${workspace}/work`)} _work || exit 1` : 'mkdir _work || exit 1',
    `rm -f ${inQuotes(told)} && mkfifo -m 600 ${inQuotes(told)} || exit 1`,
    // Its first line only, which comes before any step of the job; no job meets the pipe.
    `{ IFS= read -r line <${inQuotes(told)}; rm -f ${inQuotes(told)}; printf '%s\\n' "$line"; } >&2 &`,
    `printf '%s' ${inQuotes(beforeJob(root, told, refuses))} >${inQuotes(before)} && chmod 755 ${inQuotes(before)} || exit 1`,
    `export ACTIONS_RUNNER_HOOK_JOB_STARTED=${inQuotes(before)}`,
    'export RUNNER_ALLOW_RUNASROOT=1 ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1',
    `export ACTIONS_RUNNER_INPUT_JITCONFIG=${inQuotes(config)}`,
    'exec ./bin/Runner.Listener run >&2',
  ].join('\n');
}

/**
 * Runs in the sandbox before a job's first step (docs, "Running scripts before or after a job"): tells onejob which job it is, and fails
 * the job if it may not run here. The runner brings Node.js for actions.
 */
function beforeJob(root: string, told: string, refuses: Refuses): string {
  return [
    '#!/bin/sh',
    // The image's own may change what Node.js does.
    'unset NODE_OPTIONS',
    `for node in ${inQuotes(root)}/externals/node*/bin/node "$(command -v node)"; do [ -x "$node" ] && break; done`,
    // Without it, a refusal could not be decided.
    ...(refuses.forks || refuses.public
      ? [
          `[ -x "$node" ] || { echo 'onejob: the image has no Node.js to read where this job comes from, so it is refused.'; exit 1; }`,
        ]
      : [`[ -x "$node" ] || { rm -f ${inQuotes(told)}; exit 0; }`]),
    `exec "$node" -e ${inQuotes(reader)} ${inQuotes(told)} ${refuses.forks} ${refuses.public}`,
    '',
  ].join('\n');
}

const reader = `
const [told, forks, open] = process.argv.slice(1);
const fs = require('fs');
const env = process.env;
let event = null;
try { event = JSON.parse(fs.readFileSync(env.GITHUB_EVENT_PATH, 'utf8')); } catch {}
const isRead = typeof event === 'object' && event !== null && !Array.isArray(event);
if (!isRead) event = {};
const request = event.pull_request;
const head = request ? (request.head && request.head.repo) || null : event.workflow_run && event.workflow_run.head_repository;
const here = String(env.GITHUB_REPOSITORY);
const isForeign = head !== undefined && String(head && head.full_name).toLowerCase() !== here.toLowerCase();
// Events of the clock name no repository, and have no stranger behind them.
const isPublic = event.repository ? event.repository.private !== true : env.GITHUB_EVENT_NAME !== 'schedule';
const job = {
  repository: here, run: Number(env.GITHUB_RUN_ID), number: Number(env.GITHUB_RUN_NUMBER), workflow: env.GITHUB_WORKFLOW,
  name: env.GITHUB_JOB, event: env.GITHUB_EVENT_NAME, ref: env.GITHUB_REF,
};
let why = null;
if (!isRead && (forks === 'true' || open === 'true')) why = 'onejob cannot read where it comes from';
else if (forks === 'true' && isForeign) why = 'it comes from ' + (head ? head.full_name : 'a fork that is gone') + ', a fork, and this host runs no jobs of forks';
else if (open === 'true' && isPublic) why = here + ' is public, and this host runs no jobs of public repositories';
// Without a reader, the job must not wait for one.
const { O_WRONLY, O_NONBLOCK } = fs.constants;
try { fs.writeSync(fs.openSync(told, O_WRONLY | O_NONBLOCK), ${JSON.stringify(jobMark)} + JSON.stringify({ ...job, refused: why }) + '\\n'); } catch {}
if (why !== null) {
  console.log('::error::onejob does not run this job: ' + why + '.');
  process.exit(1);
}
`.trim();
