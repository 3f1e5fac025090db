/**
 * Folders of the nodes themselves, where nothing is shared. A step of Slurm next to each agent (`srun --overlap`) tells what happens
 * there, and this host keeps it as a shared folder would have it: output, exit code, node. Files go through steps, too.
 *
 * What is kept here says how far it is, so a restarted manager continues from there. An agent that has ended stays on its node, with its
 * grant, until all of it was fetched.
 */
import { createReadStream } from 'node:fs';
import { type FileHandle, open, readdir, rename, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { codeOf, OnejobError } from '../../base/errors.ts';
import { quoted } from '../../base/quoted.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { filesKept } from '../process/supervisor.ts';
import type { SlurmCommands, SlurmJob } from './commands.ts';
import type { AgentFolders } from './folder.ts';
import type { Place } from './places.ts';
import { type Program, takeProgram } from './programs.ts';
import { askedBy, exitFolder } from './script.ts';
import { commentOf } from './states.ts';

interface NodePlaceParts {
  readonly clock: Clock;
  readonly commands: SlurmCommands;
  /** What is kept here. */
  readonly folders: AgentFolders;
  /** A folder that each node has, such as /tmp. */
  readonly base: string;
  readonly owner: string;
  /** An agent has begun or ended. */
  readonly heard: () => void;
}

/** s that an agent which has ended waits on its node to be fetched. */
const lingers = 600;
/** ms to tell it that nothing of it is needed any more. */
const leaveLimit = 5_000;

export class NodePlace implements Place {
  readonly folders: AgentFolders;
  readonly #parts: NodePlaceParts;
  /** Agents whose step runs. */
  readonly #relays = new Map<AgentId, AbortController>();

  constructor(parts: NodePlaceParts) {
    this.#parts = parts;
    this.folders = parts.folders;
  }

  onNode(agent: AgentId): string {
    return join(this.#parts.base, `onejob-${this.#parts.owner}-${agent}`);
  }

  marksOnNode(agent: AgentId): string {
    return this.onNode(agent);
  }

  program({ path }: Pick<Program, 'path'>): string {
    return join(this.#programs, path);
  }

  async bring(): Promise<void> {}

  get #programs(): string {
    return join(this.#parts.base, `onejob-${this.#parts.owner}-programs`);
  }

  batch(agent: AgentId, scripts: Readonly<Record<string, string>>): string {
    const folder = quoted(this.onNode(agent));
    const end = `end_of_file_${agent}`;
    const files = Object.entries(scripts).flatMap(([name, text]) => [
      `cat >${quoted(name)} <<'${end}'`,
      text.endsWith('\n') ? text.slice(0, -1) : text,
      end,
    ]);
    return [
      '#!/bin/sh',
      'umask 077',
      // What was killed here has left its folder. Its lock is free once no process of it is left.
      `for d in ${quoted(join(this.#parts.base, `onejob-${this.#parts.owner}-`))}*; do`,
      '  [ ! -O "$d/lock" ] || ! flock -n "$d/lock" true || rm -rf "$d"',
      'done',
      // Slurm keeps nothing else of it that this host could read once it has ended.
      `tell() { scontrol update "jobid=$SLURM_JOB_ID" "comment=${commentOf(this.#parts.owner)} $(printf %s "$1" | cut -c -300)" >/dev/null 2>&1; }`,
      // If another user made it, that user could read what is written there.
      `w=$(mkdir ${folder} 2>&1) || { tell "$w"; exit ${exitFolder}; }`,
      `exec 9>${folder}/lock && flock 9 || exit ${exitFolder}`,
      `cd ${folder} && mkdir -m 755 log work home tmp && chmod 1777 tmp || exit ${exitFolder}`,
      ': >log/stdout; : >log/stderr',
      `printf '%s\\n' '-------' >${quoted(`${agent}.exit`)}`,
      ...files,
      'cat /proc/sys/kernel/random/uuid >id',
      // Only this script gets the signal.
      `trap 'kill -${askedBy} "$r"' ${askedBy}`,
      `trap 'ending=1; kill -TERM "$r"' TERM`,
      '/bin/sh ./run.sh >words 2>&1 & r=$!',
      'while kill -0 "$r" 2>/dev/null; do wait "$r"; c=$?; done',
      // The grant is kept until its files were fetched. Where Slurm takes it, there is only time to tell the exit code, if there is one.
      `[ -s ${agent}.where ] || [ -s unfit ] || { tell "$(tail -n 1 words)"; : >left; }`,
      `until='[ -e left ]'; [ -z "$ending" ] || until='[ -e told ] || ! grep -q "^[0-9]" ${agent}.exit'`,
      `n=0; until eval "$until" || [ "$n" -ge ${lingers * 5} ]; do sleep 0.2; n=$((n + 1)); done`,
      `cd / && rm -rf ${folder}`,
      'exit "$c"',
      '',
    ].join('\n');
  }

  follow(agent: AgentId, job: SlurmJob): void {
    if (this.#relays.has(agent) || this.folders.intentOf(agent) === null || this.folders.exitCode(agent) !== null) return;
    const stop = new AbortController();
    this.#relays.set(agent, stop);
    // One that ends early is started again by the next look at the queue.
    void this.#relay(agent, job, stop.signal)
      .catch(() => {})
      .finally(() => this.#relays.delete(agent));
  }

  async put(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    const step = this.#step(agent, 'exec tar -x -f - --no-same-owner', signal);
    // A failed tar stops reading. Its own words explain more than a broken pipe.
    const [, ended] = await Promise.allSettled([pipeline(files, step.stdin), step.ended]);
    signal.throwIfAborted();
    if (ended.status === 'rejected') throw this.#failed(agent, 'put files into', ended.reason);
  }

  async get(agent: AgentId, folder: string, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    const names = only?.map((name) => quoted(`./${name}`)).join(' ') ?? '.';
    // 1: a file changed while it was read. 2: one could not be read, or is missing. The archive is complete.
    const step = this.#step(agent, `cd -- ${quoted(folder)} && tar -c -f - -- ${names} 2>/dev/null; [ $? -le 2 ]`, signal);
    const out = new PassThrough();
    step.stdin.end();
    step.stdout.pipe(out, { end: false });
    step.ended.then(
      () => out.end(),
      (error: unknown) => out.destroy(this.#failed(agent, 'read files from', error)),
    );
    out.on('close', () => step.stop());
    return out;
  }

  async has(agent: AgentId, folder: string, signal: AbortSignal): Promise<boolean> {
    const path = quoted(folder);
    const step = this.#step(agent, `if [ -d ${path} ] && [ ! -L ${path} ]; then echo yes; else echo no; fi`, signal);
    step.stdin.end();
    let said = '';
    for await (const bytes of step.stdout) said += String(bytes);
    await step.ended;
    return said === 'yes\n';
  }

  async leave(agent: AgentId, job: SlurmJob): Promise<void> {
    this.#relays.get(agent)?.abort();
    using limit = deadline(this.#parts.clock, leaveLimit);
    const script = `: >${quoted(join(this.onNode(agent), 'left'))}`;
    await this.#parts.commands.alongside(job, script, new Uint8Array(0), limit.signal).catch(() => {});
  }

  close(): void {
    for (const relay of this.#relays.values()) relay.abort();
  }

  #step(agent: AgentId, script: string, signal: AbortSignal) {
    const where = this.folders.whereIs(agent);
    if (where === null) throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} is on no node.`);
    const inside = `cd ${quoted(join(this.onNode(agent), 'work'))} && ${script}`;
    return this.#parts.commands.step({ id: where.job, node: where.place }, inside, signal);
  }

  #failed(agent: AgentId, what: string, cause: unknown): OnejobError {
    const why = cause instanceof Error ? cause.message.replace(/\.$/, '') : String(cause);
    return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, { cause, retry: true });
  }

  /** Runs for as long as the agent does, and keeps here what it hears. */
  async #relay(agent: AgentId, job: SlurmJob, signal: AbortSignal): Promise<void> {
    const here = this.folders.of(agent);
    if (this.folders.whereIs(agent) === null) await this.#bringTo(job, this.folders.intentOf(agent)?.programs ?? [], signal);
    const sizes = await sizesIn(join(here, 'log'));
    const step = this.#parts.commands.step(job, relayScript(this.onNode(agent), agent, sizes), signal);
    step.stdin.end();
    await using kept = new KeptFiles(join(here, 'log'));
    const read = recordsOf(step.stdout);
    for await (const { words, bytes } of read) {
      const [kind, ...rest] = words;
      if (kind === 'start') await this.#started(agent, job, rest);
      else if (kind === 'log') await kept.write(rest[0] ?? '', Number(rest[1]), bytes);
      else if (kind === 'unfit') await writeWhole(join(here, 'unfit'), `${job.node}\n${rest.join(' ')}\n`);
      else if (kind === 'exit') {
        for (const stream of ['stdout', 'stderr']) await writeFile(join(here, 'log', `${stream}.end`), '');
        await writeWhole(join(this.folders.marks, `${agent}.exit`), `${rest.join(' ')}\n`);
      }
      if (kind !== 'log') this.#parts.heard();
    }
    await step.ended;
  }

  /** The batch script waits for them. */
  async #bringTo(job: SlurmJob, programs: readonly Program[], signal: AbortSignal): Promise<void> {
    for (const program of programs) {
      const step = this.#parts.commands.step(job, takeProgram(this.#programs, program), signal);
      // One that is there already is not read.
      await pipeline(createReadStream(program.file), step.stdin).catch(() => {});
      await step.ended;
    }
  }

  /** A start with another id than the one before is a second one, of which nothing is believed. */
  async #started(agent: AgentId, job: SlurmJob, [id = '', devices = '']: readonly string[]): Promise<void> {
    const here = this.folders.of(agent);
    const before = this.folders.whereIs(agent);
    if (before !== null && before.start !== id) {
      await writeFile(join(here, 'again'), '');
      throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} was started a second time.`);
    }
    await writeFile(join(here, 'started'), '');
    const gpus = devices === '-' ? '' : devices;
    await writeWhole(join(this.folders.marks, `${agent}.where`), `${job.id}\n${job.node}\n${gpus}\n${id}\n`);
  }
}

async function writeWhole(path: string, text: string): Promise<void> {
  await writeFile(`${path}.new`, text, { mode: 0o600 });
  await rename(`${path}.new`, path);
}

/** Sizes of the log's files by name, as far as they are kept here. */
async function sizesIn(folder: string): Promise<ReadonlyMap<string, number>> {
  const names = (await readdir(folder)).filter((name) => /^std(out|err)(\.\d+)?$/.test(name));
  return new Map(await Promise.all(names.map(async (name) => [name, (await stat(join(folder, name))).size] as const)));
}

/**
 * What a step prints on the node: `start ID GPUS`, `log NAME FROM BYTES` with that many bytes and an end of line, `unfit WHY`, and at
 * last `exit CODE`, or `exit CODE oom`. Slurm keeps back a line that has not ended (seen with 22.05 and 24.11); its --unbuffered gives
 * the step a terminal instead. A file is opened before it is measured, so that it has what was promised even if the supervisor removes it.
 */
export function relayScript(folder: string, agent: AgentId, sizes: ReadonlyMap<string, number>): string {
  const known = [...sizes].map(([name, size]) => `p_${name.replace('.', '_')}=${size}`).join(' ');
  // Slurm may end it together with the job.
  return `cd ${quoted(folder)} || exit 1
trap '' TERM
${known}
t=0
while :; do
  more= e=
  if [ "$t" = 0 ] && [ -s ${agent}.where ]; then
    t=1; IFS= read -r i <id; { read -r g; read -r g; read -r g; } <${agent}.where; echo "start $i \${g:--}"
  fi
  if [ -s unfit ]; then { read -r u; IFS= read -r u; } <unfit; echo "unfit $u"; exit 0; fi
  IFS= read -r e <${agent}.exit; case $e in [0-9]*) ;; *) e= ;; esac
  for f in log/stdout log/stdout.[0-9]* log/stderr log/stderr.[0-9]*; do
    command exec 7<"$f" 2>/dev/null || continue
    k=$(echo "\${f#log/}" | tr . _); eval "p=\\\${p_$k:-0}"
    s=$(stat -L -c %s /dev/fd/7); n=$((s - p)); [ "$n" -le 1048576 ] || n=1048576
    [ "$n" -gt 0 ] || continue
    echo "log \${f#log/} $p $n"; tail -c "+$((p + 1))" <&7 | head -c "$n"; echo
    eval "p_$k=$((p + n))"; more=1
  done
  if [ -n "$e" ] && [ -z "$more" ]; then
    w=$((\${w:-0} + 1))
    if { [ -e log/stdout.end ] && [ -e log/stderr.end ]; } || [ "$w" -gt 10 ]; then echo "exit $e"; : >told; exit 0; fi
  fi
  [ -n "$more" ] || sleep 0.2
done`;
}

/** A line of a step, and the bytes that it announces. */
interface Told {
  readonly words: readonly string[];
  readonly bytes: Uint8Array;
}

/** What a step has printed, record by record. A last one that is cut off is dropped. */
export async function* recordsOf(stream: AsyncIterable<Uint8Array>): AsyncGenerator<Told> {
  let rest = Buffer.alloc(0);
  let words: string[] | null = null;
  for await (const bytes of stream) {
    rest = Buffer.concat([rest, bytes]);
    for (;;) {
      if (words === null) {
        const end = rest.indexOf(10);
        if (end === -1) break;
        words = rest.subarray(0, end).toString('utf8').split(' ');
        rest = rest.subarray(end + 1);
      }
      const size = words[0] === 'log' ? Number(words[3]) : null;
      if (size !== null && rest.length < size + 1) break;
      yield { words, bytes: rest.subarray(0, size ?? 0) };
      rest = rest.subarray(size === null ? 0 : size + 1);
      words = null;
    }
  }
}

/** The log's files as they are kept here. */
class KeptFiles {
  readonly #folder: string;
  readonly #open = new Map<string, FileHandle>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** @throws RangeError for the name of something else than a log file */
  async write(name: string, from: number, bytes: Uint8Array): Promise<void> {
    if (!/^std(out|err)(\.\d+)?$/.test(name) || !(from >= 0)) throw new RangeError(`not a file of a log: ${name}`);
    const file = this.#open.get(name) ?? (await this.#enter(name));
    await file.write(bytes, 0, bytes.length, from);
  }

  async #enter(name: string): Promise<FileHandle> {
    const path = join(this.#folder, name);
    const file = await open(path, 'r+').catch((error: unknown) => {
      if (codeOf(error) !== 'ENOENT') throw error;
      return open(path, 'w+', 0o600);
    });
    this.#open.set(name, file);
    await this.#dropOldest(name.replace(/\..*/, ''));
    return file;
  }

  /** As many files are kept as the supervisor keeps. */
  async #dropOldest(stream: string): Promise<void> {
    const isOne = new RegExp(`^${stream}(\\.\\d+)?$`);
    const startOf = (name: string): number => Number(name.slice(stream.length + 1));
    const names = (await readdir(this.#folder)).filter((name) => isOne.test(name)).toSorted((a, b) => startOf(b) - startOf(a));
    for (const name of names.slice(filesKept)) {
      await this.#open.get(name)?.close();
      this.#open.delete(name);
      await unlink(join(this.#folder, name));
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const file of this.#open.values()) await file.close();
  }
}
