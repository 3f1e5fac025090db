/**
 * Slurm's commands, by their parsable text: it is the same from 22.05 to 24.11, and ten times faster than their JSON. Each has a
 * deadline, because a controller that is away lets a call wait for 9 s (measured with 22.05).
 */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { OnejobError } from '../../base/errors.ts';
import { type Ended, run } from '../../system/run.ts';
import { searchPath } from '../process/programs.ts';

/** A job as `squeue` shows it. */
export interface SlurmJob {
  readonly id: string;
  readonly name: string;
  /** `PENDING`, `RUNNING`, `COMPLETING`, `FAILED` and so on. */
  readonly state: string;
  /** Why it waits, or why it ended, in Slurm's word; `None`: nothing to say. */
  readonly reason: string;
  /** Its node; empty while it waits. */
  readonly node: string;
  readonly comment: string;
  /** Of what only accounting remembers: exit code and signal, such as `0:9`. */
  readonly exit?: string;
}

/** A shell script that runs next to a job, on its node. */
export interface Step {
  readonly stdin: Writable;
  readonly stdout: Readable;
  /** @throws OnejobError E_ENGINE_FAILED, E_ENGINE_UNREACHABLE if it does not exit with 0 */
  readonly ended: Promise<void>;
  stop(): void;
}

export interface SlurmCommands {
  /** The id of the new job. @throws OnejobError E_RECIPE if Slurm refuses it for good, else E_ENGINE_UNREACHABLE, E_ENGINE_FAILED */
  submit(options: readonly string[], script: string, signal: AbortSignal): Promise<string>;
  /** All jobs of this user that Slurm remembers: also ended ones, for some minutes. @throws OnejobError E_ENGINE_* */
  jobs(signal?: AbortSignal): Promise<SlurmJob[]>;
  /** Runs a shell script next to a running job, on its node. @throws OnejobError E_ENGINE_FAILED, E_ENGINE_UNREACHABLE */
  alongside(job: Pick<SlurmJob, 'id' | 'node'>, script: string, input: Uint8Array, signal: AbortSignal): Promise<void>;
  /** Starts such a script with its streams. It ends with `signal`. */
  step(job: Pick<SlurmJob, 'id' | 'node'>, script: string, signal: AbortSignal): Step;
  /** Sends a signal to the batch script of a running job only, or ends a job (null). One that has ended is not an error. @throws OnejobError E_ENGINE_* */
  cancel(id: string, signal: 'USR1' | null): Promise<void>;
  /** How the job of that name has ended in the last week, as accounting has it; null: it has none. @throws OnejobError E_ENGINE_*, also without accounting */
  accounted(name: string, signal?: AbortSignal): Promise<SlurmJob | null>;
  /** Slurm's version, such as `22.05.8`, and whether the controller answers. @throws OnejobError E_ENGINE_* */
  version(signal: AbortSignal): Promise<string>;
}

export interface CommandOptions {
  /** Name of the runtime in the config, for people. */
  readonly name: string;
  /** Folder of the commands; null: on the PATH. */
  readonly path: string | null;
  /** `SLURM_CONF`; null: the commands' own. */
  readonly conf: string | null;
}

/** ms; longer than a controller that is away lets a call wait. */
const patience = 20_000;

export function slurmCommands({ name, path, conf }: CommandOptions): SlurmCommands {
  // What the manager's environment has must not enter a job, and Slurm takes options from SBATCH_* and SQUEUE_*.
  const env: Record<string, string> = {
    PATH: path === null ? `${searchPath}:/usr/local/bin` : `${path}:${searchPath}`,
    LC_ALL: 'C',
  };
  if (conf !== null) env.SLURM_CONF = conf;
  for (const variable of ['HOME', 'USER', 'LOGNAME']) {
    const value = process.env[variable];
    if (value !== undefined) env[variable] = value;
  }
  const call = async (program: string, args: readonly string[], signal?: AbortSignal, input?: string | Uint8Array) => {
    const options = { env, timeout: patience, ...(signal !== undefined && { signal }), ...(input !== undefined && { input }) };
    const ended = await run(path === null ? program : join(path, program), args, options);
    signal?.throwIfAborted();
    return ended;
  };
  const failed = (program: string, ended: Ended): OnejobError => callFailed(name, program, ended);

  return {
    async submit(options, script, signal) {
      const ended = await call('sbatch', ['--parsable', ...options], signal, script);
      const id = /^(\d+)/.exec(ended.stdout.toString())?.[1];
      if (ended.error === null && id !== undefined) return id;
      throw isAway(ended) ? failed('sbatch', ended) : refused(name, ended);
    },
    async jobs(signal) {
      const ended = await call('squeue', ['--me', '-h', '-t', 'all', '-o', '%i|%T|%r|%N|%j|%k'], signal);
      if (ended.error !== null) throw failed('squeue', ended);
      return parseJobs(ended.stdout.toString());
    },
    async alongside(job, script, input, signal) {
      const ended = await call('srun', [...stepOf(job), '/bin/sh', '-c', script], signal, input);
      if (ended.error !== null) throw failed('srun', ended);
    },
    step(job, script, signal) {
      const program = path === null ? 'srun' : join(path, 'srun');
      const child = spawn(program, [...stepOf(job), '/bin/sh', '-c', script], { env, signal, killSignal: 'SIGKILL' });
      let stderr = '';
      child.stderr.on('data', (bytes: Buffer) => {
        stderr = (stderr + bytes.toString()).slice(-2_000);
      });
      child.stdin.on('error', () => {});
      const ended = new Promise<void>((resolve, reject) => {
        child.once('error', reject);
        child.once('close', (code) => {
          if (code === 0) resolve();
          else reject(failed('srun', { code, error: null, stdout: Buffer.alloc(0), stderr }));
        });
      });
      ended.catch(() => {});
      return { stdin: child.stdin, stdout: child.stdout, ended, stop: () => child.kill('SIGKILL') };
    },
    async cancel(id, signal) {
      const ended = await call('scancel', [...(signal === null ? [] : ['--batch', `--signal=${signal}`]), id]);
      const isOver = /Invalid job id|already completing or completed/i.test(ended.stderr);
      if (ended.error !== null && !isOver) throw failed('scancel', ended);
    },
    async accounted(job, signal) {
      // Slurm may give away an id twice: without "duplicates" the second job hides the first.
      const which = ['--duplicates', `--name=${job}`, '--starttime=now-7days'];
      const ended = await call('sacct', ['-X', '-n', '-P', ...which, '-o', 'JobID,State,ExitCode,NodeList'], signal);
      if (ended.error !== null) throw failed('sacct', ended);
      return parseAccount(job, ended.stdout.toString());
    },
    async version(signal) {
      const ended = await call('scontrol', ['show', 'config'], signal);
      if (ended.error !== null) throw failed('scontrol', ended);
      return /^SLURM_VERSION\s*=\s*(\S+)/m.exec(ended.stdout.toString())?.[1] ?? 'of an unknown version';
    },
  };
}

/** Options of a step that takes nothing of what the job has. */
function stepOf({ id, node }: Pick<SlurmJob, 'id' | 'node'>): string[] {
  const where = [`--jobid=${id}`, '--overlap', '--nodes=1', '--ntasks=1', `--nodelist=${node}`];
  return [...where, '--mem=0', '--gres=none', '--quiet'];
}

/** Lines of `squeue -o '%i|%T|%r|%N|%j|%k'`. A comment may contain the separator. */
export function parseJobs(text: string): SlurmJob[] {
  return text.split('\n').flatMap((line): SlurmJob[] => {
    const [id, state, reason, node, name, ...comment] = line.split('|');
    if (id === undefined || state === undefined || reason === undefined || node === undefined || name === undefined) return [];
    return [{ id, state, reason, node, name, comment: comment.join('|') }];
  });
}

/** Lines of `sacct -P -o JobID,State,ExitCode,NodeList` of one name: the last start that is over. */
export function parseAccount(name: string, text: string): SlurmJob | null {
  const ends = text.split('\n').flatMap((line): SlurmJob[] => {
    // The state may be followed by more, such as "CANCELLED by 1000".
    const [id = '', state = '', exit, node] = line.replace(/^(\d+\|\w+)[^|]*/, '$1').split('|');
    if (exit === undefined || node === undefined || /^(PENDING|RUNNING|SUSPENDED|REQUEUED)$/.test(state)) return [];
    return [{ id, name, state, reason: 'None', node, comment: '', exit }];
  });
  return ends.at(-1) ?? null;
}

/** Whether the controller could not be reached, or took too long. */
function isAway({ code, error, stderr }: Ended): boolean {
  const isLate = error !== null && (error.killed === true || code === null);
  return (
    isLate ||
    /Unable to contact slurm controller|Connection refused|timed out|Zero Bytes were transmitted|slurm_persist/i.test(stderr)
  );
}

function callFailed(name: string, program: string, ended: Ended): OnejobError {
  if (ended.code === 'ENOENT')
    return new OnejobError(
      'E_ENGINE_UNREACHABLE',
      `Runtime ${name} cannot be reached: the program "${program}" is not installed.`,
      {
        hint: 'Run onejob on a login node, or write "path" into the runtime: the folder of sbatch.',
        retry: true,
      },
    );
  const why = lastWords(ended);
  if (isAway(ended))
    return new OnejobError('E_ENGINE_UNREACHABLE', `Runtime ${name} cannot be reached: ${program} says "${why}".`, {
      hint: 'Type "scontrol ping".',
      retry: true,
    });
  return new OnejobError('E_ENGINE_FAILED', `Runtime ${name} failed: ${program} says "${why}".`, { retry: true });
}

/** Text of what may be different next time: limits of an account, a partition that is down. */
const mayPass =
  /QOS|limit|temporarily|try again|socket timed out|not currently available|Requested node configuration is not available now/i;

function refused(name: string, ended: Ended): OnejobError {
  if (ended.code === 'ENOENT') return callFailed(name, 'sbatch', ended);
  const why = lastWords(ended).replace(/^Batch job submission failed: /, '');
  return new OnejobError('E_RECIPE', `Slurm (runtime ${name}) does not take the agent: ${why}.`, {
    hint: 'Compare "slurm", "devices", "cpus" and "memory" of the pool with what "sinfo" and "scontrol show partition" show.',
    retry: mayPass.test(why),
  });
}

/** The last line of what it said, without the name of the program. */
function lastWords({ stderr, code }: Ended): string {
  const line = stderr.trim().split('\n').at(-1) ?? '';
  return line === '' ? `nothing, and ended with ${code ?? 'a signal'}` : line.replace(/^\w+: (error: )?/, '').replace(/\.$/, '');
}
