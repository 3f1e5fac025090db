/** Brings artifacts back into the current folder: for `run`, and later for `onejob artifacts`. */
import type { Readable } from 'node:stream';
import type { ErrorCode } from '../errors.ts';
import { messageOf, OnejobError } from '../errors.ts';
import { exitCodes } from './exit.ts';
import { findJob, withReader } from './jobs.ts';
import type { Session } from './session.ts';
import { plural } from './text.ts';

const unsafe: ErrorCode = 'E_ARTIFACT_UNSAFE';
/** Lines about files that could not be written: a full disk fails for each. */
const mostNamed = 10;

/** Unpacks artifacts and says what came. Returns false if some of them could not be written here; never throws. */
export async function bringBack({ context, output }: Session, id: string, files: Readable): Promise<boolean> {
  const { unpackArtifacts } = await import('../workspace/unpack.ts');
  const again = `"onejob artifacts ${id}" brings them into the current folder, as long as the job is kept (keep_jobs in the config)`;
  try {
    const { written, folders, refused, failed } = await unpackArtifacts(files, context.cwd);
    const made = written.length === 0 && folders.length > 0 ? ` and ${plural(folders.length, 'folder')}` : '';
    output.say(`brought back ${plural(written.length, 'file')}${made}`);
    for (const { path, why } of refused) output.say(`did not bring back ${path}: ${why} (${unsafe})`);
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

/** @throws OnejobError E_JOB_UNKNOWN, E_ARTIFACTS, E_USAGE for an ambiguous id */
export async function fetchArtifacts(session: Session, which: string): Promise<number> {
  return withReader(session, async (reader) => {
    const job = await findJob(reader, which);
    if (job === null) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${which}.`, { hint: 'See "onejob jobs --all".' });
    const files = await reader.artifacts(job.id);
    if (files === null) throw none(job.id, job.state !== 'done', job.artifacts.length > 0);
    return (await bringBack(session, job.id, files)) ? exitCodes.ok : exitCodes.failed;
  });
}

function none(id: string, lives: boolean, wanted: boolean): OnejobError {
  const why = !wanted ? 'it was submitted without --artifact' : lives ? 'it has not ended' : 'no file was kept';
  const hint = lives && wanted ? `Type "onejob wait ${id}" first.` : `"onejob jobs ${id}" shows more of it.`;
  return new OnejobError('E_ARTIFACTS', `Job ${id} has no artifacts: ${why}.`, { hint });
}
