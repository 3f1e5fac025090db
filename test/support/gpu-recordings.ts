/** The recorded outputs of GPU tools in test/fixtures/gpu; where each is from stands in the README of its folder. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const recordings = join(import.meta.dirname, '../fixtures/gpu');

/** Of `nvidia-smi/`, such as `xml/r580-h100-x8.xml`. */
export function nvidia(name: string): string {
  return readFileSync(join(recordings, 'nvidia-smi', name), 'utf8');
}

/** Every file, as paths below the folder. */
export function allRecordings(): string[] {
  return readdirSync(recordings, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(recordings.length + 1))
    .sort();
}
