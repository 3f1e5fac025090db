/**
 * The folder of an agent, on a file system that the nodes share. It holds all that a new manager needs to continue, and speaks for
 * itself after Slurm has forgotten the job.
 *
 * ```
 * FOLDER/OWNER/agents/AGENT/   spec.json     the intent, written before Slurm is asked
 *                              run.sh        the batch script; supervise.sh, inside.sh: what it starts
 *                              started       made by the first start: Slurm may start a job a second time
 *                              ending        Slurm has begun to end the job
 *                              again         a second start was refused
 *                              unfit         what was granted on the node is not fit for a job
 *                              stdin         the gate's standard input, a FIFO that only its node can use
 *                              log/          stdout and stderr, as in `process/supervisor.ts`
 *                              work home tmp what the job may write
 * FOLDER/OWNER/marks/AGENT.where   job id, node and devices, once it runs
 *                    AGENT.exit    exit code of the first process, and `oom`: one folder for all, so that one watch sees both
 * FOLDER/OWNER/programs/       see `programs.ts`
 * ```
 */
import { existsSync } from 'node:fs';
import { chmod, mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { codeOf, OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import { makeFolderLater, syncFolderLater } from '../../system/files.ts';
import { removeTree, whyStuck } from '../../system/foreign-tree.ts';
import { jsonOf } from '../../system/json.ts';
import { readOr, unread } from '../../system/process-identity.ts';
import type { Unfit } from '../avoided.ts';
import { FirstLook, removeDrafts, unfinished } from '../first-look.ts';
import type { Where } from './states.ts';

const intent = z.object({
  agent: z.string(),
  pool: z.string(),
  slot: z.string(),
  fingerprint: z.string(),
  sandbox: z.enum(['bubblewrap', 'apptainer', 'podman', 'pyxis', 'none']),
  /** What its node needs of this host. */
  programs: z.array(z.object({ file: z.string(), container: z.string(), path: z.string() })).default([]),
});
/** What was decided about a sandbox before Slurm was asked. */
export type Intent = z.infer<typeof intent>;

/** The folders of one owner. */
export class AgentFolders {
  readonly #agents: string;
  readonly #firstLook = new FirstLook();
  /** Where agents begin and end. */
  readonly marks: string;
  /** Programs that agents need. */
  readonly programs: string;

  constructor(folder: string, owner: string) {
    this.#agents = join(folder, owner, 'agents');
    this.marks = join(folder, owner, 'marks');
    this.programs = join(folder, owner, 'programs');
  }

  of(agent: AgentId): string {
    return join(this.#agents, agent);
  }

  /** @throws OnejobError E_FILES */
  async open(): Promise<void> {
    try {
      for (const path of [this.#agents, this.marks]) await makeFolderLater(path);
    } catch (cause) {
      throw new OnejobError('E_FILES', `Cannot make ${this.#agents}: ${codeOf(cause)}.`, {
        hint: 'Write a "folder" into the runtime that this user can write to, here and on the nodes.',
        retry: true,
        cause,
      });
    }
  }

  /** Makes the folder with these files, in one step; without any, what the job may write is elsewhere. */
  async make(about: Intent, files: Readonly<Record<string, string>>): Promise<void> {
    await this.#firstLook.end();
    await this.open();
    const draft = join(this.#agents, unfinished + about.agent);
    await mkdir(join(draft, 'log'), { recursive: true, mode: 0o700 });
    if (Object.keys(files).length > 0) {
      for (const name of ['work', 'home', 'tmp']) await mkdir(join(draft, name), { recursive: true, mode: 0o755 });
      await chmod(join(draft, 'tmp'), 0o1777);
    }
    const all = { ...files, 'spec.json': JSON.stringify(about), 'log/stdout': '', 'log/stderr': '' };
    // Without its intent nobody would know what Slurm runs after a power cut of this host.
    for (const [name, text] of Object.entries(all))
      await writeFile(join(draft, name), text, { mode: 0o600, flush: name === 'spec.json' });
    await syncFolderLater(draft);
    // Long enough for any exit code, so that it can be overwritten in place on a full disk.
    await writeFile(join(this.marks, `${about.agent}.exit`), '-------\n', { mode: 0o600 });
    await rename(draft, this.of(about.agent));
    await syncFolderLater(this.#agents);
  }

  /** null: the agent has no folder. @throws OnejobError E_SANDBOX_UNREAD if the folder cannot be read now */
  intentOf(agent: AgentId): Intent | null {
    const text = readOr(join(this.of(agent), 'spec.json'), null);
    return text === null ? null : (intent.safeParse(jsonOf(text)).data ?? null);
  }

  /** @throws OnejobError E_SANDBOX_LOST */
  require(agent: AgentId): Intent {
    const about = this.intentOf(agent);
    if (about !== null) return about;
    throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has a folder in ${this.#agents}.`);
  }

  /** @throws OnejobError E_SANDBOX_UNREAD if that cannot be read: then nothing is known (S6) */
  async agents(): Promise<AgentId[]> {
    await this.#firstLook.sweep(() => removeDrafts(this.#agents, (agent) => this.#unmark(agent)));
    try {
      return (await readdir(this.#agents)).filter((name) => !name.startsWith('.'));
    } catch (error) {
      const folder = join(this.#agents, '../..');
      if (codeOf(error) === 'EACCES')
        throw new OnejobError('E_SANDBOX_UNREAD', `This user may not read ${this.#agents}.`, {
          hint: 'Write a "folder" into the runtime that this user can write to, here and on the nodes.',
          retry: true,
          cause: error,
        });
      if (codeOf(error) !== 'ENOENT') throw unread(this.#agents, error);
      if (existsSync(folder)) return [];
      const hint = 'Is its file system mounted here? If so, write a "folder" into the runtime that this user can make.';
      throw new OnejobError('E_SANDBOX_UNREAD', `There is no folder ${folder}.`, { hint, retry: true, cause: error });
    }
  }

  /** Removes the folder, then its marks. @throws OnejobError E_REMOVE */
  async remove(agent: AgentId): Promise<void> {
    const path = this.of(agent);
    const { stuck } = existsSync(path) ? await removeTree(path) : { stuck: new Map<string, number>() };
    if (stuck.size > 0) {
      const message = `Cannot remove the folder of agent ${agent}: ${whyStuck({ stuck })}.`;
      throw new OnejobError('E_REMOVE', message, { retry: true });
    }
    await this.#unmark(agent);
  }

  async #unmark(agent: AgentId): Promise<void> {
    for (const mark of ['where', 'where.new', 'exit']) await rm(join(this.marks, `${agent}.${mark}`), { force: true });
  }

  /** null: it has not started yet. */
  whereIs(agent: AgentId): Where | null {
    const [job, place, devices, ...rest] = readOr(join(this.marks, `${agent}.where`), '').split('\n');
    if (job === undefined || place === undefined || devices === undefined || rest.length === 0) return null;
    const [start = ''] = rest;
    return { job, place, devices, ...(start !== '' && { start }) };
  }

  /** Whether its batch script has begun, on any node. */
  hasStarted(agent: AgentId): boolean {
    return existsSync(join(this.of(agent), 'started'));
  }

  /** The last line that the batch script, or Slurm, has said there; at most 300 characters. */
  lastWords(agent: AgentId): string {
    const line =
      readOr(join(this.of(agent), 'batch.log'), '')
        .trim()
        .split('\n')
        .at(-1) ?? '';
    return line.replaceAll(/\p{Cc}/gu, ' ').slice(0, 300);
  }

  /** Why it did not begin on its node. */
  unfit(agent: AgentId): Unfit | null {
    const [node, why] = readOr(join(this.of(agent), 'unfit'), '').split('\n');
    return node === undefined || node === '' || why === undefined
      ? null
      : { node, why: why.replaceAll(/\p{Cc}/gu, ' ').slice(0, 300) };
  }

  wasStartedAgain(agent: AgentId): boolean {
    return existsSync(join(this.of(agent), 'again'));
  }

  /** The exit code of its first process; null: none is written. */
  exitCode(agent: AgentId): number | null {
    return this.#exit(agent)?.code ?? null;
  }

  /** Whether its first process was killed after its memory was used up. */
  ranOutOfMemory(agent: AgentId): boolean {
    return this.#exit(agent)?.oom === true;
  }

  #exit(agent: AgentId): { readonly code: number; readonly oom: boolean } | null {
    const written = /^(\d+)( oom)? *\n/.exec(readOr(join(this.marks, `${agent}.exit`), ''));
    return written === null ? null : { code: Number(written[1]), oom: written[2] !== undefined };
  }
}
