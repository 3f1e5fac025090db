/** The disk usage of folders. */
import { run } from '../system/run.ts';

/** ms that it may take. A job with more files than that is not stopped for their size. */
const patience = 60_000;

/**
 * Bytes of the blocks in `folders`. Hard links count once, symbolic links and other file systems are skipped. null if nothing
 * could be read. It runs in a process with the lowest priority, since a job decides how much there is to do.
 */
export async function diskUsage(folders: readonly string[], signal: AbortSignal): Promise<number | null> {
  if (folders.length === 0) return null;
  const options = { signal, timeout: patience, env: { PATH: '/usr/bin:/bin:/usr/sbin:/sbin', LC_ALL: 'C' } };
  const { code, stdout } = await run('nice', ['-n', '19', 'du', '-skx', '--', ...folders], options);
  // du exits with 1 if a file disappears meanwhile; the sums are valid.
  if (code !== 0 && code !== 1) return null;
  const sizes = [...stdout.toString().matchAll(/^(\d+)\t/gm)].map(([, size]) => Number(size) * 1024);
  return sizes.length === 0 ? null : sizes.reduce((sum, size) => sum + size, 0);
}
