/**
 * What hands an agent's cards on inside of the container of its engine: a CDI specification of these alone, for Podman, which makes the
 * sandbox, and for the Docker Engine of the job (`--device nvidia.com/gpu=…`), and the program that this calls for `--gpus`.
 *
 * All of it is text that the container cannot change. What it names is the most that can be opened there, whatever a job writes itself.
 */
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Cards } from './engine-cards.ts';

/** In the container: these texts, and below `driver` the files of the driver under their own paths. */
const folders = { texts: '/var/lib/cards', driver: '/var/lib/driver' } as const;

/** What a Docker Engine of a job with cards is configured with. Its own /etc has links, which CDI does not follow. */
export const cardsConfig = `${folders.texts}/daemon.json`;

/**
 * Runtimes call it before a container starts, with the container's state on standard input. `prestart` is Docker's word for `--gpus`: it
 * binds what belongs to the cards that were asked for, which are `all`, UUIDs, or places among the cards of the agent. `ldcache` is ours:
 * the linker of the container finds the driver, also where its image keeps libraries in other folders than this host.
 */
const hook = (libraries: readonly string[]) => String.raw`#!/bin/sh
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
state=$(tr -d '\n')
of() { printf %s "$state" | sed 's/.*"'"$1"'" *: *"\{0,1\}\([^",}]*\).*/\1/'; }
config=$(of bundle)/config.json
root=$(tr -d '\n' <"$config" | grep -o '"root" *: *{[^}]*' | head -n 1 | sed 's/.*"path" *: *"//; s/".*//')
if [ "$1" = ldcache ]; then
  ldconfig -r "$root" ${libraries.join(' ')} 2>/dev/null || :
  exit 0
fi
asked=$(grep -o '"NVIDIA_VISIBLE_DEVICES=[^"]*"' "$config" | tail -n 1 | sed 's/^[^=]*=//; s/"$//' | tr , ' ')
cd ${folders.texts}/names
for name in $asked; do
  [ "$name" != void ] && [ "$name" != none ] || exit 0
  [ -f "$name" ] || { echo "this job has no card $name, but these: $(echo *)" >&2; exit 1; }
done
cat $asked | sort -u | nsenter -t "$(of pid)" -m sh -euc 'root=$1; shift
while read -r from to; do
  mkdir -p "$(dirname "$root$to")"
  [ -e "$root$to" ] || : >"$root$to"
  mount --bind "$from" "$root$to"
done
ldconfig -r "$root" "$@" 2>/dev/null || :' - "$root" ${libraries.join(' ')}
`;

/** Content by name, below `texts`. */
export function cardTexts({ nodes, own, files, links, env }: Cards): ReadonlyMap<string, string> {
  const ofOne = new Set(own.flatMap(([, paths]) => paths));
  const common = nodes.map(({ to }) => to).filter((path) => !ofOne.has(path));
  const binds = [...files.map(({ to }) => ({ from: to, to })), ...links].map(({ from, to }) => ({
    from: folders.driver + from,
    to,
  }));
  const names: (readonly [string, readonly string[]])[] = own.flatMap(([uuid, paths], at) => [
    [uuid, paths],
    [String(at), paths],
  ]);
  names.push(['all', [...ofOne]]);
  const deviceNodes = (paths: readonly string[]) => paths.map((path) => ({ path }));
  const libraries = [...new Set(files.flatMap(({ to }) => (to.includes('.so.') ? dirname(to) : [])))];
  const program = `${folders.texts}/hook`;
  const spec = {
    cdiVersion: '0.5.0',
    kind: 'nvidia.com/gpu',
    devices: names.map(([name, paths]) => ({ name, containerEdits: { deviceNodes: deviceNodes(paths) } })),
    containerEdits: {
      env,
      deviceNodes: deviceNodes(common),
      mounts: binds.map(({ from, to }) => ({ hostPath: from, containerPath: to, options: ['ro', 'nosuid', 'nodev', 'bind'] })),
      hooks: [{ hookName: 'createContainer', path: program, args: ['hook', 'ldcache'] }],
    },
  };
  const lines = (paths: readonly string[]) =>
    [...[...common, ...paths].map((path) => ({ from: path, to: path })), ...binds]
      .map(({ from, to }) => `${from} ${to}\n`)
      .join('');
  return new Map([
    ...names.map(([name, paths]) => [`names/${name}`, lines(paths)] as const),
    ['cdi/nvidia.json', JSON.stringify(spec)],
    ['daemon.json', JSON.stringify({ features: { cdi: true }, 'cdi-spec-dirs': [`${folders.texts}/cdi`] })],
    ['hook', hook(libraries)],
  ]);
}

/** Writes these texts into the folder of an agent, for `cardMounts`. */
export async function writeCards(folder: string, cards: Cards): Promise<void> {
  for (const [name, text] of cardTexts(cards)) {
    const path = join(folder, 'cards', name);
    await mkdir(dirname(path), { recursive: true, mode: 0o755 });
    await writeFile(path, text);
    await chmod(path, 0o755);
  }
}

/** Mounts of the container of an engine; none without cards. */
export function cardMounts(folder: string, { own, files }: Cards) {
  const bind = (Source: string, Target: string) => ({ Type: 'bind', Source, Target, ReadOnly: true });
  if (own.length === 0) return [];
  return [
    bind(join(folder, 'cards'), folders.texts),
    bind(join(folder, 'cards/cdi'), '/etc/cdi'),
    bind(join(folder, 'cards/hook'), '/usr/bin/nvidia-container-runtime-hook'),
    ...files.map(({ from, to }) => bind(from, folders.driver + to)),
  ];
}
