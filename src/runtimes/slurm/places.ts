/** Where agents have their files, and how what happens there gets known here. */
import { lstat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { AgentId } from '../../core/slot.ts';
import { archive, extract, type Files } from '../process/files.ts';
import type { SlurmJob } from './commands.ts';
import type { AgentFolders } from './folder.ts';
import { batchScript } from './script.ts';

export interface Place {
  /** What is known here of agents. */
  readonly folders: AgentFolders;
  /** The folder of an agent on its node. */
  onNode(agent: AgentId): string;
  /** Where an agent tells on its node that it begins and ends. */
  marksOnNode(agent: AgentId): string;
  /** The text that Slurm gets. It contains no secret. `scripts`: by name. */
  batch(agent: AgentId, scripts: Readonly<Record<string, string>>): string;
  /** Its batch script runs: from now on what happens there is known here. May be called again and again. */
  follow(agent: AgentId, job: SlurmJob): void;
  /** @throws OnejobError E_FILES */
  put(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void>;
  get(agent: AgentId, folder: string, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable>;
  /** Whether the workspace has such a folder; a link to one does not count. */
  has(agent: AgentId, folder: string, signal: AbortSignal): Promise<boolean>;
  /** Nothing of the agent is needed on its node any more. Fails silently: a job that is left is ended. */
  leave(agent: AgentId, job: SlurmJob): Promise<void>;
  close(): void;
}

/** A folder that this host and all nodes share. */
export class SharedPlace implements Place {
  readonly folders: AgentFolders;

  constructor(folders: AgentFolders) {
    this.folders = folders;
  }

  onNode(agent: AgentId): string {
    return this.folders.of(agent);
  }

  marksOnNode(): string {
    return this.folders.marks;
  }

  batch(agent: AgentId): string {
    return batchScript(this.folders.of(agent));
  }

  follow(): void {}

  put(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    return extract(this.#filesOf(agent), files, signal);
  }

  async get(agent: AgentId, folder: string, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    return archive(this.#filesOf(agent), folder, signal, only);
  }

  async has(agent: AgentId, folder: string): Promise<boolean> {
    // A link would lead to wherever the job wants.
    const entry = await lstat(join(this.folders.of(agent), 'work', folder)).catch(() => null);
    return entry?.isDirectory() === true;
  }

  async leave(): Promise<void> {}

  close(): void {}

  #filesOf(agent: AgentId): Files {
    return { agent, files: this.folders.of(agent), uid: null, confine: [], inherited: [] };
  }
}
