/** `caches` and `caches clear`: their options and help. */
import type { ClearFlags } from '../caches.ts';
import { type Cli, failed, wrongOrFailed } from './options.ts';

export function addCacheCommands(program: Cli): void {
  const caches = program
    .command('caches')
    .description('show the caches that outlive agents: whose they are, how large, and when a job used them')
    .after(`
Examples:
  onejob caches
  onejob caches --json | jq -r 'select(.trusted | not) | .name'
  onejob caches clear --project acme/app

Exit codes: 0; 1 when no daemon runs here; 2 wrong usage.`);
  caches.does(failed, async (session) => (await import('../caches.ts')).listCaches(session));

  caches
    .command('clear')
    .description('empty caches; those that a job uses stay')
    .argument('[name]', 'name of a cache, or a key of a CI service (default: all names)')
    .option('--of <name>', 'only those of this pool, or of this CI service')
    .option('--project <name>', 'only those of this project, as "onejob caches" shows it')
    .option('--untrusted', 'only those of untrusted jobs')
    .option('--all', 'all caches of this host')
    .option('--dry-run', 'only print how many there are, and how much space they take')
    .after(`
Examples:
  onejob caches clear depot --of gpu
  onejob caches clear --untrusted
  onejob caches clear --all --dry-run

Exit codes: 0; 1 when a job uses one of them, so that it stays, or no daemon runs here; 2 wrong usage.`)
    .does(
      wrongOrFailed,
      async (session, name: string | undefined, flags: ClearFlags) =>
        (await import('../caches.ts')).clearCaches(session, name, flags),
      // "--json" and the like may come before "clear".
      (...given) => (given.at(-1) as Cli).optsWithGlobals(),
    );
}
