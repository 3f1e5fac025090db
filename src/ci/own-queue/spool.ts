/** Uploaded workspaces and kept artifacts, as tar files. A file with its final name is complete. */
import { randomUUID } from 'node:crypto';
import { createReadStream, createWriteStream, existsSync, readdirSync, rmSync } from 'node:fs';
import { readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { OnejobError } from '../../base/errors.ts';
import { limited } from '../../http/limited.ts';
import { subdirectory } from '../../store/directory.ts';
import { storeFault } from '../../store/fault.ts';
import { syncFolder } from '../../system/files.ts';

const part = '.part';

/** The spool in the state directory. A workspace belongs to one job, or to the jobs of one array, and is deleted with them. */
export class Spool {
  readonly #workspaces: string;
  readonly #artifacts: string;
  readonly #isTaken: (workspace: string) => boolean;
  readonly #deleting = new Set<Promise<void>>();

  /** Removes incomplete files. `isTaken`: the workspace belongs to an unfinished job. */
  constructor(dir: string, isTaken: (workspace: string) => boolean) {
    this.#isTaken = isTaken;
    this.#workspaces = subdirectory(dir, 'workspaces');
    this.#artifacts = subdirectory(dir, 'artifacts');
    for (const folder of [this.#workspaces, this.#artifacts])
      for (const name of readdirSync(folder)) if (name.endsWith(part)) rmSync(join(folder, name), { force: true });
  }

  /** Stores a workspace, of a person; returns its id. @throws OnejobError E_WORKSPACE_TOO_LARGE, E_STATE_FULL */
  async putWorkspace(files: Readable, limit: number, signal: AbortSignal, person?: number): Promise<string> {
    const id = `${person === undefined ? '' : mark(person)}${randomUUID()}`;
    const bounded = limited(limit, () => tooLarge(limit));
    await write(this.#workspacePath(id), (to) => pipeline(files, bounded, to, { signal }).then(() => true));
    return id;
  }

  hasWorkspace(id: string): boolean {
    return isId(id) && existsSync(this.#workspacePath(id));
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
    return createReadStream(this.#workspacePath(id), { highWaterMark: 256 * 1024 });
  }

  /** Deletes workspaces without a job that were last written before `time`. Whether they have one is asked right before each. */
  async sweepWorkspaces(time: number): Promise<void> {
    for (const name of await readdir(this.#workspaces)) {
      const id = name.slice(0, -'.tar'.length);
      if (!name.endsWith('.tar')) continue;
      const path = join(this.#workspaces, name);
      if ((await stat(path)).mtimeMs < time && !this.#isTaken(id)) await rm(path, { force: true });
    }
  }

  /** Deletes a workspace, of a person, unless it belongs to a job. What cannot be deleted now is swept later. */
  dropWorkspace(workspace: string, person?: number): void {
    if (person !== undefined && !workspace.startsWith(mark(person))) return;
    if (this.#isTaken(workspace) || !this.hasWorkspace(workspace)) return;
    const deletion = rm(this.#workspacePath(workspace), { force: true }).catch(() => {});
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
  putArtifacts(job: string, fill: (to: Writable) => Promise<boolean>): Promise<void> {
    return write(this.#artifactsPath(job), fill);
  }

  deleteArtifacts(job: string): Promise<void> {
    return rm(this.#artifactsPath(job), { force: true });
  }

  #workspacePath(id: string): string {
    return join(this.#workspaces, `${checkedId(id)}.tar`);
  }

  #artifactsPath(job: string): string {
    return join(this.#artifacts, `${checkedId(job)}.tar`);
  }
}

async function write(path: string, fill: (to: Writable) => Promise<boolean>): Promise<void> {
  const unfinished = `${path}.${randomUUID()}${part}`;
  // Flushed, because an accepted job must find its workspace after a power cut.
  const to = createWriteStream(unfinished, { mode: 0o600, flush: true });
  try {
    if (await fill(to)) {
      await rename(unfinished, path);
      syncFolder(dirname(path));
    } else await rm(unfinished, { force: true });
  } catch (error) {
    to.destroy();
    await rm(unfinished, { force: true });
    throw storeFault('write', path, error);
  }
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
