/** A folder of a test's own, short enough for sockets, gone afterwards. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface Scratch extends Disposable {
  readonly path: string;
}

export function scratch(): Scratch {
  const path = mkdtempSync(join(tmpdir(), 'onejob-test-'));
  // A daemon that ends by itself may still write into it for a moment.
  const patient = { maxRetries: 10, retryDelay: 50 };
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true, ...patient }) };
}
