/**
 * The shell programs of an agent on its node. They contain the gate only: no script of a job and no secret, which Slurm would keep
 * and show.
 *
 * Slurm runs `run.sh`. That starts the supervisor of the process runtime (`process/supervisor.ts`), which keeps output and exit code
 * in the agent's folder, so neither Slurm's memory nor the manager is needed for them.
 */
import { quoted } from '../../base/quoted.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { gateScript } from '../gate.ts';
import { supervisorScript } from '../process/supervisor.ts';

/** Exit code of a batch script that did not begin, because another start of it had. */
export const exitAgain = 95;
/** Exit code of a batch script that did not begin, because what was granted is not fit for a job. */
export const exitUnfit = 93;
/** Exit code of a batch script that could not use the agent's folder on its node. */
const exitFolder = 94;

/** Bytes kept of each stream until they are read. */
const outputLimit = 64 * 2 ** 20;

export interface ScriptParts {
  readonly agent: string;
  /** The agent's name, and so its host name. */
  readonly name: string;
  /** Its folder, as this host and the nodes see it. */
  readonly folder: string;
  /** Where it tells that it begins and ends. */
  readonly marks: string;
  readonly recipe: Recipe;
  readonly modules: readonly string[];
  readonly sandbox: 'bubblewrap' | 'none';
  /** Programs that the node has or gets, by the path of the sandbox: their path on the node. */
  readonly programs: ReadonlyMap<string, string>;
}

/** The signal by which onejob tells a batch script that its job is to end. From Slurm, which ends the whole job then, comes TERM. */
export const askedBy = 'USR1';

/** The files of an agent's folder, by name. */
export function scriptsOf(parts: ScriptParts): Readonly<Record<string, string>> {
  const { agent, folder, marks, recipe, sandbox } = parts;
  const isGiven = (limit: string): boolean => recipe.ulimits.some(({ name }) => name === limit);
  const supervise = supervisorScript({
    command: ['/bin/sh', `${folder}/inside.sh`],
    network: null,
    cwd: sandbox === 'bubblewrap' ? null : `${folder}/work`,
    cores: isGiven('core'),
    open: sandbox === 'bubblewrap' ? ['5>status'] : [],
    uid: null,
    exitFile: `${marks}/${agent}.exit`,
    outputLimit,
    ownGroup: null,
    cgroups: [],
    killFile: null,
    beforeCode: [...endedCheck, ...oomCheck],
    oomScoreAdj: recipe.oomScoreAdj,
  });
  return {
    'run.sh': runScript(parts),
    'supervise.sh': supervise,
    'inside.sh': sandbox === 'bubblewrap' ? bubblewrapScript(parts) : plainScript(parts),
  };
}

/** What Slurm gets: it keeps the text, and shows it to its administrators. */
export function batchScript(folder: string): string {
  return `#!/bin/sh\nexec /bin/sh ${quoted(`${folder}/run.sh`)}\n`;
}

/**
 * Hands the frame on its standard input to the gate, unless that has taken one: nobody would read it. The markers are at the beginning of
 * the log, whose first file goes when more has come.
 */
export function releaseScript(folder: string, agent: string): string {
  const taken = `[ ! -e log/stdout ] || head -c 4096 log/stdout | grep -q ${quoted(`onejob released ${agent}`)}`;
  return `cd ${quoted(folder)} || exit 1; if ${taken}; then exit 0; fi; exec cat >stdin`;
}

/** Ends the first process of an agent, and its group, from a step beside it. */
export function killScript(folder: string): string {
  return `IFS= read -r p <${quoted(`${folder}/job`)} && p=${'$'}{p%% *} && kill -KILL "$p" "-$p" 2>/dev/null; :`;
}

function runScript({ agent, folder, marks, modules, recipe, programs }: ScriptParts): string {
  const gpus = recipe.wants?.gpus ?? 0;
  const where = quoted(`${marks}/${agent}.where`);
  return [
    'umask 077',
    `cd ${quoted(folder)} || exit ${exitFolder}`,
    // A controller that was killed starts a job anew although it was told not to requeue it (seen with 22.05).
    `( set -C; : >started ) 2>/dev/null || { : >again; exit ${exitAgain}; }`,
    ...(gpus === 0 ? [] : gpuCheck(gpus)),
    ...(modules.length === 0
      ? []
      : ['[ ! -r /etc/profile ] || . /etc/profile', ...modules.map((one) => `module load ${quoted(one)} || exit`)]),
    ...[...programs.values()].map(arrived),
    `printf '%s\\n%s\\n%s\\n' "$SLURM_JOB_ID" "\${SLURMD_NODENAME:-$(hostname)}" "\${SLURM_JOB_GPUS:-}" >${where}.new && mv ${where}.new ${where} || exit ${exitFolder}`,
    'exec </dev/null',
    // Only this script gets the signal. Bubblewrap passes none on, so the first process inside gets it.
    'term() {',
    '  IFS= read -r p <job || return; p=${p%% *} r=',
    `  [ ! -s status ] || r=$(sed -n 's/.*"child-pid": \\([0-9]*\\).*/\\1/p' status)`,
    '  [ -z "$r" ] || read -r p _ <"/proc/$r/task/$r/children"',
    '  kill -TERM "$p"',
    '}',
    `trap term ${askedBy}`,
    "trap ': >ending; term' TERM",
    '/bin/sh ./supervise.sh &',
    's=$!',
    // A signal ends the wait, not the supervisor.
    'while kill -0 "$s" 2>/dev/null; do wait "$s"; done',
    'exit 0',
    '',
  ].join('\n');
}

/** Exit code of a batch script that did not begin, because its program did not come. */
const exitProgram = 92;
/** s for a program to come. */
const comesWithin = 600;

/** Waits for a program. */
function arrived(path: string): string {
  return `n=0; until [ -x ${quoted(path)} ]; do n=$((n + 1)); [ "$n" -lt ${comesWithin * 10} ] || { echo ${quoted(`${path} did not come within ${comesWithin} s`)}; exit ${exitProgram}; }; sleep 0.1; done`;
}

/**
 * What was granted is there, answers, and nothing runs on it. Where the control group of a job does not hide other GPUs, NVIDIA's tool
 * shows more than were granted, and says nothing of these.
 */
function gpuCheck(gpus: number): string[] {
  const unfit = (words: string): string =>
    `{ printf '%s\\n%s\\n' "\${SLURMD_NODENAME:-$(hostname)}" "${words}" >unfit; exit ${exitUnfit}; }`;
  return [
    'IFS=,; set -- ${SLURM_JOB_GPUS:-}; n=$#; unset IFS',
    `[ "$n" = ${gpus} ] || ${unfit(`it was asked for ${gpus} GPUs, and Slurm granted $n`)}`,
    'if command -v nvidia-smi >/dev/null; then',
    `  l=$(nvidia-smi -L 2>&1) || ${unfit('nvidia-smi fails: $l')}`,
    `  if [ "$(printf '%s\\n' "$l" | grep -c '^GPU ')" = ${gpus} ]; then`,
    '    a=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | tr "\\n" " ")',
    `    case $a in *[0-9]*) ${unfit('a GPU is in use by process $a')} ;; esac`,
    '  fi',
    'fi',
  ];
}

/**
 * A job that TERM of Slurm ended leaves no exit code: Slurm says why it did that. Slurm may send it to all processes of the job, one by one,
 * and then also ends this script.
 */
const endedCheck = ['  [ "$c" != 143 ] || { sleep 1; [ ! -e ending ] || exit; }'];

/**
 * Adds `oom` to the exit code of a job that KILL ended after its control group ran out of memory. Slurm says so only once the batch job is
 * over, which is later.
 */
const oomCheck = [
  '  if [ "$c" = 137 ]; then',
  '    while IFS=: read -r n k p; do',
  '      case $n:$k: in',
  // Where the nearest group with a limit may be above that of the job.
  '        0::) f=memory.events; until [ -z "$p" ] || [ -e "/sys/fs/cgroup$p/$f" ]; do p=${p%/*}; done; f=/sys/fs/cgroup$p/$f ;;',
  '        *:memory:) f=/sys/fs/cgroup/memory$p/memory.oom_control ;;',
  '        *) continue ;;',
  '      esac',
  `      grep -q '^oom_kill [1-9]' "$f" 2>/dev/null && c='137 oom'`,
  '    done </proc/self/cgroup',
  '  fi',
];

/** Variables of every job of the pool. */
function variables({ recipe }: ScriptParts, mounted: boolean): [string, string][] {
  const places = recipe.mounts.flatMap(({ variable, container, host }): [string, string][] =>
    variable === null ? [] : [[variable, mounted ? container : host]],
  );
  return [...places, ...Object.entries(recipe.env)];
}

function plainScript(parts: ScriptParts): string {
  const { agent, folder } = parts;
  const own: [string, string][] = [['HOME', `${folder}/home`], ['TMPDIR', `${folder}/tmp`], ...variables(parts, false)];
  return [
    ...own.map(([name, value]) => `export ${name}=${quoted(value)}`),
    // A group of its own, so that the supervisor can end what it leaves.
    `exec setsid /bin/sh -c ${quoted(gateScript(agent))}`,
    '',
  ].join('\n');
}

/** Names of /etc that programs need to find libraries, names and certificates, as in `process/bubblewrap.ts`. */
const etc =
  'alternatives|bash_completion.d|ca-certificates|ca-certificates.conf|crypto-policies|debian_version|fonts|gai.conf|host.conf|hosts|java*|ld.so.*|localtime|locale.alias|locale.conf|magic|magic.mime|mime.types|networks|nsswitch.conf|os-release|perl|pki|protocols|python*|redhat-release|resolv.conf|services|terminfo|timezone';

/**
 * Bubblewrap with what the node has: it may differ from this host. Without /run there is no way to munge, so no job can call Slurm in
 * the name of others.
 */
function bubblewrapScript(parts: ScriptParts): string {
  const { agent, name, folder, recipe } = parts;
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
    `for p in /etc/*; do case \${p#/etc/} in ${etc}) ${add('--ro-bind-try', '"$p"', '"$p"')} ;; esac; done`,
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
    `  --hostname ${q(name.slice(0, 64))} "$@" --chdir /workspace --json-status-fd 5 -- /bin/sh -c ${q(gateScript(agent))}`,
    '',
  ].join('\n');
}
