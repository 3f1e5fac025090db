/**
 * Makes the picture in README from a real run: a daemon, a job, and the commands that look at them, typed into a terminal
 * of 100 columns. Needs tmux. What it made is gone afterwards.
 *
 *     node scripts/picture.ts
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createClient } from '../src/api/client.ts';
import { ansiToSvg } from './ansi-svg.ts';

const root = join(import.meta.dirname, '..');
/** Stands in the picture, so it is the same on every host; taken means that somebody else makes one right now. */
const dir = '/tmp/lab';
const [columns, rows] = [100, 30];

const config = `pools:
  default: { agents: 2, name: "build-{n}" }
  data:    { agents: 1, name: "data-{n}" }
`;

/** What the terminal shows in the end, colours in it. */
async function film(): Promise<string> {
  const env = {
    PATH: `${join(dir, 'bin')}:${process.env.PATH}`,
    HOME: join(dir, 'home'),
    LANG: 'C.UTF-8',
    TERM: 'xterm-256color',
    ONEJOB_CONFIG: join(dir, 'config.yml'),
    ONEJOB_STATE_DIR: join(dir, 'state'),
    ONEJOB_SOCKET: join(dir, 'onejob.sock'),
  };
  const daemon = spawn('onejob', ['up', '--json'], { env, cwd: dir, stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(daemon, 'exit');
  const client = createClient({ socket: env.ONEJOB_SOCKET, version: 'picture' });
  const tmux = (...args: string[]) => execFileSync('tmux', ['-S', join(dir, 'tmux'), ...args], { env, encoding: 'utf8' });
  try {
    await Promise.race([once(daemon.stdout, 'data'), ended]);
    await until(async () =>
      (await client.status()).pools.every((pool) => pool.slots.every((slot) => slot.standby.state === 'standby')),
    );
    tmux('-f', '/dev/null', 'new-session', '-d', '-x', `${columns}`, '-y', `${rows}`, '-c', join(dir, 'work'), shell);
    const prompt = () => until(async () => tmux('capture-pane', '-p').trimEnd().split('\n').at(-1)?.trim() === '$');
    await prompt();
    const type = async (command: string) => {
      tmux('send-keys', '-l', command);
      tmux('send-keys', 'Enter');
      await prompt();
    };
    await type("onejob run -- sh -c 'echo hello from $(hostname)'");
    for (const pool of ['default', 'data', 'data'])
      execFileSync('onejob', ['run', '--pool', pool, '--detach', '--', 'sh', 'probe.sh'], { env, cwd: join(dir, 'work') });
    await until(async () => {
      const { pools } = await client.status();
      const slots = pools.flatMap((pool) => pool.slots);
      return (
        slots.filter((slot) => slot.agent.state === 'busy').length === 2 && slots.every((slot) => slot.standby.state === 'standby')
      );
    });
    await type('onejob status');
    await type('onejob doctor');
    // Without the prompt that waits for more.
    return tmux('capture-pane', '-e', '-p').trimEnd().split('\n').slice(0, -1).join('\n');
  } finally {
    try {
      tmux('kill-server');
    } catch {
      // It never came up, which is told by the error that led here.
    }
    client.close();
    daemon.kill('SIGTERM');
    await ended;
  }
}

/** A shell with a short prompt. */
const shell = `exec env PS1='\\[\\e[1;32m\\]$\\[\\e[0m\\] ' bash --norc --noprofile`;

/** Neither a terminal nor a daemon tells when it shows something else, so this asks again and again. */
async function until(seen: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 30_000;
  while (!(await seen())) {
    if (Date.now() > deadline) throw new Error('what the picture shows did not come about');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

mkdirSync(dir);
try {
  for (const name of ['bin', 'home', 'work']) mkdirSync(join(dir, name));
  symlinkSync(join(root, 'bin', 'onejob'), join(dir, 'bin', 'onejob'));
  writeFileSync(join(dir, 'config.yml'), config);
  writeFileSync(join(dir, 'work', 'probe.sh'), 'sleep 60\n');
  const picture = ansiToSvg(await film(), { columns, title: 'onejob' });
  mkdirSync(join(root, 'docs', 'pictures'), { recursive: true });
  writeFileSync(join(root, 'docs', 'pictures', 'run.svg'), picture);
} finally {
  rmSync(dir, { recursive: true, force: true });
}
