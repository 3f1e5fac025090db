/**
 * Images with the scripted agent of the Azure stand-in, made without any registry and kept by content hash. Idempotent.
 * Also a command: `node test/support/azure-images.ts [socket]`.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { request } from 'node:http';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { pack } from 'tar-stream';
import { agentEntries, agentVersion } from '../standins/azure-devops/agent/pack.ts';
import { call } from './images.ts';

/** Every image, and what it is there to show. */
export const azureImages = {
  /** busybox and Node, `agent` (1000:1000), no agent: what an image is built from. */
  base: 'onejob-test/node-base:1',
  /** What onejob's own builder makes: the agent in /opt/agent, owned by `agent`, who it also runs as. */
  agent: 'onejob-test/azure-agent:1',
  /** In the pattern of the Python manager's Dockerfile: root, the agent in /azp, a start script that asks for AZP_…. */
  seed: 'onejob-test/azp-seed:1',
  /** In the pattern of Microsoft's page: the start script downloads the agent when the container starts. */
  startOnly: 'onejob-test/azp-start-only:1',
} as const;

const label = 'onejob-test.hash';
const scripts = new URL('azure-images/', import.meta.url);
const run = promisify(execFile);

export interface Entry {
  readonly path: string;
  /** null: a folder. */
  readonly body: Buffer | null;
  readonly mode: number;
  readonly owner?: number;
  /** A symbolic link's target; `body` is then null. */
  readonly link?: string;
}

/** Makes the images that are missing, or are not made from this checkout, on the Engine behind `socket`. */
export async function ensureAzureImages(socket = '/var/run/docker.sock'): Promise<typeof azureImages> {
  const base = await ensureImport(socket, azureImages.base, await nodeRoot());
  const agent = await agentEntries();
  const under = (folder: string, owner: number): Entry[] =>
    agent.map((file) => ({ ...file, path: `${folder}/${file.path}`, owner }));
  const start = async (name: string): Promise<Entry> => ({
    path: 'context/start.sh',
    body: await readFile(new URL(name, scripts)),
    mode: 0o755,
  });
  // What both scripts call and a Debian has; busybox has it not.
  const debian = (await Promise.all(['/bin/bash', '/usr/bin/nice'].map((program) => withLibraries(program)))).flat();
  const bash = debian.map((file) => ({ ...file, path: `bash/${file.path}` }));
  const hash = createHash('sha256')
    .update(JSON.stringify(agent.map(({ body, ...rest }) => [rest, body?.toString('hex')])))
    .digest('hex');
  const labels = {
    'io.onejob.agent.type': 'azure-pipelines',
    'io.onejob.agent.version': agentVersion,
    'io.onejob.agent.root': '/opt/agent',
    'io.onejob.agent.hash': hash.slice(0, 12),
  };
  await ensureBuild(socket, azureImages.agent, base, under('context', 1000), [
    'COPY --chown=1000:1000 context /opt/agent',
    ...Object.entries(labels).map(([key, value]) => `LABEL ${key}=${value}`),
    'USER agent',
    'WORKDIR /opt/agent',
    `RUN test "$(./bin/Agent.Listener --version)" = ${agentVersion}`,
  ]);
  const startScript = ['COPY bash /', 'WORKDIR /azp', 'COPY context .', 'CMD ["./start.sh"]'];
  await ensureBuild(socket, azureImages.seed, base, [...bash, ...under('context', 0), await start('seed-start.sh')], startScript);
  await ensureBuild(socket, azureImages.startOnly, base, [...bash, await start('download-start.sh')], startScript);
  return azureImages;
}

/** A busybox root with the Node that runs this, and the libraries that it asks for. */
export async function nodeRoot(): Promise<Entry[]> {
  const { stdout } = await run('/bin/busybox', ['--list']);
  const applets = stdout.split('\n').filter((name) => name !== '' && name !== 'busybox');
  const folder = (path: string, mode = 0o755, owner = 0): Entry => ({ path, body: null, mode, owner });
  const file = (path: string, body: string): Entry => ({ path, body: Buffer.from(body), mode: 0o644 });
  const node = await withLibraries(process.execPath, 'usr/local/bin/node');
  return [
    ...['bin', 'dev', 'etc', 'home', 'lib', 'lib64', 'opt', 'proc', 'root', 'sys', 'usr', 'usr/local', 'usr/local/bin', 'var'].map(
      (path) => folder(path),
    ),
    folder('tmp', 0o1777),
    folder('home/agent', 0o755, 1000),
    { path: 'bin/busybox', body: await readFile('/bin/busybox'), mode: 0o755 },
    ...applets.map((name) => ({ path: `bin/${name}`, body: null, mode: 0o777, link: 'busybox' })),
    file(
      'etc/passwd',
      'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n',
    ),
    file('etc/group', 'root:x:0:\nagent:x:1000:\nnobody:x:65534:\n'),
    file('etc/nsswitch.conf', 'hosts: files dns\n'),
    ...node,
  ];
}

/** A program of this host and the shared libraries that its loader would open, at the paths where it looks for them. */
export async function withLibraries(program: string, at = program.slice(1)): Promise<Entry[]> {
  const { stdout } = await run('ldd', [program]);
  const libraries = [...stdout.matchAll(/(\/\S+) \(0x/g)].map(([, path]) => path ?? '');
  const paths = [...new Set(libraries)].sort();
  return [
    { path: at, body: await readFile(program), mode: 0o755 },
    ...(await Promise.all(paths.map(async (path) => ({ path: path.slice(1), body: await readFile(path), mode: 0o755 })))),
  ];
}

function digest(entries: readonly Entry[], more: readonly string[]): string {
  const hash = createHash('sha256').update(JSON.stringify(more));
  for (const { body, ...rest } of entries) {
    hash.update(JSON.stringify(rest));
    if (body !== null) hash.update(body);
  }
  return hash.digest('hex').slice(0, 16);
}

/** The image's id when it is made from something else, null if there isn't one, true when it is as it should be. */
async function seen(socket: string, name: string, hash: string): Promise<string | null | true> {
  const { status, body } = await call(socket, 'GET', `/images/${name}/json`);
  if (status !== 200) return null;
  if (body.includes(`"${label}":"${hash}"`)) return true;
  return /"Id":"([^"]+)"/.exec(body)?.[1] ?? null;
}

/** What is replaced would stay without a name; what a container still uses is refused, and stays. */
async function forget(socket: string, old: string | null): Promise<void> {
  if (old !== null) await call(socket, 'DELETE', `/images/${old}`);
}

export async function ensureImport(socket: string, name: string, entries: readonly Entry[]): Promise<string> {
  const hash = digest(entries, []);
  const old = await seen(socket, name, hash);
  if (old === true) return hash;
  const [repo = name, tag = 'latest'] = name.split(':');
  const query = new URLSearchParams({ fromSrc: '-', repo, tag });
  const path = 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
  for (const change of [`ENV ${path}`, 'CMD ["sh"]', `LABEL ${label}=${hash}`]) query.append('changes', change);
  await send(socket, `/images/create?${query}`, await tarOf(entries), name);
  await forget(socket, old);
  return hash;
}

/** Makes an image on top of the base with busybox and Node; `base`: the base's own hash. */
export async function ensureBuild(
  socket: string,
  name: string,
  base: string,
  entries: readonly Entry[],
  steps: readonly string[],
): Promise<void> {
  const hash = digest(entries, [base, ...steps]);
  const old = await seen(socket, name, hash);
  if (old === true) return;
  const dockerfile = [`FROM ${azureImages.base}`, ...steps, `LABEL ${label}=${hash}`].join('\n');
  const context = await tarOf([...entries, { path: 'Dockerfile', body: Buffer.from(`${dockerfile}\n`), mode: 0o644 }]);
  const query = new URLSearchParams({ t: name, rm: 'true', forcerm: 'true', networkmode: 'none' });
  await send(socket, `/build?${query}`, context, name);
  await forget(socket, old);
}

export async function tarOf(entries: readonly Entry[]): Promise<Buffer> {
  const tar = pack();
  const chunks: Buffer[] = [];
  const read = (async () => {
    for await (const chunk of tar) chunks.push(chunk as Buffer);
  })();
  for (const { path, body, mode, owner = 0, link } of entries) {
    const header = { mode, uid: owner, gid: owner, mtime: new Date(0) };
    if (link !== undefined) tar.entry({ ...header, name: path, type: 'symlink', linkname: link });
    else if (body === null) tar.entry({ ...header, name: `${path}/`, type: 'directory' });
    else tar.entry({ ...header, name: path }, body);
  }
  tar.finalize();
  await read;
  return Buffer.concat(chunks);
}

/** Both ways to make an image answer 200 first, and say in the body what went wrong. */
async function send(socket: string, path: string, body: Buffer, name: string): Promise<void> {
  const said = await new Promise<string>((resolve, reject) => {
    const headers = { 'content-type': 'application/x-tar', 'content-length': body.length };
    const sent = request({ socketPath: socket, method: 'POST', path, headers, agent: false }, (answer) => {
      text(answer).then((all) => resolve(`${answer.statusCode} ${all}`), reject);
    });
    sent.on('error', reject);
    sent.end(body);
  });
  if (!said.startsWith('200') || said.includes('"errorDetail"')) throw new Error(`Cannot make ${name}: ${said.slice(-2000)}`);
}

if (import.meta.main) {
  await ensureAzureImages(process.argv[2]);
  console.log(Object.values(azureImages).join('\n'));
}
