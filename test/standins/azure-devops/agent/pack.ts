/**
 * The scripted agent as a package, laid out as Microsoft's is: `bin/Agent.Listener`, `config.sh`, `run.sh`, `env.sh`, `externals/`.
 * The same sources and version give the same bytes, so a checksum can be written down. Also a command:
 * `node test/standins/azure-devops/agent/pack.ts [version]`.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';

export interface PackedAgent {
  /** Absolute path of the `.tar.gz`. */
  readonly file: string;
  /** Of the file, lower-case hex. */
  readonly sha256: string;
  readonly version: string;
}

/** A file, or a folder when `body` is null; the path is relative to the agent's root. */
export interface AgentFile {
  readonly path: string;
  readonly body: Buffer | null;
  readonly mode: number;
}

export const agentVersion = '5.278.0';

const here = import.meta.dirname;
// Beside what npm put there: ignored by git, and gone with `npm ci`.
const cache = resolve(here, '../../../../node_modules/.cache/onejob-test/agent');

/** What the package holds, folders first, in a fixed order. */
export async function agentEntries(version: string = agentVersion): Promise<readonly AgentFile[]> {
  const modules = (await readdir(here)).filter((name) => name.endsWith('.mjs')).sort();
  const folder = (path: string): AgentFile => ({ path, body: null, mode: 0o755 });
  const file = async (path: string, from: string, mode: number): Promise<AgentFile> => ({
    path,
    body: await readFile(join(here, from)),
    mode,
  });
  return [
    folder('bin'),
    folder('externals'),
    await file('bin/Agent.Listener', 'layout/Agent.Listener', 0o755),
    await file('bin/installdependencies.sh', 'layout/installdependencies.sh', 0o755),
    ...(await Promise.all(modules.map((name) => file(`bin/${name}`, name, 0o644)))),
    { path: 'bin/version.json', body: Buffer.from(`${JSON.stringify({ version })}\n`), mode: 0o644 },
    ...(await Promise.all(['config.sh', 'env.sh', 'run.sh'].map((name) => file(name, `layout/${name}`, 0o755)))),
  ];
}

/** Makes `vsts-agent-linux-x64-<version>.tar.gz`, or finds it made; what is in it is owned by 1001, as in the real one. */
export async function packAgent(version: string = agentVersion): Promise<PackedAgent> {
  const tar = pack();
  for (const { path, body, mode } of await agentEntries(version)) {
    const header = { mode, uid: 1001, gid: 1001, mtime: new Date(0) };
    if (body === null) tar.entry({ ...header, name: `./${path}/`, type: 'directory' });
    else tar.entry({ ...header, name: `./${path}` }, body);
  }
  tar.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of tar) chunks.push(chunk as Buffer);
  const bytes = gzipSync(Buffer.concat(chunks));
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  const folder = join(cache, sha256.slice(0, 12));
  const file = join(folder, `vsts-agent-linux-x64-${version}.tar.gz`);
  if (!existsSync(file)) {
    await mkdir(folder, { recursive: true });
    await writeFile(`${file}.${process.pid}`, bytes);
    await rename(`${file}.${process.pid}`, file);
  }
  return { file, sha256, version };
}

if (import.meta.main) {
  const made = await packAgent(process.argv[2]);
  console.log(`${made.file}\nsha256 ${made.sha256}`);
}
