/** Pools with `containers` for tests of CI services: a private Engine whose sandboxes reach a server of this host, and a first image in each engine. */
import { chmodSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { type PrivateEngine, privateEngine } from './dockerd.ts';
import { clientImage, loadEngineBase } from './engine-base.ts';
import { ensureImages } from './images.ts';
import type { Home } from './onejob.ts';
import { wayOutOf } from './veth.ts';

/** The image that each engine has before its job: the files of the sandbox itself, since it reaches no registry. */
export const boxImage = 'box:1';

/** `address`: of this host, as sandboxes reach it. */
export async function engineForPools(): Promise<{ readonly engine: PrivateEngine; readonly address: string }> {
  const engine = await privateEngine();
  await ensureImages(engine.socket);
  await loadEngineBase(engine.api);
  return { engine, address: wayOutOf(engine) };
}

/** Makes the image of the engines of this home's agents. */
export async function buildEngineImage(home: Home): Promise<void> {
  const { code, stdout, stderr } = await home.cli(['image', 'build', 'engine']).ended;
  if (code !== 0) throw new Error(`no image for engines: ${stdout}\n${stderr}`);
}

/** Words of a pool: its sandboxes have the docker command, and a real program where `starter` looks for it. */
export const poolWith = (program: string): string =>
  `containers: true, image: "${clientImage}", network: default, stop_grace: 1s, volumes: ["${program}:/real/${basename(program)}"]`;

/**
 * Writes a program that stands for a real one: in a sandbox it makes the first image of the engine, and then becomes the real one, as
 * `poolWith` mounts it. On this host, which asks it for its version, it is the real one at once. Its path.
 */
export function starter(dir: string, program: string, folders = 'bin etc tmp'): string {
  const path = join(dir, basename(program));
  const script = `#!/bin/sh
[ -x /real/${basename(program)} ] || exec ${program} "$@"
docker image inspect ${boxImage} >/dev/null 2>&1 || tar -C / -c ${folders} | docker import -c 'CMD ["sh"]' - ${boxImage} >&2 || exit 1
exec /real/${basename(program)} "$@"
`;
  writeFileSync(path, script);
  chmodSync(path, 0o755);
  return path;
}
