/** Another user of this host, who exchanges folders for links while somebody else walks them. For root only. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { onTestFinished } from 'vitest';

/** renameat2 with RENAME_EXCHANGE, until no pair is left. */
const program = `
  my ($from, $with, $pairs) = @ARGV; my $call = ${process.arch === 'arm64' ? 276 : 316}; my $left = 1;
  syswrite STDOUT, "ready";
  while ($left) { $left = 0; for (0 .. $pairs - 1) { my ($a, $b) = ("$from/$_", "$with/$_"); $left = 1 if syscall($call, -100, $a, -100, $b, 2) == 0 } }`;

/** Exchanges the folders `0`, `1` … in `from` for the entries of these names in `links`, all the time. Resolves when it has begun. */
export async function exchange(from: string, links: string, pairs: number): Promise<void> {
  const child = spawn('perl', ['-e', program, from, links, String(pairs)], {
    uid: 65_534,
    gid: 65_534,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  await once(child.stdout, 'data');
}
