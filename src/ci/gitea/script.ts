/** How a waiting sandbox becomes a runner: its program is mounted, and its registration is written into memory. Only builtins write it. */
import { inQuotes } from '../../base/quoted.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { mounted, ownFolder } from '../kit/mounted.ts';
import type { RunnerKey } from './client.ts';

const memory = `${ownFolder}/run`;
/**
 * The runner writes its limit as the argument of a `sleep`, and from a million seconds on with an exponent (1.0.8, run_context.go), which
 * busybox does not read: the container of such a job would end at once.
 */
const longest = '277h';

/** As `CiService.equip`. `folder`: on this host, with the runner's program; null: the image brings its own. */
export function equippedForGitea(recipe: Recipe, folder: string | null): Recipe {
  return {
    ...mounted(recipe, folder, 'gitea-runner'),
    tmpfs: { ...recipe.tmpfs, [memory]: 'mode=1777,size=1m,noexec,nosuid,nodev' },
  };
}

export interface GiteaScript extends RunnerKey {
  readonly id: number;
  readonly name: string;
  /** Of the server. */
  readonly url: string;
  readonly labels: readonly string[];
  readonly workspace: string;
  /** ms that a job may run; null: no limit. */
  readonly timeout: number | null;
  /** Whether the sandbox has an engine of its own, which containers of the job may use as well. */
  readonly hasEngine: boolean;
  /** Of the caches of Actions that the host keeps for the job; null: it keeps none. */
  readonly caches?: string | null;
  /** Shell lines before the runner. */
  readonly before?: readonly string[];
}

export function giteaScript(of: GiteaScript): string {
  const { id, uuid, token, name, url, labels, workspace, timeout, hasEngine, caches = null, before = [] } = of;
  const registration = { id, uuid, name, token, address: url, labels: labels.map((label) => `${label}:host`), ephemeral: true };
  const config = {
    log: { level: 'info' },
    runner: {
      file: '.runner',
      capacity: 1,
      labels: [],
      // onejob ends a job at its limit, with the reason. The runner's default would end it after 3 hours.
      timeout: timeout === null ? (hasEngine ? longest : '87600h') : `${Math.ceil(timeout / 1000) + 60}s`,
      fetch_interval: '1s',
      fetch_interval_max: '1s',
      log_report_interval: '2s',
      log_report_max_latency: '1s',
      ...(caches !== null && { envs: { ACTIONS_CACHE_URL: `${caches}/` } }),
    },
    // The runner's own server would end with it, and a shared one trusts every job that knows its secret.
    cache: { enabled: false },
    // Where there is an engine, the runner finds it. This decides whether containers of the job find its socket, as with Gitea's defaults.
    container: { docker_host: hasEngine ? '' : '-' },
    host: { workdir_parent: `${workspace}/jobs` },
  };
  const write = (file: string, value: unknown) => `printf '%s' ${inQuotes(JSON.stringify(value))} >${file} || exit 1`;
  const own = inQuotes(`${workspace}/.runner`);
  return [
    'umask 077',
    // A sandbox of plain processes has no memory of its own.
    `if [ -w ${memory} ]; then cd ${memory}; else mkdir -p ${own} && cd ${own}; fi || exit 1`,
    write('.runner', registration),
    write('config.yaml', config),
    'umask 022',
    `export HOME="\${HOME:-${workspace}}"`,
    `export PATH=${ownFolder}:"\${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"`,
    ...before,
    // At a TERM the runner itself would report that its job has passed (1.0.8, daemon.go), so it never gets one.
    `exec sh -c 'gitea-runner --config config.yaml daemon & runner=$!; trap "kill -KILL $runner; exit 143" TERM INT; wait $runner'`,
  ].join('\n');
}
