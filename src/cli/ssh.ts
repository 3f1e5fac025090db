/**
 * Another host's daemon over the system's `ssh`: how a host is written, and one `ssh` process that runs `onejob relay` there. Keys,
 * aliases and jump hosts are ssh's matter. A failure says whether the host, the key, or onejob over there is the problem.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Duplex } from 'node:stream';
import { OnejobError } from '../base/errors.ts';
import type { Variables } from '../base/variables.ts';
import { ignoredSignals } from '../config/environment.ts';
import { systemClock } from '../system/system-clock.ts';

export interface SshHost {
  /** null: as ssh says. */
  readonly user: string | null;
  readonly host: string;
  readonly port: number | null;
  /** Path of the daemon's socket there; null: as onejob finds it there. */
  readonly socket: string | null;
  /** As written. */
  readonly shown: string;
}

/** A name or an address; never an option of ssh. */
const word = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$/;

/** @throws OnejobError E_USAGE */
export function parseSshUrl(text: string): SshHost {
  const wrong = (why: string): never => {
    const hint = 'Write ssh://HOST, ssh://USER@HOST:PORT, or ssh://HOST/PATH/OF/SOCKET.';
    throw new OnejobError('E_USAGE', `Cannot use ${JSON.stringify(text)} as a host: ${why}.`, { hint });
  };
  const url = URL.parse(text);
  if (url?.protocol !== 'ssh:') return wrong('it does not begin with ssh://');
  const { username: user, hostname, port, pathname, password, search, hash } = url;
  const host = hostname.replace(/^\[(.*)\]$/, '$1');
  if (password !== '') return wrong('it contains a password; ssh uses keys');
  if (search !== '' || hash !== '') return wrong('it has something after its path');
  if (!word.test(host) && !/^[0-9a-f:.]+$/i.test(host)) return wrong('it has no valid host name');
  if (user !== '' && !word.test(user)) return wrong('it has no valid user name');
  const socket = pathname === '' || pathname === '/' ? null : pathname;
  // It becomes part of a command line of another shell.
  if (socket !== null && !/^[A-Za-z0-9/._@+-]+$/.test(socket)) return wrong('its path has characters that are not allowed here');
  return { user: user || null, host, port: port === '' ? null : Number(port), socket, shown: text };
}

/** Arguments of `ssh`. `interactive`: somebody can type a passphrase. */
export function sshArguments({ user, host, port, socket }: SshHost, interactive: boolean): string[] {
  const options = {
    // A host that does not answer must not look like one that thinks.
    ConnectTimeout: 10,
    ServerAliveInterval: 15,
    ServerAliveCountMax: 3,
    // What the user's config may ask for and this connection does not need.
    ClearAllForwardings: 'yes',
    ForwardAgent: 'no',
    ForwardX11: 'no',
    PermitLocalCommand: 'no',
    RemoteCommand: 'none',
    ...(interactive ? {} : { BatchMode: 'yes' }),
  };
  const where = socket === null ? '' : ` --socket ${socket}`;
  // A shell that nobody logs in to may lack the folders that install.sh uses.
  const there = `sh -c 'PATH="$PATH:/usr/local/bin:$HOME/.local/bin"; export PATH; exec onejob relay${where}'`;
  return [
    ...['-T', '-e', 'none'],
    ...Object.entries(options).flatMap(([name, value]) => ['-o', `${name}=${value}`]),
    ...(port === null ? [] : ['-p', String(port)]),
    ...(user === null ? [] : ['-l', user]),
    ...['--', host, there],
  ];
}

/** Exit codes: 255 is ssh's own (ssh(1)), 127 a shell's that does not find the program. */
const [sshFailed, notFound] = [255, 127];

/** What ssh's words mean, with what to do about it. `passes`: a retry may help. */
const meanings: readonly { said: RegExp; why: string; hint: (login: string) => string; passes?: true }[] = [
  { said: /onejob-has-no-ssh/, why: '"ssh" is not installed here', hint: () => "Install OpenSSH's client." },
  {
    said: /could not resolve hostname/i,
    why: 'no host of that name is known',
    hint: () => 'Check the name, and the Host entries of ~/.ssh/config.',
  },
  {
    said: /host key verification failed|host identification has changed|no \S+ host key is known/i,
    why: 'its host key is not known, or is another one than before',
    hint: (login) => `Type "ssh ${login} true" once, and compare the fingerprint with the host's own.`,
  },
  {
    said: /permission denied|too many authentication failures/i,
    why: 'it refused the login',
    hint: (login) => `Type "ssh ${login} true": it must work without a password ("ssh-copy-id" puts your key there).`,
  },
  {
    said: /connection refused/i,
    why: 'nothing listens on its SSH port',
    hint: () => 'Check the port, and whether sshd runs there.',
    passes: true,
  },
  {
    said: /timed out|no route to host|network is unreachable|timeout, server/i,
    why: 'it does not answer',
    hint: () => 'Check whether it is up and can be reached from here.',
    passes: true,
  },
];

/** Why `ssh` ended. `said`: its standard error. */
export function sshFailure({ user, host, port, shown }: SshHost, code: number | null, said: string): OnejobError {
  const login = [...(port === null ? [] : ['-p', port]), user === null ? host : `${user}@${host}`].join(' ');
  const fail = (why: string, hint: string, retry = false) =>
    new OnejobError('E_HOST', `Cannot reach ${shown}: ${why}.`, { hint, retry });
  const lines = said.trim().split(/\r?\n/);
  const last = (lines.findLast((line) => line.trim() !== '') ?? '').trim().replace(/\.$/, '').slice(0, 300);
  const known = code === sshFailed ? meanings.find((each) => each.said.test(said)) : undefined;
  if (known !== undefined) return fail(known.why, known.hint(login), known.passes === true);
  if (code === notFound)
    return fail(
      'there is no onejob there',
      'Install it there, in /usr/local/bin, ~/.local/bin or another folder of the PATH that ssh gets.',
    );
  if (/unknown command/.test(said)) {
    const hint = 'Upgrade it there with "onejob service upgrade".';
    return new OnejobError('E_API_VERSION', `Cannot reach ${shown}: its onejob is too old for that.`, { hint });
  }
  const how = code === null ? 'ssh was ended' : code === sshFailed ? 'the connection was cut' : `ssh ended with ${code}`;
  return fail(
    `${how}${last === '' ? '' : `: ${last}`}`,
    `Type "ssh ${login} onejob version" to see more.`,
    code === sshFailed || code === null,
  );
}

export interface SshOptions {
  readonly variables: Variables;
  readonly interactive: boolean;
}

/** Bytes of ssh's messages that are kept. */
const mostSaid = 8 * 1024;
/** ms after TERM until KILL. */
const grace = 2_000;

/** Without what gitlab-runner says to `onejob gitlab-executor`: variables of a job, some of them secret. */
function withoutJob(variables: Variables): Variables {
  return Object.fromEntries(Object.entries(variables).filter(([name]) => !name.startsWith('CUSTOM_ENV_')));
}

/**
 * Starts `onejob relay` there. An INT of the terminal does not reach ssh: what a command does about it still needs the connection.
 * Nor does a signal that the caller ignores.
 */
export function startSsh(host: SshHost, { variables, interactive }: SshOptions) {
  const ignored = new Set(['INT', ...ignoredSignals(variables).map((name) => name.slice('SIG'.length))]);
  const wrapped = `trap "" ${[...ignored].join(' ')}; command -v ssh >/dev/null 2>&1 || { echo onejob-has-no-ssh >&2; exit 255; }; exec ssh "$@"`;
  const child: ChildProcess = spawn('/bin/sh', ['-c', wrapped, 'ssh', ...sshArguments(host, interactive)], {
    env: withoutJob(variables),
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  let said = '';
  let code: number | null = null;
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    said = (said + text).slice(-mostSaid);
  });
  const ended = new Promise<void>((resolve) => {
    child.once('error', (error) => {
      said += error.message;
      resolve();
    });
    child.once('close', (ending) => {
      code = ending;
      resolve();
    });
  });
  if (child.stdin === null || child.stdout === null) throw new TypeError('ssh has no pipes');
  const { stdin, stdout } = child;
  for (const stream of [stdin, stdout, child.stderr]) stream?.on('error', () => {});
  return {
    stdout,
    pipe: () => Duplex.from({ readable: stdout, writable: stdin }),
    /** Settles once it has ended. */
    ended,
    failure: (): OnejobError => sshFailure(host, code, said),
    /** Ends it, and waits for that. */
    async close(): Promise<void> {
      stdin.destroy();
      if (child.exitCode === null && child.signalCode === null) {
        child.kill('SIGTERM');
        const cancel = systemClock.after(grace, () => child.kill('SIGKILL'));
        if (child.pid !== undefined) await once(child, 'exit').catch(() => {});
        cancel();
      }
      stdout.destroy();
      child.stderr?.destroy();
    },
  };
}
