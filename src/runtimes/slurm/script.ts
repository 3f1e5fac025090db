/**
 * The shell programs of an agent on its node. They contain the gate only: no script of a job and no secret, which Slurm would keep
 * and show.
 *
 * Slurm runs `run.sh`. That starts the supervisor of the process runtime (`process/supervisor.ts`), which keeps output and exit code
 * in the agent's folder, so neither Slurm's memory nor the manager is needed for them.
 */
import { quoted } from '../../base/quoted.ts';
import { supervisorScript } from '../process/supervisor.ts';
import { keepsApart, type SandboxKind } from './config.ts';
import { containerName, insideScript, type SandboxParts } from './sandboxes.ts';

/** Exit code of a batch script that did not begin, because another start of it had. */
export const exitAgain = 95;
/** Exit code of a batch script that did not begin, because what was granted is not fit for a job. */
export const exitUnfit = 93;
/** Exit code of a batch script that could not use the agent's folder on its node. */
export const exitFolder = 94;
/** Exit code of a batch script that did not begin, because its node lacks what the pool mounts or loads. */
export const exitMissing = 91;

/** Bytes kept of each stream until they are read. */
const outputLimit = 64 * 2 ** 20;

export interface ScriptParts extends SandboxParts {
  /** Where it tells that it begins and ends. */
  readonly marks: string;
  readonly modules: readonly string[];
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
    cwd: keepsApart(sandbox) ? null : `${folder}/work`,
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
    'inside.sh': insideScript(parts),
  };
}

/** What Slurm gets: it keeps the text, and shows it to its administrators. */
export function batchScript(folder: string): string {
  return `#!/bin/sh\nexec /bin/sh ${quoted(`${folder}/run.sh`)}\n`;
}

/** Bytes of the log within which a gate's markers are: before them is what the sandbox answers (`SandboxSpec.look`). */
export const markersWithin = 2 ** 20;

/**
 * Hands the frame on its standard input to the gate, unless that has taken one: nobody would read it. The markers are at the beginning of
 * the log, whose first file goes when more has come.
 */
export function releaseScript(folder: string, agent: string): string {
  const taken = `[ ! -e log/stdout ] || head -c ${markersWithin} log/stdout | grep -q ${quoted(`onejob released ${agent}`)}`;
  return `cd ${quoted(folder)} || exit 1; if ${taken}; then exit 0; fi; exec cat >stdin`;
}

/** Ends the first process of an agent, and its group, from a step next to it. */
export function killScript(folder: string): string {
  return `IFS= read -r p <${quoted(`${folder}/job`)} && p=${'$'}{p%% *} && kill -KILL "$p" "-$p" 2>/dev/null; :`;
}

function runScript(parts: ScriptParts): string {
  const { agent, folder, marks, modules, recipe, programs, sandbox } = parts;
  const gpus = recipe.wants?.gpus ?? 0;
  const where = quoted(`${marks}/${agent}.where`);
  return [
    'umask 077',
    `cd ${quoted(folder)} || exit ${exitFolder}`,
    // A controller that was killed starts a job anew although it was told not to requeue it (seen with 22.05 and 24.11).
    `( set -C; : >started ) 2>/dev/null || { : >again; exit ${exitAgain}; }`,
    ...(gpus === 0 ? [] : gpuCheck(gpus)),
    ...moduleLines(modules),
    ...sandboxCheck(parts),
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
    // What was killed was only its client.
    ...(sandbox === 'podman' ? [`podman rm -f -t 0 ${containerName(agent)} >/dev/null 2>&1`] : []),
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

/** Ends the batch script; its node is avoided for a while. `words`: as in double quotes of a shell. */
function unfit(words: string): string {
  return `{ printf '%s\\n%s\\n' "\${SLURMD_NODENAME:-$(hostname)}" "${words}" >unfit; exit ${exitUnfit}; }`;
}

/** Ends the batch script with words for people, its last ones. A mistake in the config of one pool does not speak against the node. */
function missing(words: string): string {
  return `{ echo ${quoted(words)}; exit ${exitMissing}; }`;
}

/** What `module load` itself says of a missing one takes many lines, and ends with another advice. */
function moduleLines(modules: readonly string[]): string[] {
  if (modules.length === 0) return [];
  const has = 'command -v module >/dev/null';
  return [
    `${has} || [ ! -r /etc/profile ] || . /etc/profile`,
    `${has} || ${missing('its command "module" is missing, which "modules" needs')}`,
    ...modules.map((one) => {
      const words = quoted(`the module ${one} cannot be loaded there: "module load" ended with `);
      return `module load ${quoted(one)} || { echo ${words}$?; exit ${exitMissing}; }`;
    }),
  ];
}

/** What makes a sandbox: a program of the node, and its name for people. */
const makers: Readonly<Record<SandboxKind, readonly [test: string, name: string] | null>> = {
  bubblewrap: ['command -v bwrap', 'bubblewrap'],
  apptainer: ['command -v apptainer || command -v singularity', 'Apptainer'],
  podman: ['command -v podman', 'Podman'],
  pyxis: null,
  none: null,
};

/** A container of Podman may outlive its batch job, while Slurm gives its GPU to the next one. */
const epilogCheck = `e=$(scontrol show config | sed -n 's/^Epilog\\(\\[[0-9]*\\]\\)* *= //p'); grep -qs '^# onejob-epilog 1' $e /dev/null || ${missing('"sandbox: podman" needs the Epilog of docs/runtimes/slurm.md, and Slurm has another one or none there')}`;

/** Podman's last line says why it could not be pulled. */
function imagePull(image: string): string {
  return `podman image exists ${quoted(image)} || podman pull -q ${quoted(image)} >/dev/null || exit ${exitMissing}`;
}

/** A sandbox's own words for what is missing would stay in the log of an agent that nobody reads. */
function sandboxCheck({ recipe, programs, sandbox, image }: ScriptParts): string[] {
  // Slurm has made its container already, in which host paths mean nothing.
  if (sandbox === 'pyxis') return [];
  const maker = makers[sandbox];
  const volumes = recipe.mounts.filter(({ container }) => !programs.has(container)).map(({ host }) => host);
  const paths = sandbox === 'apptainer' && image.startsWith('/') ? [image, ...volumes] : volumes;
  return [
    ...(maker === null
      ? []
      : [`{ ${maker[0]}; } >/dev/null || ${unfit(`${maker[1]} is not installed, which \\"sandbox: ${sandbox}\\" needs`)}`]),
    ...(sandbox === 'podman' ? [epilogCheck, imagePull(image)] : []),
    ...paths.map((path) => `[ -e ${quoted(path)} ] || ${missing(`${path} does not exist there`)}`),
  ];
}

/**
 * What was granted is there, answers, and nothing runs on it. Where the control group of a job does not hide other GPUs, NVIDIA's tool
 * shows more than were granted, and says nothing of these.
 */
function gpuCheck(gpus: number): string[] {
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
