/** What the flags of one agent mean: its name, queue, tags, priority, and which of them onejob makes needless. */

type Path = readonly (string | number)[];

export interface GivenFlag {
  readonly name: string;
  readonly value: string;
  readonly path: Path;
  /** Said with a variable: a flag on the command line wins over it. */
  readonly isVariable: boolean;
}

export interface FlagsFound {
  readonly name: string;
  readonly queue: string;
  /** As written, in their order, without the queue. */
  readonly tags: readonly string[];
  readonly priority: number | null;
  readonly spawn: number;
  readonly endpoint: string | null;
  /** Folders in the container. */
  readonly folders: Readonly<Partial<Record<'hooks' | 'plugins', string>>>;
  /** The token itself stands in the Compose file. */
  readonly hasToken: boolean;
  readonly others: readonly GivenFlag[];
}

export interface FlagsInput {
  readonly flags: readonly GivenFlag[];
  /** What `%hostname` in a name stands for. */
  readonly hostname: string;
  /** Name of an agent that has none of its own. */
  readonly fallback: string;
  say(level: 'warning' | 'note', path: Path, message: string): void;
}

/** What onejob does anyway, or what only matters to the program that waits for jobs, which is onejob now. */
const needless = new Set(
  `disconnect-after-job disconnect-after-idle-timeout disconnect-after-uptime ping-mode no-color health-check-addr log-level log-format
debug reflect-exit-status no-feature-reporting sockets-path job-log-path enable-job-log-tmpfile write-job-logs-to-stdout
disable-warnings-for disconnect-after-job-timeout no-http2`.split(/\s+/),
);

/** The default of the service (https://buildkite.com/docs/agent/queues). */
const usualQueue = 'default';

export function readFlags({ flags: given, hostname, fallback, say }: FlagsInput): FlagsFound {
  const onLine = new Set(given.filter((flag) => !flag.isVariable).map(({ name }) => name));
  const flags = given.filter((flag) => !flag.isVariable || !onLine.has(flag.name));
  const last = (name: string) => flags.findLast((flag) => flag.name === name);
  const words = flags
    .filter(({ name }) => name === 'tags' || name === 'meta-data')
    .flatMap((flag) => flag.value.split(',').map((tag) => ({ tag: tag.trim(), path: flag.path })));
  const tags = words.filter(({ tag }) => tag !== '');
  const queues = [...new Set(tags.filter(({ tag }) => tag.startsWith('queue=')).map(({ tag }) => tag.slice('queue='.length)))];
  const asked = last('queue')?.value ?? queues[0];
  if (queues.length > 1) {
    const second = tags.find(({ tag }) => tag === `queue=${queues[1]}`);
    say('warning', second?.path ?? ['command'], `only the queue "${asked}" is carried over: an agent belongs to one`);
  }
  const spawn = last('spawn');
  const token = last('token');
  if (token !== undefined && token.value !== '' && !/^(file|fd):/.test(token.value))
    say(
      'warning',
      token.path,
      'the token itself stands here: put it into the file that the config names, and make a new one where others could read this',
    );
  const folders: Partial<Record<'hooks' | 'plugins', string>> = {};
  const others: GivenFlag[] = [];
  for (const flag of flags) {
    if (flag.name === 'hooks-path') folders.hooks = flag.value;
    else if (flag.name === 'plugins-path') folders.plugins = flag.value;
    else if (flag.name === 'build-path')
      say('note', flag.path, '--build-path is not carried over: a checkout lives as long as its job');
    else if (flag.name === 'config') say('warning', flag.path, `--config is not carried over: nobody looked into ${flag.value}`);
    else if (flag.name === 'acquire-job') say('warning', flag.path, '--acquire-job is not carried over');
    else if (flag.name.startsWith('tags-from'))
      say('warning', flag.path, `--${flag.name} is not carried over: write the tags into "tags"`);
    else if (
      !['name', 'tags', 'meta-data', 'queue', 'priority', 'spawn', 'endpoint', 'token'].includes(flag.name) &&
      !needless.has(flag.name)
    )
      others.push(flag);
  }
  return {
    name: nameOf(last('name'), hostname, fallback, say),
    queue: queueOf(asked, last('queue') ?? given[0], say),
    tags: tags.map(({ tag }) => tag).filter((tag) => !tag.startsWith('queue=')),
    priority: priorityOf(last('priority'), say),
    spawn: spawn !== undefined && /^[1-9]\d?$/.test(spawn.value) ? Number(spawn.value) : 1,
    endpoint: last('endpoint')?.value ?? null,
    folders,
    hasToken: token !== undefined,
    others,
  };
}

function queueOf(asked: string | undefined, flag: GivenFlag | undefined, say: FlagsInput['say']): string {
  const written = asked?.trim() ?? '';
  if (written === '') return usualQueue;
  const queue = written.replaceAll(/[^A-Za-z0-9_.:/@+-]+/g, '-');
  if (queue !== written) say('warning', flag?.path ?? [], `the queue "${written}" becomes ${queue}`);
  return queue;
}

/** Names are for people: what a name is made of at its start, host and count, is known here too. */
function nameOf(flag: GivenFlag | undefined, hostname: string, fallback: string, say: FlagsInput['say']): string {
  const written = flag?.value ?? fallback;
  const filled = written
    .replaceAll('%hostname', hostname)
    .replaceAll(/[-_.]?%(spawn|n|random|pid)/g, '')
    .replaceAll(/[^A-Za-z0-9_.-]+/g, '-')
    .replace(/^[-_.]+/, '')
    .replace(/[-]+$/, '')
    .slice(0, 63);
  const name = filled === '' ? 'agent' : filled;
  if (flag !== undefined && name !== written) say('warning', flag.path, `the name "${written}" becomes ${name}`);
  return name;
}

function priorityOf(flag: GivenFlag | undefined, say: FlagsInput['say']): number | null {
  if (flag === undefined || flag.value.trim() === '') return null;
  const number = /^-?\d{1,4}$/.test(flag.value.trim()) ? Number(flag.value) : Number.NaN;
  if (Number.isInteger(number) && Math.abs(number) <= 1000) return number;
  say('warning', flag.path, `the priority "${flag.value}" is not carried over: it is no whole number from -1000 to 1000`);
  return null;
}
