/**
 * Makes the picture in docs/gpus.md: `onejob gpus` on recordings of two hosts, in a terminal of 110 columns. Needs tmux. What it
 * made is gone afterwards.
 *
 *     node scripts/picture-gpus.ts
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { ansiToSvg } from './ansi-svg.ts';

const root = join(import.meta.dirname, '..');
const recordings = join(root, 'test/fixtures/gpu/nvidia-smi');
const [columns, rows] = [110, 28];
const dir = mkdtempSync(join(tmpdir(), 'oj-picture-'));

/** Each recording under the name that is typed. */
const hosts = {
  lab: join(recordings, 'captures/linux-x86_64__nvidia-h100-mig__590.48.01.txt'),
  volta: join(recordings, 'q/r560-titan-v.txt'),
};

const tmux = (...args: string[]) => execFileSync('tmux', ['-S', join(dir, 'tmux'), ...args], { encoding: 'utf8' });

async function prompt(): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    if (tmux('capture-pane', '-p').trimEnd().split('\n').at(-1)?.trim() === '$') return;
    await pause(100);
  }
  throw new Error('the terminal never came back to its prompt');
}

try {
  mkdirSync(join(dir, 'bin'));
  symlinkSync(join(root, 'bin/onejob'), join(dir, 'bin/onejob'));
  for (const [name, file] of Object.entries(hosts)) symlinkSync(file, join(dir, `${name}.txt`));
  const shell = `cd ${dir}; exec env PATH='${join(dir, 'bin')}:${process.env.PATH}' PS1='\\[\\e[1;32m\\]$\\[\\e[0m\\] ' bash --norc --noprofile`;
  tmux('-f', '/dev/null', 'new-session', '-d', '-x', `${columns}`, '-y', `${rows}`, shell);
  await prompt();
  for (const command of ['onejob gpus --from lab.txt', 'onejob image choose --from volta.txt --explain']) {
    tmux('send-keys', '-l', command);
    tmux('send-keys', 'Enter');
    await pause(200);
    await prompt();
  }
  const text = tmux('capture-pane', '-e', '-p').trimEnd().split('\n').slice(0, -1).join('\n');
  writeFileSync(
    join(root, 'docs/pictures/gpus.svg'),
    ansiToSvg(text, { columns, title: 'onejob gpus and onejob image choose in a terminal' }),
  );
} finally {
  try {
    tmux('kill-server');
  } catch {
    // It never came up, which is told by the error that led here.
  }
  rmSync(dir, { recursive: true });
}
