/** What a report is made of. Each part is collected on its own: one that fails is left out, and says so. */
import { readFileSync } from 'node:fs';
import { arch, availableParallelism, release, totalmem } from 'node:os';
import { join } from 'node:path';
import { attempt, codeOf } from '../../base/errors.ts';
import { configForStrangers } from '../../config/explain.ts';
import { checkConfig } from '../../config/load.ts';
import type { LogSource } from '../../contract/manager.ts';
import type { JobView } from '../../contract/schema.ts';
import { createRunner, type ToolRunner, vendorFolders } from '../../gpu/run.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { JobReader } from '../archive.ts';
import { withDaemon } from '../connect.ts';
import { findingsOf } from '../doctor.ts';
import { findJob, findSource, withReader } from '../jobs.ts';
import { configSource, type Session } from '../session.ts';
import { types } from '../types.ts';
import { findingFields, jobFields, pick, statusFields } from './fields.ts';
import type { PublicWords } from './public-words.ts';
import { recordGpus } from './recordings.ts';

export interface ReportPart {
  readonly file: string;
  /** For people, also strangers. */
  readonly what: string;
  readonly text: string;
}

export interface LeftOut {
  readonly what: string;
  readonly why: string;
}

export interface Report {
  readonly parts: readonly ReportPart[];
  readonly leftOut: readonly LeftOut[];
}

/** Jobs that went wrong of which a report has the ends, and since when, ms. */
const [recentMost, recentAge] = [5, 24 * 3_600_000];
const logLines = 100;

/** `named`: jobs, agents and slots, as for `onejob logs`. @throws OnejobError when one of them is unknown */
export async function collectReport(
  session: Session,
  named: readonly string[],
  words: PublicWords,
  runner: ToolRunner = hostRunner(session),
): Promise<Report> {
  const parts: ReportPart[] = [];
  const leftOut: LeftOut[] = [...never];
  const add = (file: string, what: string, value: unknown) =>
    parts.push({ file, what, text: `${JSON.stringify(value, null, 1)}\n` });
  const part = async (what: string, work: () => Promise<unknown>): Promise<void> => {
    session.output.progress(`collecting ${what}`);
    try {
      await work();
    } catch (error) {
      leftOut.push({ what, why: `it could not be read (${codeOf(error) ?? 'unknown error'})` });
    }
  };
  add('about.json', 'versions of onejob, Node, kernel and distribution; processors and memory', about(session));
  await part('the config', async () => {
    const checked = await checkConfig({ types, ...configSource(session), look: null });
    const shown = configForStrangers(checked, words.text);
    const problems = [...checked.errors, ...checked.warnings].map(({ level, message }) => ({
      level,
      message: words.text(message),
    }));
    add('config.json', 'the config: keys, numbers and words of onejob; other values are null', { shown, problems });
  });
  await part('the status', async () => {
    const status = await withDaemon(
      session,
      (client) => client.status(),
      async () => null,
    );
    if (status === null) leftOut.push({ what: 'the status', why: 'no daemon is running' });
    else add('status.json', 'pools and slots, without the jobs in them', pick(statusFields, status, words));
  });
  await part('what doctor says', async () =>
    add('doctor.json', 'what doctor says', pick(findingFields, await findingsOf(session, false), words)),
  );
  await collectJobs(session, named, words, { part, add, leftOut });
  await part("the end of the daemon's log", async () => {
    const lines = await daemonLog(session, runner);
    if (lines.length === 0) leftOut.push({ what: "the daemon's log", why: 'neither the journal nor the state directory has one' });
    else parts.push({ file: 'daemon.log', what: `the last lines of the daemon's log`, text: `${words.text(lines.join('\n'))}\n` });
  });
  await part('what GPU tools say', async () => {
    const { made, silent } = await recordGpus(runner, words);
    for (const { file, call, text } of made) parts.push({ file: `gpus/${file}`, what: `the output of "${call}"`, text });
    leftOut.push(...silent.map((what) => ({ what: `a recording of the GPUs: ${what}`, why: 'the tool gave no answer' })));
    if (made.length + silent.length === 0)
      leftOut.push({ what: 'a recording of the GPUs', why: 'no tool of a GPU vendor is installed' });
  });
  session.output.progress(null);
  return { parts, leftOut };
}

const never: readonly LeftOut[] = [
  { what: 'secrets, variables of jobs, their commands, names, users, branches and links', why: 'no report takes them' },
  { what: 'machines in clouds', why: 'their names and ids say whose they are' },
  {
    what: 'words that onejob itself does not publish: paths, addresses, names, tokens',
    why: 'each is replaced by a mark such as <hidden-1>',
  },
];

interface Into {
  part(what: string, work: () => Promise<unknown>): Promise<void>;
  add(file: string, what: string, value: unknown): void;
  readonly leftOut: LeftOut[];
}

async function collectJobs(
  session: Session,
  named: readonly string[],
  words: PublicWords,
  { part, add, leftOut }: Into,
): Promise<void> {
  const one = async (reader: JobReader, at: number, source: LogSource, job: JobView | null, what: string) => {
    if (job?.user != null) words.hide(job.user);
    const output = await endOf(reader, source, words).catch((error: unknown) => {
      // Nothing else says whether there is such an agent.
      if (job === null) throw error;
      leftOut.push({ what: `the end of the log of ${what}`, why: `it could not be read (${codeOf(error) ?? 'unknown error'})` });
      return null;
    });
    const told = job === null ? null : pick(jobFields, job, words);
    add(`jobs/${at}.json`, `${what}: its times, how it ended, and the last ${logLines} lines of its log`, { job: told, output });
  };
  if (named.length > 0) {
    await withReader(session, async (reader) => {
      for (const [at, target] of named.entries()) {
        const source = await findSource(reader, target, false);
        const job = 'job' in source ? await findJob(reader, source.job) : null;
        await one(reader, at + 1, source, job, `${Object.keys(source)[0]} ${at + 1} of the command line`);
      }
    });
    return;
  }
  await part('jobs that went wrong', () =>
    withReader(session, async (reader) => {
      const since = systemClock.wall() - recentAge;
      const ended = await reader.endedJobs({ failed: true, since, limit: 100 });
      // What a job's own code did is its own affair.
      const wrong = ended.filter(({ verdict }) => verdict?.kind !== 'code').slice(-recentMost);
      for (const [at, job] of wrong.entries()) await one(reader, at + 1, { job: job.id }, job, `job ${at + 1} that went wrong`);
      if (wrong.length === 0) leftOut.push({ what: 'jobs', why: 'none went wrong in the last 24 hours; name a job to include it' });
    }),
  );
}

/** The last lines of an output. Notes are onejob's own. */
async function endOf(reader: JobReader, source: LogSource, words: PublicWords): Promise<string[]> {
  const lines: string[] = [];
  let open = '';
  for await (const { stream, bytes, gap } of reader.logs(source, { follow: false, tail: logLines })) {
    if (gap !== undefined) continue;
    if (stream === 'note') lines.push(`onejob: ${Buffer.from(bytes).toString().trimEnd()}`);
    else {
      const text = open + Buffer.from(bytes).toString();
      const ended = text.split('\n');
      open = ended.pop() ?? '';
      lines.push(...ended);
    }
  }
  return [...lines, open]
    .filter((line) => line.trim() !== '')
    .slice(-logLines)
    .map((line) => words.text(line));
}

/** Of the service, else of daemons that \`onejob run\` started. */
async function daemonLog(session: Session, runner: ToolRunner): Promise<string[]> {
  const units = session.context.environment.uid === 0 ? [] : ['--user-unit', 'onejob'];
  const asked = ['-u', 'onejob', ...units, '-n', `${logLines}`, '-o', 'cat', '-q', '--no-pager'];
  const { code, output } = await runner.run('journalctl', asked, { limit: 10_000 });
  const { stateDir } = await session.place();
  const text =
    code === 0 && output.trim() !== '' ? output : (attempt(() => readFileSync(join(stateDir, 'daemon.log'), 'utf8')) ?? '');
  return text
    .trimEnd()
    .split('\n')
    .filter((line) => line !== '')
    .slice(-logLines);
}

function about({ version }: Session) {
  const system = attempt(() => readFileSync('/etc/os-release', 'utf8')) ?? '';
  const field = (name: string, form: RegExp) =>
    new RegExp(`^${name}="?([^"\n]*)"?$`, 'm').exec(system)?.[1]?.match(form)?.[0] ?? null;
  return {
    format: 1,
    onejob: version,
    node: process.version,
    processor: arch(),
    kernel: /^\d+(\.\d+){0,2}/.exec(release())?.[0] ?? null,
    wsl: /microsoft/i.test(release()),
    distribution: field('ID', /^[a-z]{2,16}$/),
    release: field('VERSION_ID', /^[\d.]{1,12}$/),
    root: process.geteuid?.() === 0,
    processors: availableParallelism(),
    memory: totalmem(),
    systemd: attempt(() => readFileSync('/proc/1/comm', 'utf8').trim()) === 'systemd',
  };
}

function hostRunner({ context }: Session): ToolRunner {
  return createRunner({ path: [context.variables.PATH ?? '/usr/local/bin:/usr/bin:/bin', ...vendorFolders].join(':') });
}
