/** Pools with `containers` for tests of CI services: a private Engine whose sandboxes reach a server of this host, and a first image in each engine. */
import { chmodSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { type PrivateEngine, privateEngine } from './dockerd.ts';
import { clientImage, loadEngineBase } from './engine-base.ts';
import { ensureImages } from './images.ts';
import { type Home, onejob } from './onejob.ts';
import { wayOutOf } from './veth.ts';

/** The image that each engine has before its job: the files of the sandbox itself, since it reaches no registry. */
export const boxImage = 'box:1';

export interface PoolEngine extends Pick<PrivateEngine, 'api' | 'socket'>, AsyncDisposable {
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
      api: engine.api,
      socket: engine.socket,
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

/** The image by itself is a service: ready after a second, it answers at port 80 with what its variable `PAGE` says. */
const service = 'echo "$PAGE" >/tmp/index.html; sleep 1; touch /ready; exec httpd -f -p 80 -h /tmp';

/** Shell that makes the image of the files of the sandbox. */
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
