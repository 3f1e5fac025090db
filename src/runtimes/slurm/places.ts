/** Where agents have their files, and how what happens there gets known here. */
import { lstat, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { archive, extract, type Files } from '../process/files.ts';
import type { SlurmJob } from './commands.ts';
import type { AgentFolders } from './folder.ts';
import { bringPrograms, type Program } from './programs.ts';
import { batchScript } from './script.ts';

export interface Place {
  /** What is known here of agents. */
  readonly folders: AgentFolders;
  /** The folder of an agent on its node. */
  onNode(agent: AgentId): string;
  /** Where an agent tells on its node that it begins and ends. */
  marksOnNode(agent: AgentId): string;
  /** The path of a program on the node. */
  program(program: Pick<Program, 'path'>): string;
  /** Brings programs to where nodes see them, before Slurm is asked; what cannot go there yet is brought by `follow`. */
  bring(programs: readonly Program[]): Promise<void>;
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

  readonly #clock: Clock;

  constructor(folders: AgentFolders, clock: Clock) {
    this.folders = folders;
    this.#clock = clock;
  }

  onNode(agent: AgentId): string {
    return this.folders.of(agent);
  }

  marksOnNode(): string {
    return this.folders.marks;
  }

  program({ path }: Pick<Program, 'path'>): string {
    return join(this.folders.programs, path);
  }

  async bring(programs: readonly Program[]): Promise<void> {
    if (programs.length === 0) return;
    await mkdir(this.folders.programs, { recursive: true, mode: 0o700 });
    await bringPrograms(this.folders.programs, programs, this.#clock.wall());
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
