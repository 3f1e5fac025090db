/**
 * Makes the picture in docs/gpus.md: `onejob gpus` on recordings of two hosts, in a terminal of 110 columns. Needs tmux. What it
 * made is gone afterwards.
 *
 *     node scripts/picture-gpus.ts
 */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ansiToSvg } from './ansi-svg.ts';
import { openTerminal } from './terminal.ts';

const root = join(import.meta.dirname, '..');
const recordings = join(root, 'test/fixtures/gpu/nvidia-smi');
const [columns, rows] = [110, 34];
const dir = mkdtempSync(join(tmpdir(), 'oj-picture-'));

/** Each recording under the name that is typed. */
const hosts = {
  lab: join(recordings, 'xml/r510-a100-40gb-mig.xml'),
  volta: join(recordings, 'xml/r460-v100s-x8.xml'),
};

try {
  mkdirSync(join(dir, 'bin'));
  symlinkSync(join(root, 'bin/onejob'), join(dir, 'bin/onejob'));
  for (const [name, file] of Object.entries(hosts)) symlinkSync(file, join(dir, `${name}.xml`));
  const env = { ...process.env, PATH: `${join(dir, 'bin')}:${process.env.PATH}` };
  using terminal = await openTerminal({ dir, columns, rows, env });
  for (const command of ['onejob gpus --from lab.xml', 'onejob image choose --from volta.xml --explain'])
    await terminal.type(command);
  const picture = ansiToSvg(terminal.shown(), { columns, title: 'onejob gpus and onejob image choose in a terminal' });
  writeFileSync(join(root, 'docs/pictures/gpus.svg'), picture);
} finally {
  rmSync(dir, { recursive: true });
}
