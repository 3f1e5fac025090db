/** How a config file is written: every key, its type and its meaning. `docs/configuration.md` is printed from here. */
import { z } from 'zod';
import { deviceKeys, imageKeys, poolFile, trustKeys, unsafeKeys } from './pool-schema.ts';
import {
  absolute,
  defaultsOf,
  describeKind,
  duration,
  either,
  key,
  no,
  oneLine,
  oneOf,
  secretReference,
  share,
  size,
  text,
  value,
  word,
  yes,
} from './values.ts';

const argument = value((found) => {
  const written = typeof found === 'number' ? String(found) : found;
  if (typeof written !== 'string') return no(`expected text, found ${describeKind(found)}`);
  return written.includes('\0') ? no('contains a NUL character') : yes(written);
});

/** A program and its arguments: no shell ever sees them. */
const command = z.array(argument).transform((words, context): [string, ...string[]] => {
  const [program, ...rest] = words;
  const isPath = program?.includes('/') ?? false;
  const why =
    program === undefined || program === ''
      ? 'names no program'
      : isPath && !program.startsWith('/')
        ? `begins with ${JSON.stringify(program)}, which is neither an absolute path nor a name on the PATH`
        : null;
  if (why === null) return [program ?? '', ...rest];
  context.addIssue({ code: 'custom', message: `${why}; write [program, argument, …]` });
  return z.NEVER;
});

/** Names of pools and services. */
export function nameProblem(name: string): string | null {
  if (word.test(name)) return null;
  return 'a name is 1 to 32 letters, digits, "-" or "_", and begins with a letter or a digit';
}

const secretsKeys = z.strictObject({
  key: key(secretReference, 'secret', {
    description:
      'Private keys that decrypt the secrets of jobs, all in one file. The file never enters a sandbox; secrets are decrypted for trusted jobs only.',
    example: '{ file: /etc/onejob/secrets.key }',
  }),
});

export const diskKeys = z.strictObject({
  min_free: key(share, {
    description: 'Share of the disk that must be free; below it no job starts, and the reason is shown.',
    example: '10%',
    default: 0.1,
  }),
});

export { poolFile };

/** Keys of the maps inside a pool or the top level. */
export const nestedKeys: Readonly<Record<string, z.ZodObject>> = {
  devices: deviceKeys,
  image: imageKeys,
  trust: trustKeys,
  unsafe: unsafeKeys,
  secrets: secretsKeys,
  disk: diskKeys,
};

export const topFile = z.strictObject({
  include: key(
    either(Array.isArray, z.array(text('a path', oneLine)), text('a path, or a list of paths', oneLine)),
    'path or list',
    {
      description:
        'More files to read, relative to this one. They cannot include others. Values in this file take precedence. For a file that belongs to another user, errors give only the lines.',
      example: '[pools/lab.yml]',
    },
  ),
  services: key(z.record(z.string(), z.unknown()), {
    description: 'CI services by name. The own queue needs no entry.',
    example: '{ julia: { type: buildkite, token: { file: /etc/onejob/buildkite.token } } }',
  }),
  secrets: key(secretsKeys, {
    description: 'How secrets of jobs are decrypted.',
    example: '{ key: { file: /etc/onejob/secrets.key } }',
  }),
  defaults: key(z.unknown(), 'map', {
    description: 'Any key of a pool, for all pools. Maps merge key by key with those of a pool; other values are replaced.',
    example: '{ cpus: 4 }',
  }),
  pools: key(z.record(z.string(), z.unknown()), {
    description: 'Pools of equal slots, by name. Without this key there is one pool, `default`, with two agents.',
    example: '{ lab: { agents: 4 } }',
    shown: '`default`, two agents',
  }),
  state_dir: key(absolute, {
    description: 'Where onejob keeps its state; it must be on a local file system.',
    example: '/var/lib/onejob',
    shown: '`/var/lib/onejob` for root, else `$XDG_STATE_HOME/onejob`',
  }),
  socket: key(absolute, {
    description: 'The socket that the manager listens on; its path has at most 100 bytes.',
    example: '/run/onejob/onejob.sock',
    shown:
      '`onejob.sock` in a given state directory, else `/run/onejob/onejob.sock` for root, else `$XDG_RUNTIME_DIR/onejob/onejob.sock`',
  }),
  log_limit: key(size(1024, '1KiB'), {
    description:
      'How much output is kept per agent. Of more output, only the beginning and the end are kept, with at least the last 1 MiB of each stream. On disk it takes up to twice as much plus 4 MiB; less is kept of output in pieces of a few bytes. The job continues when it writes more.',
    example: '64MiB',
    default: 64 * 2 ** 20,
  }),
  disk: key(diskKeys, {
    description: 'The disk that holds the sandboxes.',
    example: '{ min_free: 10% }',
    default: defaultsOf(diskKeys),
  }),
  keep_jobs: key(duration(60_000, '1m'), {
    description: 'How long results, logs and artifacts of finished jobs are kept.',
    example: '30d',
    default: 7 * 86_400_000,
  }),
  on_stop: key(oneOf(['end', 'drain', 'leave']), {
    description:
      'What a stopping manager does with running jobs: `end` gives them their grace period, `drain` waits for them, `leave` lets them run for the next manager to take over.',
    example: 'drain',
    default: 'end',
  }),
  on_quarantine: key(command, 'list', {
    description:
      'A command to run for each device that is put in quarantine, without a shell and one at a time. Its environment has `ONEJOB_DEVICE`, `ONEJOB_PCI` and `ONEJOB_REASON`. When it exits with 0, the device is checked again at once. See [gpus.md](gpus.md#repair).',
    example: '[/usr/local/sbin/reset-gpu, --quiet]',
  }),
  on_quarantine_timeout: key(duration(1000, '1s'), {
    description: 'How long the command of `on_quarantine` may take before it is killed.',
    example: '30m',
    default: 10 * 60_000,
  }),
});

/** Keys that are written hold a value: what is absent is absent, not undefined. */
type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> };
export type TopFile = Given<z.output<typeof topFile>>;
/** One pool, or `defaults`, as written: with the values understood. */
export type WrittenPool = Given<z.output<typeof poolFile>>;
