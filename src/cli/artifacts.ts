/**
 * Brings artifacts back into the current folder: for `run`, and later for `onejob artifacts`. What comes is compared with the patterns
 * of the person here: the daemon of another host is not believed when it says what a job was asked for.
 */
import type { Readable } from 'node:stream';
import { type ErrorCode, messageOf, OnejobError } from '../base/errors.ts';
import { quoted } from '../base/quoted.ts';
import { globMatcher } from '../ci/own-queue/globs.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { findJob, withReader } from './jobs.ts';
import { artifactPatterns } from './request.ts';
import type { Session } from './session.ts';
import { plural } from './text.ts';

const unsafe: ErrorCode = 'E_ARTIFACT_UNSAFE';
/** Lines about files that could not be written, as on a full disk, or may not be. */
const mostNamed = 10;

export interface ArtifactsFlags {
  readonly artifact?: readonly string[];
}

/**
 * Unpacks the artifacts that match `patterns`, and says what came. Returns false if some of them could not be written here; never
 * throws.
 */
export async function bringBack(session: Session, id: string, files: Readable, patterns: readonly string[]): Promise<boolean> {
  const { context, output } = session;
  const { unpackArtifacts } = await import('../workspace/unpack.ts');
  const again = `"${command(session, id, patterns)}" brings them into the current folder, as long as the job is kept (keep_jobs in the config)`;
  try {
    const { written, folders, refused, failed } = await unpackArtifacts(files, context.cwd, globMatcher(patterns));
    const made = written.length === 0 && folders.length > 0 ? ` and ${plural(folders.length, 'folder')}` : '';
    output.say(`brought back ${plural(written.length, 'file')}${made}`);
    for (const { path, why } of refused.slice(0, mostNamed)) output.say(`did not bring back ${path}: ${why} (${unsafe})`);
    if (refused.length > mostNamed) output.say(`did not bring back ${refused.length - mostNamed} more (${unsafe})`);
    for (const { path, why } of failed.slice(0, mostNamed)) output.say(`could not bring back ${path}: ${why}`);
    if (failed.length > mostNamed) output.say(`could not bring back ${failed.length - mostNamed} more`);
    if (failed.length > 0) output.say(again);
    return failed.length === 0;
  } catch (error) {
    output.say(`could not bring back all artifacts of job ${id}: ${messageOf(error)}`);
    output.say(again);
    return false;
  }
}

/** What brings the artifacts later. */
function command({ remote }: Session, id: string, patterns: readonly string[]): string {
  if (remote === null) return `onejob artifacts ${id}`;
  return `onejob --host ${remote.shown} artifacts ${id} ${patterns.map((pattern) => `--artifact ${quoted(pattern)}`).join(' ')}`;
}

/** @throws OnejobError E_JOB_UNKNOWN, E_ARTIFACTS, E_USAGE for an ambiguous id, and without patterns for another host */
export async function fetchArtifacts(session: Session, which: string, { artifact }: ArtifactsFlags): Promise<number> {
  const asked = artifact === undefined ? null : artifactPatterns(artifact);
  return withReader(session, async (reader) => {
    const job = await findJob(reader, which);
    if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${which}.`, { hint: 'See "onejob jobs --all".' });
    if (asked === null && session.remote !== null && job.artifacts.length > 0) throw unasked(session, job.id, job.artifacts);
    const files = await reader.artifacts(job.id);
    if (files === null) throw none(job.id, job.state !== 'done', job.artifacts.length > 0);
    return (await bringBack(session, job.id, files, asked ?? job.artifacts)) ? exitCodes.ok : exitCodes.failed;
  });
}

/** Nobody here has said what the job may write into the current folder. */
function unasked(session: Session, id: string, told: readonly string[]): OnejobError {
  const where = session.remote?.shown ?? '';
  const message = `Cannot bring back the artifacts of job ${id} from ${where}: which files may be written here was not said.`;
  return wrongUsage(message, `If what ${where} says of the job is right, type "${command(session, id, told)}".`);
}

function none(id: string, lives: boolean, wanted: boolean): OnejobError {
  const why = !wanted ? 'it was submitted without --artifact' : lives ? 'it has not ended' : 'no file was kept';
  const hint = lives && wanted ? `Type "onejob wait ${id}" first.` : `"onejob jobs ${id}" shows more of it.`;
  return new OnejobError('E_ARTIFACTS', `Job ${id} has no artifacts: ${why}.`, { hint });
}
