/** Uploaded workspaces and kept artifacts, as tar files. A file with its final name is complete. */
import { createHash, randomUUID } from 'node:crypto';
import { createReadStream, createWriteStream, existsSync, readdirSync, rmSync } from 'node:fs';
import { readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { Readable, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { OnejobError } from '../../base/errors.ts';
import type { JoinRequest } from '../../contract/schema.ts';
import type { Clock } from '../../core/clock.ts';
import { limited } from '../../http/limited.ts';
import { subdirectory } from '../../store/directory.ts';
import { storeFault } from '../../store/fault.ts';
import { syncFolder, writeWhole } from '../../system/files.ts';
import { systemClock } from '../../system/system-clock.ts';
import { joined, joinedFiles, SentFiles } from './sent-files.ts';

const part = '.part';

/** The spool in the state directory. A workspace belongs to one job, or to the jobs of one array, and is deleted with them. */
export class Spool {
  readonly #workspaces: string;
  readonly #artifacts: string;
  readonly #sent: SentFiles;
  readonly #isTaken: (workspace: string) => boolean;
  readonly #deleting = new Set<Promise<void>>();

  /** Removes incomplete files. `isTaken`: the workspace belongs to an unfinished job. */
  constructor(dir: string, isTaken: (workspace: string) => boolean, clock: Pick<Clock, 'now' | 'wall'> = systemClock) {
    this.#isTaken = isTaken;
    this.#workspaces = subdirectory(dir, 'workspaces');
    this.#artifacts = subdirectory(dir, 'artifacts');
    this.#sent = new SentFiles(dir, clock);
    for (const folder of [this.#workspaces, this.#artifacts, this.#sent.folder])
      for (const name of readdirSync(folder))
        if (name.endsWith(part) || name.endsWith('.new')) rmSync(join(folder, name), { force: true });
  }

  /** Stores a workspace, of a person; returns its id. @throws OnejobError E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  async putWorkspace(files: Readable, limit: number, signal: AbortSignal, person?: number): Promise<string> {
    const id = newId(person);
    const bounded = limited(limit, () => tooLarge(limit));
    await write(this.#workspacePath(id), (to) => pipeline(files, bounded, to, { signal }).then(() => true));
    return id;
  }

  /** Keeps files for workspaces that are made of them; their secret name. @throws OnejobError E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  async keepFiles(files: Readable, limit: number, signal: AbortSignal): Promise<string> {
    const sum = createHash('sha256');
    const bounded = limited(
      limit,
      () => tooLarge(limit),
      (piece) => sum.update(piece),
    );
    const path = join(this.#sent.folder, randomUUID());
    const kept = await write(path, async (to) => {
      await pipeline(files, bounded, to, { signal });
      return `${path}.${sum.digest('hex')}`;
    });
    const name = basename(kept);
    await this.#sent.came(name);
    await this.#sent.sweep(0);
    return name;
  }

  /** Stores a workspace that is made of kept files. @throws OnejobError E_WORKSPACE_UNKNOWN, E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  async joinWorkspace(request: JoinRequest, limit: number, signal: AbortSignal, person?: number): Promise<string> {
    if (request.ranges.reduce((sum, [, from, to]) => sum + to - from, 0) > limit) throw tooLarge(limit);
    const id = newId(person);
    const base = this.#basePath(id);
    try {
      await this.#sent.take(request, base, 2 * limit, signal);
      // With this it is there, and the names before it are, too.
      writeWhole(`${base}.joined`, JSON.stringify(request.ranges), { over: true, mode: 0o600 });
      return id;
    } catch (error) {
      await Promise.all(joinedFiles(base).map((path) => rm(path, { force: true })));
      throw storeFault('write', base, error);
    }
  }

  hasWorkspace(id: string): boolean {
    return isId(id) && (existsSync(this.#workspacePath(id)) || existsSync(`${this.#basePath(id)}.joined`));
  }

  /** @throws OnejobError E_WORKSPACE_UNKNOWN when no new job may use it, or none of this person */
  checkWorkspace(workspace: string, person?: number): void {
    const isTheirs = person === undefined || workspace.startsWith(mark(person));
    const taken = isTheirs && this.#isTaken(workspace);
    if (isTheirs && !taken && this.hasWorkspace(workspace)) return;
    const why = taken ? 'already belongs to another job' : 'was never uploaded, or was uploaded more than an hour ago';
    const hint = 'Upload the workspace again, and submit the job with the new id.';
    throw new OnejobError('E_WORKSPACE_UNKNOWN', `Cannot queue the job: its workspace ${workspace} ${why}.`, { hint });
  }

  openWorkspace(id: string): Readable {
    const base = this.#basePath(id);
    if (existsSync(`${base}.joined`)) return Readable.from(joined(base), { objectMode: false });
    return createReadStream(this.#workspacePath(id), { highWaterMark: 256 * 1024 });
  }

  /** Deletes workspaces without a job that were last written before `time`. Whether they have one is asked right before each. */
  async sweepWorkspaces(time: number): Promise<void> {
    for (const name of await readdir(this.#workspaces)) {
      const [id = '', kind = ''] = name.split('.', 2);
      if (name !== `${id}.${kind}`) continue;
      const path = join(this.#workspaces, name);
      // A link to a file that was sent long ago may be new.
      const found = await stat(path).catch(() => null);
      if (found === null || Math.max(found.mtimeMs, found.ctimeMs) >= time) continue;
      if (!this.#isTaken(id)) await rm(path, { force: true });
    }
  }

  /** Deletes files that were sent and last used before `time`, and what is too much of the rest. */
  sweepSent(time: number): Promise<void> {
    return this.#sent.sweep(time);
  }

  /** Deletes a workspace, of a person, unless it belongs to a job. What cannot be deleted now is swept later. */
  dropWorkspace(workspace: string, person?: number): void {
    if (person !== undefined && !workspace.startsWith(mark(person))) return;
    if (this.#isTaken(workspace) || !this.hasWorkspace(workspace)) return;
    const paths = [this.#workspacePath(workspace), ...joinedFiles(this.#basePath(workspace))];
    const deletion = Promise.all(paths.map((path) => rm(path, { force: true }).catch(() => {}))).then(() => {});
    this.#deleting.add(deletion);
    void deletion.then(() => this.#deleting.delete(deletion));
  }

  /** Resolves once nothing is being deleted. */
  async close(): Promise<void> {
    await Promise.all(this.#deleting);
  }

  hasArtifacts(job: string): boolean {
    return isId(job) && existsSync(this.#artifactsPath(job));
  }

  openArtifacts(job: string): Readable {
    return createReadStream(this.#artifactsPath(job), { highWaterMark: 256 * 1024 });
  }

  /** Keeps what `fill` writes if it returns true; all or nothing. @throws OnejobError E_STATE_FULL */
  async putArtifacts(job: string, fill: (to: Writable) => Promise<boolean>): Promise<void> {
    await write(this.#artifactsPath(job), fill);
  }

  deleteArtifacts(job: string): Promise<void> {
    return rm(this.#artifactsPath(job), { force: true });
  }

  #workspacePath(id: string): string {
    return `${this.#basePath(id)}.tar`;
  }

  #basePath(id: string): string {
    return join(this.#workspaces, checkedId(id));
  }

  #artifactsPath(job: string): string {
    return join(this.#artifacts, `${checkedId(job)}.tar`);
  }
}

/** `fill`: whether to keep it, or as what. Returns the path. */
async function write(path: string, fill: (to: Writable) => Promise<boolean | string>): Promise<string> {
  const unfinished = `${path}.${randomUUID()}${part}`;
  // Flushed, because an accepted job must find its workspace after a power cut.
  const to = createWriteStream(unfinished, { mode: 0o600, flush: true });
  try {
    const kept = await fill(to);
    const final = typeof kept === 'string' ? kept : path;
    if (kept !== false) {
      await rename(unfinished, final);
      syncFolder(dirname(path));
    } else await rm(unfinished, { force: true });
    return final;
  } catch (error) {
    to.destroy();
    await rm(unfinished, { force: true });
    throw storeFault('write', path, error);
  }
}

function newId(person: number | undefined): string {
  return `${person === undefined ? '' : mark(person)}${randomUUID()}`;
}

/** How the id of a person's workspace begins; others begin with a hex digit. */
function mark(person: number): string {
  return `u${person}-`;
}

function isId(id: string): boolean {
  return /^[A-Za-z0-9-]{1,64}$/.test(id);
}

function checkedId(id: string): string {
  if (!isId(id)) throw new RangeError(`invalid id: ${id}`);
  return id;
}

function tooLarge(limit: number): OnejobError {
  return new OnejobError('E_WORKSPACE_TOO_LARGE', `The workspace is larger than ${limit / 2 ** 30} GiB, the maximum.`, {
    hint: 'Exclude large files with .gitignore or .onejobignore and mount them with --volume, or use --no-workspace.',
  });
}
