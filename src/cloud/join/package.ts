/** The package that machines install: this very onejob, packed from where `install.sh` of a release put it. */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, statSync } from 'node:fs';
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { OnejobError } from '../../errors.ts';
import { run } from '../../system/run.ts';

export interface PackParts {
  /** Of this onejob, such as `/opt/onejob/1.2.0`. */
  readonly root: string;
  /** A folder for the archive, in the state directory. */
  readonly dir: string;
  readonly version: string;
}

/** ms that packing may take; it takes about 10 s. */
const patience = 300_000;

/**
 * Packs it unless that was done before, and removes older ones. null: this onejob is not an installed release, so its files are not all
 * that a machine needs.
 * @throws OnejobError E_FILES
 */
export async function packOwn({
  root,
  dir,
  version,
}: PackParts): Promise<{ readonly path: string; readonly sha256: string } | null> {
  const needed = ['install.sh', 'platform', 'dist/main.js', 'node_modules/node/bin/node'];
  if (needed.some((name) => !existsSync(join(root, name)))) return null;
  // A version may be installed again with other files.
  const name = `onejob-${version}-${Math.round(statSync(root).mtimeMs)}.tgz`;
  const path = join(dir, name);
  if (!existsSync(path)) {
    await mkdir(dir, { recursive: true, mode: 0o700 });
    const args = [
      '-C',
      dirname(root),
      '--exclude=node_modules/.cache',
      '--owner=0',
      '--group=0',
      '-czf',
      `${path}.new`,
      basename(root),
    ];
    const { error, stderr } = await run('tar', args, { timeout: patience });
    if (error !== null) {
      await rm(`${path}.new`, { force: true });
      const message = `Cannot pack ${root} for machines of clouds: ${stderr.trim().slice(-300) || error.message}.`;
      throw new OnejobError('E_FILES', message, { hint: `Look at the disk of ${dir}.`, retry: true, cause: error });
    }
    await rename(`${path}.new`, path);
  }
  for (const other of await readdir(dir))
    if (other !== name && /^onejob-.*\.tgz(\.new)?$/.test(other)) await rm(join(dir, other), { force: true });
  return { path, sha256: await hashOf(path) };
}

async function hashOf(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of createReadStream(path)) hash.update(piece as Buffer);
  return hash.digest('hex');
}
