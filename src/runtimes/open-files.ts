/** How many files a sandbox with devices may have open. */
import { readFileSync } from 'node:fs';

/** NVIDIA's tools map memory for each file that they might open: 24 s instead of 2 s at 10^9 (nvidia-container-toolkit#1053). */
const most = 65_536;

/** A limit that tools of GPUs bear, and no more than this process may allow itself: more takes a right that few have. */
export function openFilesForDevices(): number {
  try {
    const hard = /^Max open files\s+\S+\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8'))?.[1];
    return Math.min(most, Number(hard ?? most));
  } catch {
    return most;
  }
}
