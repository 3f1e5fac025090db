/** Pools with `containers` for tests of CI services: a private Engine whose sandboxes reach a server of this host, and a first image in each engine. */
import { chmodSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { privateEngine } from './dockerd.ts';
import { clientImage, loadEngineBase } from './engine-base.ts';
import { ensureImages } from './images.ts';
import { type Home, onejob } from './onejob.ts';
import { wayOutOf } from './veth.ts';

/** The image that each engine has before its job: the files of the sandbox itself, since it reaches no registry. */
export const boxImage = 'box:1';

export interface PoolEngine extends AsyncDisposable {
  /** Of this host, as sandboxes reach it. */
  readonly address: string;
  /** A onejob beside that Engine, in its network, with the image of its agents' engines. */
  home(config: string, env?: Readonly<Record<string, string>>): Promise<Home>;
}

export async function engineForPools(): Promise<PoolEngine> {
  const engine = await privateEngine();
  try {
    await ensureImages(engine.socket);
    await loadEngineBase(engine.api);
    return {
      address: wayOutOf(engine),
      async home(config, env = {}) {
        const through = ['nsenter', `--net=/proc/${engine.pid}/ns/net`];
        const home = await onejob({ engine: engine.socket, config, env: { DOCKER_HOST: engine.url, ...env }, through });
        const { code, stdout, stderr } = await home.cli(['image', 'build', 'engine']).ended;
        if (code !== 0) throw new Error(`no image for engines: ${stdout}\n${stderr}`);
        return home;
      },
      [Symbol.asyncDispose]: () => engine[Symbol.asyncDispose](),
    };
  } catch (error) {
    await engine[Symbol.asyncDispose]();
    throw error;
  }
}

/** Words of a pool: its sandboxes have the docker command, and a real program where `starter` looks for it. */
export const poolWith = (program: string): string =>
  `containers: true, image: "${clientImage}", network: default, stop_grace: 1s, volumes: ["${program}:/real/${basename(program)}"]`;

/**
 * Writes a program that stands for a real one: in a sandbox it makes the first image of the engine, and then becomes the real one, as
 * `poolWith` mounts it. On this host, which asks it for its version, it is the real one at once. Its path. `more`: shell that makes others.
 */
export function starter(dir: string, program: string, { folders = 'bin etc tmp', more = ':' } = {}): string {
  const path = join(dir, basename(program));
  const script = `#!/bin/sh
[ -x /real/${basename(program)} ] || exec ${program} "$@"
docker image inspect ${boxImage} >/dev/null 2>&1 || {
  tar -C / -c ${folders} | docker import -c 'CMD ["sh"]' - ${boxImage} >&2 && ${more}
} || exit 1
exec /real/${basename(program)} "$@"
`;
  writeFileSync(path, script);
  chmodSync(path, 0o755);
  return path;
}
