/** What folders take on disk. */
import { run } from '../system/run.ts';

/** ms that it may take: who has more files than can be looked at in it is not stopped by their size. */
const patience = 60_000;

/**
 * Bytes of blocks that what is in `folders` has, links counted once and never followed, other file systems left out; null when
 * nothing could be looked at. In a process of its own with the lowest priority, since a job decides how much there is to do.
 */
export async function diskUsage(folders: readonly string[], signal: AbortSignal): Promise<number | null> {
  if (folders.length === 0) return null;
  const options = { signal, timeout: patience, env: { PATH: '/usr/bin:/bin:/usr/sbin:/sbin', LC_ALL: 'C' } };
  const { code, stdout } = await run('nice', ['-n', '19', 'du', '-skx', '--', ...folders], options);
  // A file that vanishes meanwhile makes it end with 1; the sums stand there all the same.
  if (code !== 0 && code !== 1) return null;
  const sizes = [...stdout.toString().matchAll(/^(\d+)\t/gm)].map(([, size]) => Number(size) * 1024);
  return sizes.length === 0 ? null : sizes.reduce((sum, size) => sum + size, 0);
}
