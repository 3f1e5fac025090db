/** What this process has open, told by where it leads: test files share a process, and another's may close at any time. */
import { readdirSync, readlinkSync, realpathSync } from 'node:fs';

/** Where each open descriptor leads that leads to `path`, or below it. `path` must be there. */
export function openAt(path: string): readonly string[] {
  const real = realpathSync(path);
  return readdirSync('/proc/self/fd')
    .map(target)
    .filter((to) => to === real || to.startsWith(`${real}/`));
}

function target(descriptor: string): string {
  try {
    return readlinkSync(`/proc/self/fd/${descriptor}`);
  } catch {
    // The one by which they were listed is closed by now.
    return '';
  }
}
