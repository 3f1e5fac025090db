/**
 * Small images for tests, made here from busybox, because no registry is reachable. Idempotent: an image that carries the
 * hash of what it would be made from is left alone. Also a command: `node test/support/images.ts [socket]`.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { request } from 'node:http';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { pack } from 'tar-stream';

/** Every test image, and what it is there to show. */
export const images = {
  /** Shell and applets, root, and a user `agent` (1000:1000). */
  base: 'onejob-test/base:1',
  /** One static program, no `sh`. */
  noShell: 'onejob-test/no-shell:1',
  /** An entrypoint and a command that would break a gate. */
  entrypoint: 'onejob-test/entrypoint:1',
  /** Runs as `agent` by itself. */
  user: 'onejob-test/user:1',
  /** Asks for every GPU by its environment, as CUDA images do. */
  gpuEnv: 'onejob-test/gpu-env:1',
} as const;

const label = 'onejob-test.hash';
const passwd =
  'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n';
const group = 'root:x:0:\nagent:x:1000:\nmedia:x:2000:agent\nnobody:x:65534:\n';

/** Makes the images that are missing on the Engine behind `socket`. */
export async function ensureImages(socket = '/var/run/docker.sock'): Promise<typeof images> {
  const busybox = await readFile('/bin/busybox');
  const full = await baseRoot();
  const bare = await rootWithout(busybox);
  await ensure(socket, images.base, full, []);
  await ensure(socket, images.noShell, bare, ['CMD ["/bin/tool"]']);
  await ensure(socket, images.entrypoint, full, ['ENTRYPOINT ["/bin/false", "entry"]', 'CMD ["command"]']);
  await ensure(socket, images.user, full, ['USER agent']);
  await ensure(socket, images.gpuEnv, full, ['ENV NVIDIA_VISIBLE_DEVICES=all']);
  return images;
}

/** Root file system of `images.base`, as a tar. */
export async function baseRoot(): Promise<Buffer> {
  const applets = (await promisify(execFile)('/bin/busybox', ['--list'])).stdout.split('\n').filter((name) => name !== '');
  return rootWithShell(await readFile('/bin/busybox'), applets);
}

async function ensure(socket: string, name: string, root: Buffer, changes: readonly string[]): Promise<void> {
  const hash = createHash('sha256').update(root).update(JSON.stringify(changes)).digest('hex').slice(0, 16);
  const seen = await call(socket, 'GET', `/images/${name}/json`);
  if (seen.status === 200 && seen.body.includes(`"${label}":"${hash}"`)) return;
  const [repo, tag] = name.split(':');
  const query = new URLSearchParams({ fromSrc: '-', repo: repo ?? name, tag: tag ?? 'latest' });
  for (const change of [...changes, `LABEL ${label}=${hash}`]) query.append('changes', change);
  const made = await call(socket, 'POST', `/images/create?${query}`, root);
  if (made.status !== 200 || made.body.includes('"errorDetail"'))
    throw new Error(`Cannot make ${name}: ${made.status} ${made.body}`);
}

async function rootWithShell(busybox: Buffer, applets: readonly string[]): Promise<Buffer> {
  const tar = pack();
  for (const dir of ['bin', 'dev', 'etc', 'home', 'proc', 'root', 'sys', 'usr', 'var']) directory(tar, dir, 0o755, 0);
  directory(tar, 'tmp', 0o1777, 0);
  directory(tar, 'home/agent', 0o755, 1000);
  file(tar, 'bin/busybox', busybox, 0o755);
  for (const name of applets)
    if (name !== 'busybox') tar.entry({ name: `bin/${name}`, type: 'symlink', linkname: 'busybox', mtime: then });
  file(tar, 'etc/passwd', Buffer.from(passwd), 0o644);
  file(tar, 'etc/group', Buffer.from(group), 0o644);
  return finish(tar);
}

async function rootWithout(busybox: Buffer): Promise<Buffer> {
  const tar = pack();
  directory(tar, 'bin', 0o755, 0);
  file(tar, 'bin/tool', busybox, 0o755);
  return finish(tar);
}

// A fixed time keeps the hash the same from run to run.
const then = new Date(0);

function directory(tar: ReturnType<typeof pack>, name: string, mode: number, owner: number): void {
  tar.entry({ name: `${name}/`, type: 'directory', mode, uid: owner, gid: owner, mtime: then });
}

function file(tar: ReturnType<typeof pack>, name: string, body: Buffer, mode: number): void {
  tar.entry({ name, mode, mtime: then }, body);
}

async function finish(tar: ReturnType<typeof pack>): Promise<Buffer> {
  tar.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of tar) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}

/** One call to the Engine, for tests that look at the world past onejob. */
export function call(
  socket: string,
  method: string,
  path: string,
  body: Buffer | null = null,
): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    const headers =
      body === null ? {} : { 'content-type': path.startsWith('/images/create') ? 'application/x-tar' : 'application/json' };
    const sent = request({ socketPath: socket, method, path, headers, agent: false }, (answer) => {
      text(answer).then((said) => resolve({ status: answer.statusCode ?? 0, body: said }), reject);
    });
    sent.on('error', reject);
    sent.end(body ?? undefined);
  });
}

if (import.meta.main) {
  await ensureImages(process.argv[2]);
  console.log(Object.values(images).join('\n'));
}
