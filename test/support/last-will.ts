/**
 * How a whole cluster of a test ends for certain: all its processes are in one cgroup. What is left of it goes with it, also when the
 * test died first.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, rmdirSync } from 'node:fs';
import { join } from 'node:path';

interface Estate {
  /** Folder that is removed last. */
  readonly home: string;
  /** Cgroups with all below them; the first is of version 2, and has all processes in it. */
  readonly groups: readonly string[];
  /** Network interfaces. */
  readonly links?: readonly string[];
}

/**
 * Ends the first of `groups` with all that is in it, removes them, `links` and `home`; when told to, or when this process has died. A
 * cluster's own programs leave what they cannot name: jobs whose node is dead, and their cgroups.
 */
export function lastWill({ home, groups, links = [] }: Estate): { execute: () => Promise<void> } {
  const script = `
    home=$1; links=$2; shift 2
    cat
    find "$@" -name freezer.state 2>/dev/null | while read -r file; do echo THAWED >"$file"; done
    for link in $links; do ip link delete "$link" 2>/dev/null; done
    processes=$(find "$1" -name cgroup.procs -exec cat {} + 2>/dev/null)
    echo 1 >"$1/cgroup.kill"
    left() {
      ls -d "$@" 2>/dev/null
      # One that gives back its mounts and networks is in no cgroup any more; its first thread may be gone before the others.
      for process in $processes; do
        case $(cat /proc/$process/task/*/stat 2>/dev/null) in *') '[!ZX]' '*) echo "process $process" ;; esac
      done
    }
    for try in $(seq 1000); do
      find "$@" -depth -type d -exec rmdir {} + 2>/dev/null
      [ -z "$(left "$@")" ] && exec rm -rf "$home"
      sleep 0.02
    done
    echo "still there: $(left "$@")" >&2; exit 1`;
  const words = ['-c', script, 'sh', home, links.join(' '), ...groups];
  const executor = spawn('sh', words, { stdio: ['pipe', 'ignore', 'pipe'], detached: true });
  let said = '';
  executor.stderr.on('data', (text) => {
    said += text;
  });
  const ended = once(executor, 'close');
  return {
    async execute() {
      executor.stdin.end();
      await ended;
      if (executor.exitCode !== 0) throw new Error(`the cluster in ${home} did not end: ${said}`);
    },
  };
}

/** Why no cgroup can be made that ends with all that is in it, as a sentence's end; null when it can. */
export function lacksGroups(): string | null {
  const [root] = mounts('cgroup2');
  if (root === undefined) return 'no cgroups of version 2';
  const probe = join(root, `onejob-probe-${process.pid}`);
  try {
    mkdirSync(probe);
  } catch {
    return `no cgroup can be made in ${root}`;
  }
  const canEnd = existsSync(join(probe, 'cgroup.kill'));
  rmdirSync(probe);
  return canEnd ? null : 'Linux before 5.14 cannot end a cgroup';
}

/** Of cgroups of version 1: where each controller is. */
export function hierarchies(): string[] {
  return mounts('cgroup').filter((path) => !path.endsWith('/systemd'));
}

/** Where file systems of the type are mounted. */
export function mounts(type: string): string[] {
  const lines = readFileSync('/proc/self/mounts', 'utf8').split('\n');
  return lines.map((line) => line.split(' ')).flatMap(([, path, kind]) => (path !== undefined && kind === type ? [path] : []));
}
