/**
 * The two commands of a machine: `onejob cloud join` exchanges the token for the machine's config and secrets, once, and puts them in
 * memory; `onejob cloud attend` then does what the controller asks, see attend.ts.
 */
import { appendFileSync, existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { mkdir, rename, statfs, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { createClient } from '../../api/client.ts';
import { attempt, messageOf, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, doubling, sleep } from '../../core/clock.ts';
import { jsonOf } from '../../system/json.ts';
import { run as runProgram } from '../../system/run.ts';
import { type AttendParts, attend, depart } from './attend.ts';
import type { Memory } from './attend-state.ts';
import { createJoinClient, type JoinClient } from './client.ts';
import { interruptionsOf } from './interruptions.ts';
import { localDaemon } from './local-daemon.ts';
import { readMail } from './mail.ts';
import { createMailClient } from './mail-client.ts';
import { type JoinAnswer, type JoinFile, joinAnswer, type MachineFile, machineFile, newSecret, secretText } from './protocol.ts';
import { createTunnel, type TunnelParts } from './tunnel.ts';

export interface MachineParts {
  /** Path of `machine.json`. */
  readonly file: string;
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** For the metadata service, which no proxy reaches. */
  readonly metadata: typeof fetch;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  /** Of this onejob. */
  readonly version: string;
  /** A folder that stands for `/`. For tests; default `/`. */
  readonly root?: string;
}

/** Where the machine's config and secrets are: in memory, for root only. */
export const memory = '/run/onejob-cloud';
/** Folders that files of the controller may be in, or below. */
export const folders = [memory, '/etc/onejob'] as const;

/** ms for the exchange, with all tries. */
const patience = 900_000;
/** ms until another try: the first, and the longest. */
const [firstWait, longestWait] = [2_000, 60_000];
/** Of a file system in memory, see statfs(2). */
const tmpfs = 0x01021994;

/** Reads `machine.json`. @throws OnejobError E_USAGE */
function readMachine(file: string): MachineFile {
  const text = attempt(() => readFileSync(file, 'utf8'));
  const found = machineFile.safeParse(jsonOf(text ?? ''));
  if (found.success) return found.data;
  const issue = found.error.issues[0];
  const why =
    text === null ? 'it cannot be read' : issue === undefined ? 'it is not JSON' : `${issue.path.join('.')}: ${issue.message}`;
  throw new OnejobError('E_USAGE', `Cannot use ${file}: ${why}.`, { hint: 'cloud-init writes it on a machine that onejob makes.' });
}

/** What the machine needs to talk to its controller after the join; null before it. */
export function readJoined(
  root = '/',
): { readonly credential: string; readonly beat: number; readonly tunnel?: boolean | undefined } | null {
  const credential = attempt(() => readFileSync(join(root, memory, 'credential'), 'utf8').trim()) ?? '';
  const beat = joinAnswer
    .pick({ beat: true, tunnel: true })
    .safeParse(jsonOf(attempt(() => readFileSync(join(root, memory, 'joined.json'), 'utf8')) ?? ''));
  return beat.success && secretText.safeParse(credential).success
    ? { ...beat.data, credential, beat: beat.data.beat * 1000 }
    : null;
}

/**
 * Joins, and writes what came. Idempotent until the machine has told that it joined: it keeps its credential, so that it may ask
 * again when an answer was lost.
 * @throws OnejobError E_CLOUD_DENIED if the controller does not expect it, E_CLOUD_UNREACHABLE, E_CLOUD_ANSWER, E_FILES, E_USAGE
 */
export async function joinController(parts: MachineParts, signal: AbortSignal): Promise<void> {
  const { file, version, root = '/' } = parts;
  const machine = readMachine(file);
  const { token } = machine;
  const folder = join(root, memory);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  // Secrets must not get onto a disk, which somebody may copy.
  if (root === '/' && (await statfs(folder)).type !== tmpfs)
    throw new OnejobError('E_FILES', `Cannot keep secrets in ${folder}: it is not a file system in memory.`, {
      hint: 'Use an image whose /run is a tmpfs, as systemd makes it.',
    });
  const credential = readCredential(folder) ?? newSecret();
  await put(join(folder, 'credential'), `${credential}\n`, 0o600);
  const client = clientOf(machine, parts);
  const answer = await persistently(() => client.join({ token, credential, version }, signal), parts, signal);
  for (const one of answer.files) await putFile(one, root);
  await put(join(folder, 'config.yml'), answer.config, 0o600);
  await put(join(folder, 'joined.json'), `${JSON.stringify({ beat: answer.beat, tunnel: answer.tunnel })}\n`, 0o600);
  // From now on the boot script calls as this machine.
  await put(join(folder, 'auth'), `authorization: Bearer ${credential}\n`, 0o600);
}

const memoryFile = z.object({
  goal: z.enum(['stay', 'drain', 'end']),
  isDown: z.boolean(),
  notice: z.number().nullable(),
}) satisfies z.ZodType<Memory>;

export interface AttendMachineParts extends MachineParts {
  /** Of this machine's daemon. */
  readonly socket: string;
  readonly upgrade: TunnelParts['upgrade'];
}

/**
 * Returns once `signal` aborts, or after it has ended the machine. If the system then shuts down, it first ends the jobs that run.
 * @throws OnejobError E_USAGE
 */
export async function attendMachine(parts: AttendMachineParts, signal: AbortSignal): Promise<void> {
  const { file, clock, log, version, socket, metadata, upgrade, root = '/' } = parts;
  const machine = readMachine(file);
  const joined = readJoined(root);
  if (joined === null) {
    const hint = 'After a reboot that stays so: its secrets were in memory, and the controller replaces it.';
    throw new OnejobError('E_USAGE', 'Cannot attend to this machine: it has not joined its controller.', { hint });
  }
  const daemon = createClient({ socket, version });
  const path = join(root, memory, 'attend.json');
  const all: AttendParts = {
    machine,
    ...joined,
    clock,
    log,
    tunnel:
      joined.tunnel && machine.url !== null
        ? createTunnel({ machine: { ...machine, url: machine.url }, credential: joined.credential, socket, upgrade, clock, log })
        : null,
    client: clientOf(machine, parts),
    daemon: localDaemon(daemon, { clock, log }),
    interruptions: interruptionsOf(machine.cloud, { clock, fetch: metadata }),
    memory: {
      read: () => memoryFile.safeParse(jsonOf(attempt(() => readFileSync(path, 'utf8')) ?? '')).data ?? null,
      write(value) {
        writeFileSync(`${path}.new`, JSON.stringify(value), { mode: 0o600 });
        renameSync(`${path}.new`, path);
      },
    },
    async powerOff() {
      const ended = await runProgram('systemctl', ['poweroff'], { timeout: 60_000 });
      if (ended.error !== null) throw ended.error;
    },
  };
  try {
    await attend(all, signal);
    // Its unit comes after the daemon's, so that systemd stops the daemon after this.
    const state = await runProgram('systemctl', ['is-system-running'], { timeout: 5_000 });
    if (state.stdout.toString().trim() === 'stopping') await depart(all);
  } finally {
    daemon.close();
  }
}

/** How the machine speaks with its controller. */
function clientOf(machine: MachineFile, { clock, fetch, metadata, root = '/' }: MachineParts): JoinClient {
  const { run, url, cloud } = machine;
  if (url !== null) return createJoinClient({ url, run, clock, fetch });
  return createMailClient({
    machine,
    clock,
    mail: (signal) => readMail(cloud, { clock, fetch: metadata }, signal),
    write: (line) => appendFileSync(join(root, 'dev/console'), `\n${line}\n`),
  });
}

function readCredential(folder: string): string | null {
  const path = join(folder, 'credential');
  const found = secretText.safeParse(existsSync(path) ? attempt(() => readFileSync(path, 'utf8').trim()) : null);
  return found.success ? found.data : null;
}

async function persistently(
  ask: () => Promise<JoinAnswer>,
  { clock, log }: MachineParts,
  signal: AbortSignal,
): Promise<JoinAnswer> {
  const until = clock.now() + patience;
  for (let failures = 1; ; failures++) {
    try {
      return await ask();
    } catch (error) {
      signal.throwIfAborted();
      const wait = doubling(firstWait, longestWait, failures);
      if (!(error instanceof OnejobError) || !error.retry || clock.now() + wait > until) throw error;
      log.warn('the controller did not answer; trying again', { reason: error.message, in: `${wait / 1000} s` });
      await sleep(clock, wait, signal);
      signal.throwIfAborted();
    }
  }
}

/** @throws OnejobError E_FILES */
async function putFile({ path, mode, content }: JoinFile, root: string): Promise<void> {
  const isAllowed = resolve(path) === path && folders.some((folder) => path.startsWith(`${folder}/`));
  if (!isAllowed) {
    const hint = `Files of a machine may be in ${folders.join(' and ')}.`;
    throw new OnejobError('E_FILES', `The controller sent a file for ${JSON.stringify(path)}, which is not its place.`, { hint });
  }
  await put(join(root, path), Buffer.from(content, 'base64'), Number.parseInt(mode, 8));
}

/** In one step: nobody sees a part of it, or reads it before it has its mode. @throws OnejobError E_FILES */
async function put(path: string, content: string | Uint8Array, mode: number): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    await writeFile(`${path}.new`, content, { mode });
    await rename(`${path}.new`, path);
  } catch (error) {
    throw new OnejobError('E_FILES', `Cannot write ${path}: ${messageOf(error)}.`, { cause: error });
  }
}
