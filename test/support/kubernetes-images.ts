/** Images for a containerd that no registry reaches: archives as `docker save` writes them, made of root file systems. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { pack } from 'tar-stream';

const path = 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

/**
 * Writes an archive with one image at `to`. `from` is a root file system: its folder, or its tar, as `docker export` writes it.
 */
export async function writeArchive(to: string, from: string | Buffer, name: string, command: readonly string[]): Promise<void> {
  const layer = typeof from === 'string' ? readRoot(from) : from;
  const config = Buffer.from(
    JSON.stringify({
      architecture: process.arch === 'x64' ? 'amd64' : process.arch,
      os: 'linux',
      config: { Cmd: command, Env: [path] },
      rootfs: { type: 'layers', diff_ids: [`sha256:${createHash('sha256').update(layer).digest('hex')}`] },
      history: [{ created_by: 'test' }],
    }),
  );
  const configName = `${createHash('sha256').update(config).digest('hex')}.json`;
  const manifest = [{ Config: configName, RepoTags: [name], Layers: ['layer.tar'] }];
  const tar = pack();
  tar.entry({ name: configName }, config);
  tar.entry({ name: 'layer.tar' }, layer);
  tar.entry({ name: 'manifest.json' }, JSON.stringify(manifest));
  tar.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of tar) chunks.push(chunk as Buffer);
  writeFileSync(to, Buffer.concat(chunks));
}

function readRoot(from: string): Buffer {
  if (!statSync(from).isDirectory()) return readFileSync(from);
  return execFileSync('tar', ['-C', from, '-c', '.'], { maxBuffer: 2 ** 31 });
}

/** Whether the file has whole images in it, as those of `docker save`. */
export function isArchive(file: string): boolean {
  if (statSync(file).isDirectory()) return false;
  const names = execFileSync('tar', ['-tf', file], { encoding: 'utf8', maxBuffer: 2 ** 26 });
  return names.split('\n').includes('manifest.json');
}

/** A root file system that has one program in it, `/name`. */
export async function rootOf(program: string, name: string): Promise<Buffer> {
  const tar = pack();
  tar.entry({ name, mode: 0o755 }, readFileSync(program));
  tar.finalize();
  const chunks: Buffer[] = [];
  for await (const chunk of tar) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks);
}
