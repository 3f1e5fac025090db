/**
 * What keeps a job apart on its node, as a shell script: `inside.sh` in the agent's folder starts the gate in it. It uses what the node
 * has, which may differ from this host.
 */
import { quoted } from '../../base/quoted.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { answering, gateScript } from '../gate.ts';
import { etcNames } from '../process/bubblewrap.ts';
import { keepsApart, type SandboxKind } from './config.ts';

export interface SandboxParts {
  readonly agent: string;
  /** The agent's name, and so its host name. */
  readonly name: string;
  /** Its folder, as the node sees it. */
  readonly folder: string;
  readonly recipe: Recipe;
  /** As `SandboxSpec.look`. */
  readonly look?: string | undefined;
  readonly sandbox: SandboxKind;
  /** Of the sandboxes that are made from one; empty for others. */
  readonly image: string;
  /** Programs that the node has or gets, by the path of the sandbox: their path on the node. */
  readonly programs: ReadonlyMap<string, string>;
}

/** Where a job finds its workspace. */
export function workspaceIn(sandbox: SandboxKind, folder: string): string {
  return keepsApart(sandbox) ? '/workspace' : `${folder}/work`;
}

export function insideScript(parts: SandboxParts): string {
  switch (parts.sandbox) {
    case 'bubblewrap':
      return bubblewrapScript(parts);
    case 'apptainer':
      return apptainerScript(parts);
    case 'podman':
      return podmanScript(parts);
    // pyxis runs all of the batch script in the container.
    case 'pyxis':
    case 'none':
      return plainScript(parts);
  }
}

/** Options of sbatch for the container of a whole batch script: https://github.com/NVIDIA/pyxis. `folders`: what it needs of the node. */
export function pyxisOptions(
  { recipe, image, programs }: Pick<SandboxParts, 'recipe' | 'image' | 'programs'>,
  folders: readonly string[],
) {
  const mounts = recipe.mounts.map(
    ({ host, container, readOnly }) => `${programs.get(container) ?? host}:${container}:${readOnly ? 'ro' : 'rw'}`,
  );
  const all = [...folders.map((folder) => `${folder}:${folder}`), ...mounts];
  return [`--container-image=${image}`, '--no-container-mount-home', `--container-mounts=${all.join(',')}`];
}

/** What the first shell inside runs. */
function atGate({ agent, look }: SandboxParts): string {
  return [...(look === undefined ? [] : [answering(agent, look)]), gateScript(agent)].join('\n');
}

/** Variables of every job of the pool. */
function variables({ recipe }: SandboxParts, mounted: boolean): [string, string][] {
  const places = recipe.mounts.flatMap(({ variable, container, host }): [string, string][] =>
    variable === null ? [] : [[variable, mounted ? container : host]],
  );
  return [...places, ...Object.entries(recipe.env)];
}

function plainScript(parts: SandboxParts): string {
  const { folder } = parts;
  const own: [string, string][] = [
    ['HOME', `${folder}/home`],
    ['TMPDIR', `${folder}/tmp`],
    ...variables(parts, parts.sandbox === 'pyxis'),
  ];
  return [
    ...own.map(([name, value]) => `export ${name}=${quoted(value)}`),
    // A group of its own, so that the supervisor can end what it leaves.
    `exec setsid /bin/sh -c ${quoted(atGate(parts))}`,
    '',
  ].join('\n');
}

/**
 * Bubblewrap with what the node has: it may differ from this host. Without /run there is no way to munge, so no job can call Slurm in
 * the name of others.
 */
function bubblewrapScript(parts: SandboxParts): string {
  const { name, folder, recipe } = parts;
  const add = (...words: string[]): string => `set -- "$@" ${words.join(' ')}`;
  const q = quoted;
  const limits = recipe.ulimits.map((one) => `--${one.name}=${one.soft}:${one.hard}`);
  return [
    'set --',
    'for p in /bin /sbin /lib*; do',
    `  if [ -L "$p" ]; then ${add('--symlink', '"$(readlink "$p")"', '"$p"')}`,
    `  elif [ -d "$p" ]; then ${add('--ro-bind', '"$p"', '"$p"')}; fi`,
    'done',
    `for p in /usr /opt /nix /gnu; do ${add('--ro-bind-try', '"$p"', '"$p"')}; done`,
    add('--dir', '/etc', '--dir', '/etc/ssl'),
    `for p in /etc/*; do case \${p#/etc/} in ${etcNames.join('|')}) ${add('--ro-bind-try', '"$p"', '"$p"')} ;; esac; done`,
    `for p in /etc/ssl/certs /etc/ssl/openssl.cnf /etc/ssl/cert.pem; do ${add('--ro-bind-try', '"$p"', '"$p"')}; done`,
    add('--proc', '/proc', '--dev', '/dev', '--perms', '1777', '--tmpfs', '/dev/shm'),
    // Slurm's control group denies those that it did not grant.
    'g=',
    `for p in /dev/nvidia* /dev/kfd /dev/dri; do [ ! -e "$p" ] || { g=1; ${add('--dev-bind', '"$p"', '"$p"')}; }; done`,
    `[ -z "$g" ] || for p in bus class dev devices; do ${add('--ro-bind-try', '"/sys/$p"', '"/sys/$p"')}; done`,
    add('--ro-bind', q(`${folder}/passwd`), '/etc/passwd', '--ro-bind', q(`${folder}/group`), '/etc/group'),
    add('--bind', q(`${folder}/tmp`), '/tmp', '--dir', '/var', '--symlink', '../tmp', '/var/tmp', '--dir', '/run'),
    add('--bind', q(`${folder}/home`), '/home/job', '--bind', q(`${folder}/work`), '/workspace'),
    ...Object.entries(recipe.tmpfs).map(([container]) => add('--perms', '1777', '--tmpfs', q(container))),
    ...recipe.mounts.map(({ host, container, readOnly }) =>
      add(readOnly ? '--ro-bind' : '--bind', q(parts.programs.get(container) ?? host), q(container)),
    ),
    ...[['HOME', '/home/job'] as const, ['TMPDIR', '/tmp'] as const, ['USER', 'job'] as const, ...variables(parts, true)].map(
      ([variable, value]) => add('--setenv', variable, q(value)),
    ),
    'for v in SLURM_CONF MUNGE_SOCKET; do set -- "$@" --unsetenv "$v"; done',
    `exec ${limits.length === 0 ? '' : `prlimit ${limits.join(' ')} -- `}bwrap --unshare-user --uid 1000 --gid 1000 \\`,
    '  --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try --die-with-parent --new-session \\',
    `  --hostname ${q(name.slice(0, 64))} "$@" --chdir /workspace --json-status-fd 5 -- /bin/sh -c ${q(atGate(parts))}`,
    '',
  ].join('\n');
}

/** Variables by which Slurm says what it has granted. */
const granted = ['SLURM_JOB_ID', 'SLURM_JOB_GPUS', 'CUDA_VISIBLE_DEVICES', 'ROCR_VISIBLE_DEVICES', 'GPU_DEVICE_ORDINAL'];

/**
 * Apptainer, or Singularity: nothing of the host but what is named, and processes of its own. It takes variables apart at commas, so the
 * shell inside sets them. Not tried with the real program.
 */
function apptainerScript(parts: SandboxParts): string {
  const { name, folder, recipe, image, programs } = parts;
  const add = (...words: string[]): string => `set -- "$@" ${words.join(' ')}`;
  const bind = (host: string, container: string, how = ''): string => add('--bind', quoted(`${host}:${container}${how}`));
  const own = [['HOME', '/home/job'] as const, ['TMPDIR', '/tmp'] as const, ['USER', 'job'] as const, ...variables(parts, true)];
  const script = [...own.map(([variable, value]) => `export ${variable}=${quoted(value)}`), atGate(parts)].join('\n');
  return [
    'set --',
    bind(`${folder}/work`, '/workspace'),
    bind(`${folder}/tmp`, '/tmp'),
    ...recipe.mounts.map(({ host, container, readOnly }) =>
      bind(programs.get(container) ?? host, container, readOnly ? ':ro' : ''),
    ),
    `[ ! -e /dev/nvidiactl ] || ${add('--nv')}`,
    `[ ! -e /dev/kfd ] || ${add('--rocm')}`,
    'a=apptainer p=APPTAINERENV; command -v apptainer >/dev/null || { a=singularity p=SINGULARITYENV; }',
    // A job knows by them which GPUs are its own, where the node's control groups do not hide the others.
    ...granted.map((name) => `[ -z "\${${name}+x}" ] || export "\${p}_${name}=$${name}"`),
    `exec "$a" exec --containall --hostname ${quoted(name.slice(0, 64))} --home ${quoted(`${folder}/home:/home/job`)} \\`,
    `  --pwd /workspace "$@" ${quoted(image)} /bin/sh -c ${quoted(script)}`,
    '',
  ].join('\n');
}

/** What Podman calls the container of an agent. */
export function containerName(agent: AgentId): string {
  return `oj-${agent}`;
}

/** By this label the site's Epilog finds the containers of a job (docs/runtimes/slurm.md). */
const jobLabel = 'onejob.slurm';

/**
 * Podman without root: root inside is the user on the node. With crun the container stays in the control group of its batch job; where
 * it does not, it outlives that. A batch job has no systemd that Podman could ask for a control group.
 */
function podmanScript(parts: SandboxParts): string {
  const { agent, name, folder, recipe, image, programs } = parts;
  const add = (...words: string[]): string => `set -- "$@" ${words.join(' ')}`;
  const mount = (host: string, container: string, how = ''): string => add('-v', quoted(`${host}:${container}${how}`));
  const own = [['HOME', '/home/job'] as const, ['TMPDIR', '/tmp'] as const, ...variables(parts, true)];
  return [
    'set --',
    `case $(podman info -f '{{.Host.OCIRuntime.Name}}') in *crun*) ${add('--cgroups=disabled')} ;; esac`,
    mount(`${folder}/work`, '/workspace'),
    mount(`${folder}/home`, '/home/job'),
    mount(`${folder}/tmp`, '/tmp'),
    ...recipe.mounts.map(({ host, container, readOnly }) =>
      mount(programs.get(container) ?? host, container, readOnly ? ':ro' : ''),
    ),
    ...Object.keys(recipe.tmpfs).map((container) => add('--tmpfs', quoted(container))),
    ...recipe.ulimits.map((one) => add('--ulimit', `${one.name}=${one.soft}:${one.hard}`)),
    ...own.map(([variable, value]) => add('-e', quoted(`${variable}=${value}`))),
    // Podman gets the granted ones by name: without a control group of Slurm's, it would give it others, too.
    `[ ! -e /dev/nvidiactl ] || for g in $(echo "\${SLURM_JOB_GPUS:-}" | tr , ' '); do ${add('--device', '"nvidia.com/gpu=$g"')}; done`,
    `exec podman --cgroup-manager=cgroupfs run --rm -i --init --name ${containerName(agent)} --label "${jobLabel}=$SLURM_JOB_ID" \\`,
    `  --hostname ${quoted(name.slice(0, 64))} --network host --security-opt label=disable --log-driver none -e 'SLURM*' \\`,
    `  -w /workspace --entrypoint /bin/sh "$@" ${quoted(image)} -c ${quoted(gateScript(agent))}`,
    '',
  ].join('\n');
}
