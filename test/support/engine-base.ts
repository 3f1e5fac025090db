/**
 * What the image of agents' engines is built on, for Engines that reach no registry: a Debian 13 that has all packages already. Also a
 * command, `npm run image:engine`: makes it, which takes a minute, and says what came of it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { pack } from 'tar-stream';
import type { Engine } from './engine-http.ts';
import { inCache, madeOnce } from './go-program.ts';
import { images } from './images.ts';

const maker = join(import.meta.dirname, 'engine-base.sh');
const dockerfile = join(import.meta.dirname, '../../src/images/dockerfiles/engine.Dockerfile');

/** Named by what decides about its packages. */
export const engineBase = inCache(
  `engine-base-${createHash('sha256').update(readFileSync(maker)).update(readFileSync(dockerfile)).digest('hex').slice(0, 12)}.tar`,
);

/** The name that onejob has for it. */
const name = { repo: 'debian', tag: 'trixie-slim' };

/** An image with the Docker command and its plug-ins for build and compose, and little else. */
export const clientImage = 'onejob-test/docker-client:1';

const client = `FROM ${name.repo}:${name.tag} AS all
RUN mkdir -p /c/usr/libexec/docker /c/usr/bin; \\
    cp -a /usr/libexec/docker/cli-plugins /c/usr/libexec/docker/; cp /usr/bin/docker /c/usr/bin/; \\
    for file in $(ldd /usr/bin/docker | grep -o '/[^ :]*'); do \\
      if [ -f "$file" ]; then mkdir -p "/c$(dirname "$file")"; cp -L "$file" "/c$file"; fi; \\
    done
FROM ${images.base}
COPY --from=all /c/ /
`;

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksEngineBase(): string | null {
  return existsSync(engineBase) ? null : `nothing at ${engineBase}; ${cannotMake() ?? 'run "npm run image:engine" once'}`;
}

/** Why it cannot be made here, as a sentence's end; null when it can. */
function cannotMake(): string | null {
  if (process.getuid?.() !== 0) return 'only root can make it';
  const look = 'for name; do command -v "$name" >/dev/null || echo "$name"; done';
  const missing = spawnSync('sh', ['-c', look, 'sh', 'debootstrap', 'apt-get', 'unshare'], { encoding: 'utf8' }).stdout.trim();
  return missing === '' ? null : `not installed to make it: ${missing.replaceAll('\n', ', ')}`;
}

/** Makes it if it is missing and can be made; why it is still missing, as a sentence's end. @throws Error with what the script said */
export async function makeEngineBase(): Promise<string | null> {
  if (existsSync(engineBase) || cannotMake() !== null) return lacksEngineBase();
  await madeOnce(engineBase, async (half) => {
    const words = ['--mount', '--propagation', 'private', maker, half];
    await promisify(execFile)('unshare', words, { maxBuffer: 2 ** 26 }).catch(
      (error: Error & { stdout: string; stderr: string }) => {
        throw new Error(`${maker} failed:\n${error.stdout.slice(-2_000)}${error.stderr.slice(-2_000)}`);
      },
    );
  });
  return null;
}

/** Brings it to an Engine that has the other test images, and makes `clientImage` of it. */
export async function loadEngineBase(engine: Engine): Promise<void> {
  const query = new URLSearchParams({ fromSrc: '-', ...name });
  await done(await engine.stream('POST', `/images/create?${query}`, createReadStream(engineBase)));
  await build(engine, clientImage, client);
}

/** The image of agents' engines, on an Engine with that base, for tests without a manager. Its name. */
export async function makeEngineImage(engine: Engine): Promise<string> {
  const image = 'onejob-test/engine:1';
  await build(engine, image, readFileSync(dockerfile, 'utf8'));
  return image;
}

/** Builds an image on the Engine. */
export async function build(engine: Engine, image: string, text: string): Promise<void> {
  const context = pack();
  context.entry({ name: 'Dockerfile' }, text);
  context.finalize();
  await done(await engine.stream('POST', `/build?t=${image}&rm=1`, Readable.from(context)));
}

async function done(answer: Awaited<ReturnType<Engine['stream']>>): Promise<void> {
  const said = await text(answer);
  if (answer.statusCode !== 200 || said.includes('"error"')) throw new Error(`${answer.statusCode} ${said.slice(-2_000)}`);
}

if (import.meta.main) {
  const from = Date.now();
  const why = await makeEngineBase();
  if (why === null) console.log(`${engineBase} (${Math.round((Date.now() - from) / 1000)} s)`);
  else console.log(`Tests with engines of agents are skipped: ${why}.`);
}
