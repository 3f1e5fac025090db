/**
 * Stands for Apptainer on nodes of a test: a program of the options that onejob uses, over bubblewrap. Like the real one with
 * `--containall`, it has a root file system of its own, which is read-only, an own /proc, /dev and /tmp, and no variables but those that
 * begin with `APPTAINERENV_`. An image is a folder here.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Entry, tarOf } from './azure-images.ts';

const program = `#!/bin/sh
fail() { echo "FATAL: $1" >&2; exit 255; }
[ "$1" = exec ] || fail "unknown command: $1"
shift
binds= home= pwd=/ name=apptainer
nl='
'
while :; do
  case $1 in
    --containall) shift ;;
    --nv | --rocm) shift ;;
    --bind) binds="$binds$2$nl"; shift 2 ;;
    --home) home=$2; shift 2 ;;
    --pwd) pwd=$2; shift 2 ;;
    --hostname) name=$2; shift 2 ;;
    -*) fail "unknown flag: $1" ;;
    *) break ;;
  esac
done
image=$1; shift
[ -d "$image" ] || fail "could not open image $image: no such file or directory"
add() { host=\${1%%:*}; rest=\${1#*:}; inside=\${rest%%:*}; how=--bind; case $rest in *:ro) how=--ro-bind ;; esac; }
i=0
for word in "$@"; do eval "w$i=\\$word"; i=$((i + 1)); done
set -- --ro-bind "$image" / --proc /proc --dev /dev --tmpfs /tmp
IFS=$nl
for one in $home $binds; do add "$one"; set -- "$@" "$how" "$host" "$inside"; done
unset IFS
set -- "$@" --clearenv --setenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv HOME "\${home#*:}"
for v in $(env | sed -n 's/^APPTAINERENV_\\([A-Za-z0-9_]*\\)=.*/\\1/p'); do eval "set -- \\"\\$@\\" --setenv $v \\"\\$APPTAINERENV_$v\\""; done
set -- "$@" --unshare-ipc --unshare-pid --unshare-uts --die-with-parent --hostname "$name" --chdir "$pwd" --
n=0
while [ "$n" -lt "$i" ]; do eval "set -- \\"\\$@\\" \\"\\$w$n\\""; n=$((n + 1)); done
exec bwrap "$@"
`;

/** Writes it into a folder, which is to be on the PATH of who submits batch jobs. */
export function writeApptainer(folder: string): void {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'apptainer'), program, { mode: 0o755 });
}

/** Makes an image of these files in a new folder `path`. */
export async function writeApptainerImage(path: string, entries: readonly Entry[]): Promise<void> {
  mkdirSync(path);
  // Where something is mounted: the real one needs no such folders.
  const mounted: Entry[] = ['workspace', 'home/job', 'sys', 'run'].map((name) => ({ path: name, body: null, mode: 0o755 }));
  execFileSync('tar', ['-x', '-f', '-', '-C', path], { input: await tarOf([...entries, ...mounted]) });
}
