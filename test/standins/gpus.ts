/**
 * `npm run standin:gpus`: a host with cards that only a stand-in for `nvidia-smi` prints, to follow the life of a card without one. Each
 * command changes the host in a folder; a daemon that runs with the printed lines sees it there.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { card, type StubGpu } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';

const usage = `npm run standin:gpus -- FOLDER COMMAND

make [N]            a host with N cards (2), and the lines that point onejob at it
errors CARD [N]     the card reports N (1) memory errors that nothing corrected
reset CARD          as a reset or a reboot would: the card is as new
use CARD PID        a process uses the card; PID 0: none does
unplug CARD         the card falls off the bus
plug CARD           it is back
driver              the driver was upgraded under its module: the tool fails until the next command

CARD is its number, from 0, or its UUID. "nvidia-smi --gpu-reset -i UUID" of the host resets, too. It needs root, which may make device nodes.`;

interface Kept {
  readonly cards: readonly StubGpu[];
  readonly away: readonly number[];
}

/** What the played tool does for "--gpu-reset -i UUID". */
const reset = (dir: string): string =>
  `'${process.execPath}' '${import.meta.filename}' '${dir}' reset "$3" >/dev/null && echo "GPU $3 was successfully reset." && exec echo 'All done.'`;

function run([folder, verb, ...words]: readonly string[]): string {
  if (folder === undefined || verb === undefined) return usage;
  const dir = resolve(process.env.INIT_CWD ?? '.', folder);
  const file = join(dir, 'cards.json');
  if (verb === 'make') {
    mkdirSync(dir, { recursive: true });
    const cards = Array.from({ length: Number(words[0] ?? 2) }, (_, n) => card(n));
    const { env } = gpuHost(cards, { dir, reset });
    writeFileSync(file, JSON.stringify({ cards, away: [] } satisfies Kept));
    return `A host with ${cards.length} cards that nobody has. Where "onejob up" is typed:\n  export ONEJOB_HOST_ROOT=${env.ONEJOB_HOST_ROOT} PATH=${join(dir, 'tools')}:$PATH`;
  }
  if (!existsSync(file)) return `There is no host in ${dir}. Type "make" first.`;
  const kept = JSON.parse(readFileSync(file, 'utf8')) as Kept;
  const host = gpuHost(kept.cards, { dir, away: kept.away, reset });
  if (verb === 'driver') {
    host.tool('exit 18');
    return 'The driver was upgraded under its module.';
  }
  const named = kept.cards.findIndex(({ uuid }) => uuid === words[0]);
  const [n, more] = [named === -1 ? Number(words[0]) : named, Number(words[1] ?? 1)];
  if (kept.cards[n] === undefined) throw new Error(`There is no card ${words[0]}.`);
  const changes: Readonly<Record<string, () => void>> = {
    errors: () => host.change(n, { eccErrors: more, recoveryAction: 'GPU Reset' }),
    reset: () => host.change(n, card(n)),
    use: () =>
      host.change(n, more === 0 ? card(n) : { usedMiB: 9_422, processes: [{ pid: more, name: 'python3', memoryMiB: 9_421 }] }),
    unplug: () => host.unplug(n),
    plug: () => host.plug(n),
  };
  const change = changes[verb];
  if (change === undefined) return usage;
  change();
  const away = verb === 'unplug' ? [...kept.away, n] : kept.away.filter((one) => verb !== 'plug' || one !== n);
  writeFileSync(file, JSON.stringify({ cards: host.cards, away } satisfies Kept));
  return `Card ${n}: ${verb}${words.length > 1 ? ` ${words.slice(1).join(' ')}` : ''}.`;
}

try {
  console.log(run(parseArgs({ allowPositionals: true }).positionals));
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
