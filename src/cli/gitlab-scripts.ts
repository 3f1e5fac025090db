/**
 * What runs in the sandbox of a GitLab job: constant programs. Scripts of the job, which contain its secrets, come by standard input
 * and are in no argument, environment or file.
 *
 * A waiting program is the job of the own queue. It ends when it is told to, or when no driver has called for a while: so a sandbox
 * ends also after gitlab-runner and its drivers were killed.
 */
import { attendedCommand } from './job-title.ts';

/** Where the waiting program writes its process id, in the workspace. The job may change it, and then signals only itself. */
const pidFile = '.onejob-gitlab';
/** Next to it: the exit code of the script that failed. */
const codeFile = '.onejob-gitlab-code';

/** s without a call of a driver after which a sandbox ends by itself. gitlab-runner makes its calls within milliseconds. */
export const idleLimit = 120;

/** Exit code of the waiting program if the image has no bash. */
export const noBash = 127;

/**
 * The job of the own queue. Its program is in a variable, so that lists of jobs stay short. A script that failed (USR2) makes it end
 * with the same code, so that the job is shown as it was, and its files can be held.
 */
export function waiting(idle: number = idleLimit) {
  const script = `command -v bash >/dev/null 2>&1 || exit ${noBash}
code=0 idle=0
trap 'idle=0' USR1
trap 'code=$(cat ${codeFile} 2>/dev/null)' USR2
trap 'exit "\${code:-1}"' TERM
echo "$$" >${pidFile}
while [ "$idle" -lt ${idle} ]; do
  sleep 1 &
  wait "$!"
  idle=$((idle + 1))
done
echo 'onejob: gitlab-runner has not called for ${idle} s, so this sandbox ends' >&2
exit 1`;
  return { command: [...attendedCommand], env: { ONEJOB_GITLAB: script } };
}

/** Ends the waiting program, and so the sandbox. */
export const ending: readonly string[] = ['sh', '-c', `kill -TERM "$(cat ${pidFile})"`];

/** Ends with 0 once scripts can be run, and otherwise with its sandbox. */
export const ready: readonly string[] = ['sh', '-c', `until [ -s ${pidFile} ]; do sleep 0.1 || sleep 1; done`];

/**
 * Runs a script: its length in bytes on a line of standard input, then the script. The end of the input asks it to end: TERM to its
 * whole process group, and KILL after `grace` seconds. Exits as the script. `counts`: whether its failure is the job's.
 */
export function running(counts: boolean, grace = 10): string[] {
  const script = `exec 3<&0 </dev/null
waiter=$(cat ${pidFile})
IFS= read -r size <&3
script=$(head -c "$size" <&3)
set -m
bash < <(printf '%s\\n' "$script") 3<&- &
group=$!
set +m
unset script
{ while kill -USR1 "$waiter"; do sleep 20; done; } </dev/null >/dev/null 2>&1 3<&- &
beat=$!
{ cat <&3; kill -TERM -- "-$group"; sleep "$2"; kill -KILL -- "-$group"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
{ wait "$group"; } 2>/dev/null
code=$?
kill "$beat" "$watch" 2>/dev/null
if [ "$code" -gt 128 ] && grep -Eqs '^oom_kill [1-9]' /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; then
  echo 'onejob: a process of this job was killed because the job used more memory than its agent is allowed to' >&2
fi
[ "$code" = 0 ] || [ "$1" = no ] || { echo "$code" >${codeFile}; kill -USR2 "$waiter"; } 2>/dev/null
exit "$code"`;
  return ['bash', '-c', script, 'onejob-gitlab', counts ? 'yes' : 'no', String(grace)];
}
