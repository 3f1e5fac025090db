/** A folder, a daemon and a terminal for pictures of real runs. What it made is gone afterwards. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Client, createClient } from '../src/api/client.ts';
import { hasCode } from '../src/base/errors.ts';
import { openTerminal, type Terminal, until } from './terminal.ts';

const root = join(import.meta.dirname, '..');
/** Stands in pictures, so it is the same on every host; taken means that somebody else makes one right now. */
const dir = '/tmp/lab';

export interface LabOptions {
  readonly columns: number;
  readonly rows: number;
}

export interface Lab {
  readonly dir: string;
  /** Where the terminal's shell is. */
  readonly work: string;
  /** Finds this checkout's `onejob`, and the lab's daemon. */
  readonly env: Readonly<Record<string, string>>;
  /** Starts the daemon; resolves once every slot has its standby. */
  up(config: string): Promise<Client>;
  readonly type: Terminal['type'];
}

/** What the terminal shows in the end, colours in it. */
export async function film(size: LabOptions, take: (lab: Lab) => Promise<void>): Promise<string> {
  mkdirSync(dir);
  await using end = new AsyncDisposableStack();
  end.defer(() => rmSync(dir, { recursive: true, force: true }));
  const work = join(dir, 'work');
  for (const name of ['bin', 'home', 'work']) mkdirSync(join(dir, name));
  symlinkSync(join(root, 'bin', 'onejob'), join(dir, 'bin', 'onejob'));
  const env = {
    PATH: `${join(dir, 'bin')}:${process.env.PATH}`,
    HOME: join(dir, 'home'),
    LANG: 'C.UTF-8',
    TERM: 'xterm-256color',
    ONEJOB_CONFIG: join(dir, 'config.yml'),
    ONEJOB_STATE_DIR: join(dir, 'state'),
    ONEJOB_SOCKET: join(dir, 'onejob.sock'),
  };
  const up = async (config: string): Promise<Client> => {
    writeFileSync(env.ONEJOB_CONFIG, config);
    const daemon = spawn('onejob', ['up', '--json'], { env, cwd: dir, stdio: ['ignore', 'pipe', 'inherit'] });
    const ended = once(daemon, 'exit');
    end.defer(async () => {
      daemon.kill('SIGTERM');
      await ended;
    });
    const client = createClient({ socket: env.ONEJOB_SOCKET, version: 'picture' });
    end.defer(() => client.close());
    // What is never read would fill the pipe, and stop the daemon in the middle of a line.
    daemon.stdout.resume();
    await Promise.race([once(daemon.stdout, 'data'), ended]);
    // Its first line may come before its socket.
    const isAbsent = (error: unknown): false => {
      if (hasCode(error, 'E_DAEMON_ABSENT')) return false;
      throw error;
    };
    await until(() => allReady(client).catch(isAbsent));
    return client;
  };
  const terminal = end.use(await openTerminal({ dir, cwd: work, env, ...size }));
  await take({ dir, work, env, up, type: terminal.type });
  return terminal.shown();
}

/** Every slot has its standby. */
export async function allReady(client: Client): Promise<boolean> {
  return (await client.status()).pools.every(({ slots }) => slots.every(({ standby }) => standby.state === 'standby'));
}
