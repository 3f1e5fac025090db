/**
 * The supervisor: a small shell program, one per agent, that holds the sandbox's pipes and records how it ended. It needs neither
 * Node nor the manager, so a job continues, is logged and keeps its exit code without a manager.
 *
 * Guarantees (`supervisor.test.ts`, on dash and busybox): a job never blocks on output, whatever happens to its log. Standard
 * output and standard error stay apart. Output is in the log at once. Processes that the job leaves do not delay its exit code.
 */
import { quoted } from '../../base/quoted.ts';

export interface SupervisorOptions {
  readonly command: readonly string[];
  /** Runs the command in a network of its own; null: in that of the host. Set by `networkScript`. */
  readonly network: ((inside: (enter: string) => readonly string[], failed: readonly string[]) => readonly string[]) | null;
  /** Working directory of the command; null for the agent's folder. */
  readonly cwd: string | null;
  /** Whether it may write core dumps. The kernel may put them on the host's own disk, with the memory of the job. */
  readonly cores: boolean;
  /** Descriptors that it has in addition to the first three, in shell syntax such as `4<args`. */
  readonly open: readonly string[];
  /** User who may open the output again by name, as in `>/dev/stderr`; null if that is the manager's. */
  readonly uid: number | null;
  /** File in which the exit code is overwritten in place. */
  readonly exitFile: string;
  /** Lines that run before the exit code is recorded, and may add words to it: it is in `$c`. */
  readonly beforeCode: readonly string[];
  /** Bytes kept of standard output and of standard error until they are read: the newest, in files of a quarter each. */
  readonly outputLimit: number;
  /** Group of the supervisor itself; null to stay in the manager's. */
  readonly ownGroup: string | null;
  readonly cgroups: readonly string[];
  /** Ends what the job left running when 1 is written to it; null to end its process group. */
  readonly killFile: string | null;
  readonly oomScoreAdj: number;
}

/** The line in a log where output could not be written. */
const lostLine = 'onejob: output is missing here: onejob failed to write it';
/** Maximum bytes of one read of the job's output. */
const readSize = 64 * 1024;
/** Maximum number of files per stream. */
export const filesKept = 4;

/**
 * The supervisor's program. It runs in the agent's folder, as the manager's user.
 *
 * `dd` writes each read at once. Every few hundred reads the size of its file is checked. Beyond its share output continues in a
 * new file, whose name is the number of bytes before it, and the oldest file is deleted. So the end is always kept, and a reader
 * knows where files are missing. The pipe buffers output while one `dd` follows another.
 */
export function supervisorScript(options: SupervisorOptions): string {
  const share = Math.max(1, Math.ceil(options.outputLimit / filesKept));
  const reads = Math.min(256, Math.max(1, Math.floor(share / readSize)));
  const leftovers = options.killFile === null ? 'read -r p s <job && kill -KILL "-$p"' : `echo 1 >${quoted(options.killFile)}`;
  const record = [
    `  { ${leftovers}; } 2>/dev/null`,
    ...options.beforeCode,
    `  printf '%-5s\\n' "$c" 1<>${quoted(options.exitFile)}`,
  ];
  const job = (enter: string): readonly string[] => [
    '  (',
    `    IFS= read -r s </proc/self/stat; printf '%s\\n' "$s" >job`,
    ...options.cgroups.map((path) => `    echo 0 >${quoted(`${path}/cgroup.procs`)} || exit 1`),
    `    { echo ${options.oomScoreAdj} >/proc/self/oom_score_adj; } 2>/dev/null`,
    // Who may write to a pipe may not always open it: that takes its owner.
    ...(options.uid === null ? [] : [`    chown ${options.uid} /proc/self/fd/1 /proc/self/fd/2`]),
    `    umask 022; exec 3>&- 8>&- ${options.open.join(' ')}`,
    ...(options.cores ? [] : ['    ulimit -c 0']),
    ...(options.cwd === null ? [] : [`    cd ${quoted(options.cwd)} || exit 1`]),
    `    exec ${enter} ${options.command.map(quoted).join(' ')}`,
    // Read-write: the gate must outlive every manager that opens the other end.
    '  ) <>stdin',
    '  c=$?',
    ...record,
  ];
  const failed = [`  printf 'onejob: the sandbox has no network: %s\\n' "$r" >&2; c=127`, ...record];
  return [
    'umask 077',
    // The identity comes first: without it a new manager would not know that this runs.
    'IFS= read -r b </proc/sys/kernel/random/boot_id; IFS= read -r s </proc/self/stat',
    `printf '%s\\n%s\\n' "$b" "$s" >proc || exit`,
    ...(options.ownGroup === null ? [] : [`{ echo 0 >${quoted(`${options.ownGroup}/cgroup.procs`)}; } 2>/dev/null`]),
    'mkfifo -m 600 stdin || exit',
    'keep() {',
    '  n=$1 f=$1 o=0 l=; shift',
    '  while :; do',
    `    [ -z "$l" ] || { printf '\\n%s\\n' ${quoted(lostLine)} >>"log/$f" && l=; } 2>/dev/null`,
    `    r=$(exec 2>&1; LC_ALL=C dd bs=${readSize} count=${reads} >>"log/$f")`,
    '    case $?$r in',
    '      00+0*) break ;;',
    '      0*) ;;',
    // On a full disk a read is lost, and the job continues. If no file can be opened, all output is lost.
    '      *records*) l=1 ;;',
    '      *) cat >/dev/null; break ;;',
    '    esac',
    '    s=$(wc -c <"log/$f") || continue',
    `    [ "$s" -ge ${share} ] || continue`,
    '    set -- "$@" "$f"; o=$((o + s)); f=$n.$o',
    `    [ $# -lt ${filesKept} ] || { rm -f "log/$1"; shift; }`,
    '  done',
    '  : >"log/$n.end"',
    '}',
    '{ {',
    ...(options.network === null ? job('') : options.network(job, failed)),
    '} 2>&1 >&3 | keep stderr 3>&-; } 3>&1 | keep stdout',
    '',
  ].join('\n');
}
