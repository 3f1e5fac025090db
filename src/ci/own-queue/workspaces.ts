/** Which workspaces belong to a job that is not done: each to one at most, and deleted once that is. */
import { OnejobError } from '../../errors.ts';
import type { Spool } from './spool.ts';

export class Workspaces {
  readonly #spool: Spool;
  readonly #attached = new Set<string>();
  readonly #deleting = new Set<Promise<void>>();

  constructor(spool: Spool) {
    this.#spool = spool;
  }

  /** Those of jobs that are not done. */
  get inUse(): ReadonlySet<string> {
    return this.#attached;
  }

  /** @throws OnejobError E_WORKSPACE_UNKNOWN when no job can be submitted with it */
  check(workspace: string): void {
    const taken = this.#attached.has(workspace);
    if (!taken && this.#spool.hasWorkspace(workspace)) return;
    const why = taken ? 'is in another job' : 'was never sent in, or waited for over an hour';
    throw new OnejobError('E_WORKSPACE_UNKNOWN', `Cannot queue the job: its workspace ${workspace} ${why}.`, {
      hint: 'Send the workspace again and submit with the new id.',
    });
  }

  attach(workspace: string): void {
    this.#attached.add(workspace);
  }

  /** Its job is done. */
  release(workspace: string): void {
    this.#attached.delete(workspace);
    this.#drop(workspace);
  }

  /** Deletes one whose job was refused: nobody can hand it in any more. */
  refuse(workspace: string): void {
    if (!this.#attached.has(workspace) && this.#spool.hasWorkspace(workspace)) this.#drop(workspace);
  }

  /** Resolves when nothing is being deleted any more. */
  async close(): Promise<void> {
    await Promise.all(this.#deleting);
  }

  /** What cannot be deleted now is swept by prune(), as no job has it any more. */
  #drop(workspace: string): void {
    const deletion = this.#spool.deleteWorkspace(workspace).catch(() => {});
    this.#deleting.add(deletion);
    void deletion.then(() => this.#deleting.delete(deletion));
  }
}
