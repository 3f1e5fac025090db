/** Pools with `containers` for tests: a private Engine whose sandboxes reach a server of this host, and a first image in each engine. */
import { chmodSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, expect } from 'vitest';
import { type PrivateEngine, type PrivateEngineOptions, privateEngine } from './dockerd.ts';
import { build, clientImage, loadEngineBase } from './engine-base.ts';
import { ensureImages } from './images.ts';
import { type Daemon, type Home, onejob } from './onejob.ts';
import { wayOutOf } from './veth.ts';

/** The first image in the engine of a job: the files of the sandbox itself, since it reaches no registry. */
export const boxImage = 'box:1';

/** Shell that makes it, of the shell and its like. */
export const makeImage = `tar -C / -c bin etc tmp | docker import - ${boxImage} >/dev/null`;

/** Shell that makes it, of all programs of the sandbox. */
export const makeWholeImage = `tar -C / -c $(cd /; ls -d bin etc lib lib64 tmp usr) | docker import - ${boxImage} >/dev/null`;

export interface PoolEngine extends PrivateEngine {
  /** Of this host, as sandboxes reach it. */
  readonly address: string;
  /** A onejob beside that Engine, in its network. */
  bare(config: string, env?: Readonly<Record<string, string>>): Promise<Home>;
  /** The same with the image of its agents' engines. */
  home(config: string, env?: Readonly<Record<string, string>>): Promise<Home>;
}

export async function engineForPools(options: PrivateEngineOptions = {}): Promise<PoolEngine> {
  const engine = await privateEngine(options);
  try {
    await ensureImages(engine.socket);
    await loadEngineBase(engine.api);
    const through = ['nsenter', `--net=${engine.net}`];
    const bare: PoolEngine['bare'] = (config, env = {}) =>
      onejob({ engine: engine.socket, config, env: { DOCKER_HOST: engine.url, ...env }, through });
    const home: PoolEngine['home'] = async (...words) => withImage(await bare(...words));
    return Object.assign(engine, { address: wayOutOf(engine), bare, home });
  } catch (error) {
    await engine[Symbol.asyncDispose]();
    throw error;
  }
}

/** Builds the image of agents' engines there; otherwise the daemon does when it first needs it. */
export async function withImage(home: Home): Promise<Home> {
  const { code, stdout, stderr } = await home.cli(['image', 'build', 'engine']).ended;
  if (code === 0 && /^engine: onejob\/engine:\w{12} was built$/m.test(stdout)) return home;
  await home.close();
  throw new Error(`no image for engines: ${stdout}\n${stderr}`);
}

interface BoxOptions {
  /** What the image of its sandboxes is made of; default: the image with the docker command alone. */
  readonly image?: { readonly name: string; readonly dockerfile: string };
  readonly engine?: PrivateEngineOptions;
  /** What the Engine has before the daemon starts. */
  readonly make?: (engine: PoolEngine) => Promise<void>;
}

export interface Box {
  readonly engine: PoolEngine;
  readonly home: Home;
  daemon: Daemon;
  /** Runs a script as a job; what it printed. */
  job(...lines: readonly string[]): Promise<string>;
  /** Another onejob beside the Engine, with a pool that has these keys instead. It has no image of its agents' engines yet. */
  another(keys: string, env?: Readonly<Record<string, string>>): Promise<Home>;
}

/** The pool `box`, with `keys` and `containers`, for the tests of a `describe`: hooks start the Engine and the daemon, and end them. */
export function boxes(keys: string, { image, engine: options, make }: BoxOptions = {}): Box {
  const opened = new AsyncDisposableStack();
  let parts: Pick<Box, 'engine' | 'home' | 'daemon'> | null = null;
  const all = () => {
    if (parts === null) throw new Error('the hooks have not run');
    return parts;
  };
  const configOf = (more: string) => {
    const containers = /\bcontainers:/.test(more) ? '' : 'containers: true, ';
    return `pools: { box: { image: "${image?.name ?? clientImage}", ${containers}stop_grace: 1s, ${more} } }\n`;
  };
  beforeAll(async () => {
    const engine = opened.use(await engineForPools(options));
    if (image !== undefined) await build(engine.api, image.name, image.dockerfile);
    await make?.(engine);
    const home = opened.use(await engine.home(configOf(keys)));
    parts = { engine, home, daemon: await home.up() };
  }, 300_000);
  afterAll(() => opened.disposeAsync(), 120_000);
  return {
    get engine() {
      return all().engine;
    },
    get home() {
      return all().home;
    },
    get daemon() {
      return all().daemon;
    },
    set daemon(daemon) {
      all().daemon = daemon;
    },
    async job(...lines) {
      const { code, stdout, stderr } = await all().home.run('--pool', 'box', '--', 'sh', '-ec', lines.join('\n')).ended;
      expect(code, `${stdout}\n${stderr}`).toBe(0);
      return stdout;
    },
    another: (more, env) => all().engine.bare(configOf(more), env),
  };
}

/** Words of a pool: its sandboxes have the docker command, and a real program where `starter` looks for it. */
export const poolWith = (program: string): string =>
  `containers: true, image: "${clientImage}", network: default, stop_grace: 1s, volumes: ["${program}:/real/${basename(program)}"]`;

/** The image by itself is a service: ready after a second, it answers at port 80 with what its variable `PAGE` says. */
const service = 'echo "$PAGE" >/tmp/index.html; sleep 1; touch /ready; exec httpd -f -p 80 -h /tmp';

/** Shell that makes the first image with that service in it. */
export const makeBox = `tar -C / -c $(cd /; ls -d bin etc lib lib64 tmp 2>/dev/null) | docker import -c 'CMD ${JSON.stringify(['sh', '-c', service])}' - ${boxImage} >&2`;

/** The same image at a registry. */
export const boxAtRegistry = '127.0.0.1:5000/box:1';

/** What answers one request to that registry, in busybox: the manifest of the one image, and its blobs. */
const registry = String.raw`#!/bin/sh
# Engines try TLS first.
IFS= read -r -n 1 first; case $first in G|H) ;; *) exit 0 ;; esac
read -r method path version
while read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
type=application/octet-stream
case $path in
  */manifests/*) digest=$(sed 's/.*"digest":"sha256:\([0-9a-f]*\)".*/\1/' /registry/index.json); type=application/vnd.oci.image.manifest.v1+json ;;
  */blobs/*) digest=${'$'}{path##*:} ;;
  *) digest='' ;;
esac
file=/registry/blobs/sha256/$digest
[ "$digest" ] || file=/dev/null
printf 'HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %s\r\nConnection: close\r\n' "$type" "$(wc -c <$file)"
[ -z "$digest" ] || printf 'Docker-Content-Digest: sha256:%s\r\n' "$digest"
printf '\r\n'
[ "$first" = H ] || cat $file
`;

/** Shell that starts that registry beside the engine, for programs that pull an image also where it is. */
export const serveBox = [
  `mkdir /tmp/registry && docker save ${boxImage} | tar -C /tmp/registry -x`,
  `printf '%s' '${registry.replaceAll("'", "'\\''")}' >/tmp/registry/answer && chmod 755 /tmp/registry/answer`,
  `docker run -d --network host -v /tmp/registry:/registry ${boxImage} nc -ll -p 5000 -e /registry/answer >&2`,
  `until docker pull -q ${boxAtRegistry} >&2; do sleep 0.2; done`,
].join(' && ');

/**
 * Writes a program that stands for a real one: in a sandbox it makes the first image of the engine, and then becomes the real one, as
 * `poolWith` mounts it. On this host, which asks it for its version, it is the real one at once. Its path. `more`: shell that makes others.
 */
export function starter(dir: string, program: string, more = ':'): string {
  const path = join(dir, basename(program));
  const script = `#!/bin/sh
[ -x /real/${basename(program)} ] || exec ${program} "$@"
{ ${makeBox} && ${more}; } || exit 1
exec /real/${basename(program)} "$@"
`;
  writeFileSync(path, script);
  chmodSync(path, 0o755);
  return path;
}
