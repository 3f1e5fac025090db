/**
 * How a waiting sandbox becomes the runner of one job: its program is mounted, and its config is written into memory. The config
 * leads to the filter with a sealed token that is good for this job alone, and is in no environment and no argument. The runner shows
 * that address in its log when it cannot reach the filter, so the right to get the job is apart from it.
 */
import { inQuotes } from '../../base/quoted.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { mounted, ownFolder } from '../kit/mounted.ts';

const memory = `${ownFolder}/run`;
/** s until a runner leaves that gets no job from the filter. */
const patience = 20;

/** As `CiService.equip`. `folder`: on this host, with the runner's program. */
export function equippedForGitlab(recipe: Recipe, folder: string | null): Recipe {
  return {
    ...mounted(recipe, folder, 'gitlab-runner'),
    tmpfs: { ...recipe.tmpfs, [memory]: 'mode=1777,size=1m,noexec,nosuid,nodev' },
  };
}

export interface GitlabScript {
  readonly name: string;
  /** Of the filter, with the sealed token. */
  readonly url: string;
  /** With which it gets its job, once. */
  readonly token: string;
  /** The only certificate in PEM that the filter may have; null: it has none. */
  readonly ca: string | null;
  readonly workspace: string;
  /** Shell lines before the runner. */
  readonly before: readonly string[];
  /** Lines for the job's log, in front of its own commands. */
  readonly notes: readonly string[];
  /**
   * Whether the script runs in a container of the sandbox's own engine, and in which image if the job names none. null: it runs in the
   * sandbox.
   */
  readonly container: { readonly image: string | null } | null;
  /** Caches that the host keeps, with what the runner shows there besides the address; null: it keeps none for this job. */
  readonly kept: { readonly address: string; readonly secret: string } | null;
}

/**
 * The engine is the agent's own, so its containers may do all there that they may do on a person's machine. It is new, so that the
 * registry is asked for each image once.
 */
function dockerKeys({ image }: { readonly image: string | null }): string {
  const keys = {
    image: image ?? '',
    privileged: true,
    pull_policy: ['if-not-present'],
    allowed_pull_policies: ['always', 'if-not-present', 'never'],
    volumes: ['/cache', '/var/run/docker.sock:/var/run/docker.sock'],
  };
  return `{ ${toml(keys)} }`;
}

/** The runner signs addresses of a bucket itself, and asks nobody. Its log must not show them: in them is the sealed token. */
function cacheKeys({ address, secret }: NonNullable<GitlabScript['kept']>): string {
  const { host, pathname } = new URL(address);
  const [, bucket = '', sealed = ''] = pathname.split('/');
  const of = { Type: 's3v2', Path: sealed, Shared: true, RedactURL: true };
  const keys = { AccessKey: secret, SecretKey: secret, BucketName: bucket, BucketLocation: 'us-east-1', PathStyle: true };
  return `{ ${toml(of)}, s3 = { ${toml({ ServerAddress: host, Insecure: true, ...keys })} } }`;
}

/** A JSON text is a TOML text. */
const toml = (keys: Readonly<Record<string, unknown>>, between = ', '): string =>
  Object.entries(keys)
    .map(([key, value]) => `${key} = ${JSON.stringify(value)}`)
    .join(between);

export function gitlabScript({ name, url, token, ca, workspace, before, notes, container, kept }: GitlabScript): string {
  const keys = {
    name,
    url,
    token,
    ...(ca !== null && { 'tls-ca-file': 'ca.pem' }),
    ...(container === null
      ? { executor: 'shell', builds_dir: `${workspace}/builds`, cache_dir: `${workspace}/cache` }
      : { executor: 'docker' }),
    ...(notes.length > 0 && { pre_build_script: `printf '%s\n' ${notes.map(inQuotes).join(' ')}` }),
  };
  const lines = [
    '[[runners]]',
    toml(keys, '\n'),
    ...(container === null ? [] : [`docker = ${dockerKeys(container)}`]),
    ...(kept === null ? [] : [`cache = ${cacheKeys(kept)}`]),
  ];
  const own = inQuotes(`${workspace}/.runner`);
  return [
    'umask 077',
    // A sandbox of plain processes has no memory of its own.
    `if [ -w ${memory} ]; then cd ${memory}; else mkdir -p ${own} && cd ${own}; fi || exit 1`,
    ...(ca === null ? [] : [`printf '%s' ${inQuotes(ca)} >ca.pem || exit 1`]),
    'unset BASH_ENV ENV CONFIG_FILE',
    // Containers have what their images bring.
    container === null ? 'shell=sh; command -v bash >/dev/null 2>&1 && shell=bash' : 'shell=bash',
    // A quarter of the time in which a runner starts is garbage collection (19.4). Its job finds both variables empty, as unset.
    'own=""; [ -n "${GOGC+set}${GOMEMLIMIT+set}" ] || own=\'environment = ["GOGC=", "GOMEMLIMIT="]\'',
    `printf '%s\\n' ${inQuotes(lines.join('\n'))} "shell = \\"$shell\\"" "$own" >config.toml || exit 1`,
    '[ -z "$own" ] || export GOGC=off GOMEMLIMIT=128MiB',
    'umask 022',
    `export HOME="\${HOME:-${workspace}}"`,
    `export PATH=${ownFolder}:"\${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"`,
    ...before,
    // Its first words name the URL, which nobody needs to read.
    // At a TERM the runner would end its job without a reason; onejob ends it with one, once the sandbox is gone.
    `exec sh -c 'gitlab-runner --log-level warn run-single -c config.toml -r "$0" --max-builds 1 --wait-timeout ${patience} & runner=$!; trap "kill -KILL $runner; exit 143" TERM INT; wait $runner' ${inQuotes(name)}`,
  ].join('\n');
}
