/**
 * The supervisor: a small shell program, one per agent, that holds the sandbox's pipes and records how it ended. It needs
 * neither Node nor the manager, so a job goes on, is logged and keeps its exit code while no manager is there.
 *
 * Guarantees (`supervisor.test.ts`, on dash and busybox): a job never blocks on output, whatever is done with its log;
 * standard output and standard error stay apart; what is written is in the log at once; nothing the job leaves running
 * delays its exit code.
 */
export interface SupervisorOptions {
  /** What becomes the sandbox's first process. */
  readonly command: readonly string[];
  /** Working directory of the command; null for the agent's folder. */
  readonly cwd: string | null;
  /** Whether it may write core dumps, which the kernel may put on the host's own disk with what the job had in memory. */
  readonly cores: boolean;
  /** What it finds open beside the first three, as a shell writes it, such as `4<args`. */
  readonly open: readonly string[];
  /** File in which the exit code is written over what stands there. */
  readonly exitFile: string;
  /** Bytes kept of each of standard output and standard error until they are read: the newest, in files of a quarter each. */
  readonly outputLimit: number;
  /** Group that the supervisor itself moves to; null to stay in the manager's. */
  readonly ownGroup: string | null;
  /** Groups that the command joins. */
  readonly cgroups: readonly string[];
  /** Ends what the job left running when 1 is written to it; null to end its process group. */
  readonly killFile: string | null;
  readonly oomScoreAdj: number;
}

/** One word for a POSIX shell. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** The line that stands in a log where output could not be written. */
export const lostLine = 'onejob: output is missing here: onejob failed to write it';
/** Bytes that one read of the job's output takes at most. */
const readSize = 64 * 1024;
/** Files of one stream that there are at most. */
const filesKept = 4;

/**
 * The supervisor's program. It runs in the agent's folder, as the manager's user.
 *
 * `dd` writes each read at once. After some hundred reads its file is looked at: what is over its share goes on in a new one, whose
 * name says how many bytes of the stream come before it, and the oldest is deleted. So the end is always kept, and whoever reads
 * knows where files are missing. The pipe holds what is written while one `dd` follows on another.
 */
export function supervisorScript(options: SupervisorOptions): string {
  const share = Math.max(1, Math.ceil(options.outputLimit / filesKept));
  const reads = Math.min(256, Math.max(1, Math.floor(share / readSize)));
  const leftovers = options.killFile === null ? 'read -r p s <job && kill -KILL "-$p"' : `echo 1 >${quote(options.killFile)}`;
  return [
    'umask 077',
    // Who we are comes first: without it a new manager would not know that this runs.
    'IFS= read -r b </proc/sys/kernel/random/boot_id; IFS= read -r s </proc/self/stat',
    `printf '%s\\n%s\\n' "$b" "$s" >proc || exit`,
    ...(options.ownGroup === null ? [] : [`{ echo 0 >${quote(`${options.ownGroup}/cgroup.procs`)}; } 2>/dev/null`]),
    'mkfifo -m 600 stdin || exit',
    'keep() {',
    '  n=$1 f=$1 o=0 l=; shift',
    '  while :; do',
    `    [ -z "$l" ] || { printf '\\n%s\\n' ${quote(lostLine)} >>"log/$f" && l=; } 2>/dev/null`,
    `    r=$(exec 2>&1; LC_ALL=C dd bs=${readSize} count=${reads} >>"log/$f")`,
    '    case $?$r in',
    '      00+0*) break ;;',
    '      0*) ;;',
    // On a full disk what was read is lost, and the job goes on; where no file can be opened, all that comes is.
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
    '  (',
    `    IFS= read -r s </proc/self/stat; printf '%s\\n' "$s" >job`,
    ...options.cgroups.map((path) => `    echo 0 >${quote(`${path}/cgroup.procs`)} || exit 1`),
    `    { echo ${options.oomScoreAdj} >/proc/self/oom_score_adj; } 2>/dev/null`,
    `    umask 022; exec 3>&- ${options.open.join(' ')}`,
    ...(options.cores ? [] : ['    ulimit -c 0']),
    ...(options.cwd === null ? [] : [`    cd ${quote(options.cwd)} || exit 1`]),
    `    exec ${options.command.map(quote).join(' ')}`,
    // Read-write: the gate must outlive every manager that opens the other end.
    '  ) <>stdin',
    '  c=$?',
    `  { ${leftovers}; } 2>/dev/null`,
    `  printf '%-5s\\n' "$c" 1<>${quote(options.exitFile)}`,
    '} 2>&1 >&3 | keep stderr 3>&-; } 3>&1 | keep stdout',
    '',
  ].join('\n');
}
