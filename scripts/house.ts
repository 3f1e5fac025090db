/**
 * `npm run house`: what the source looks like from outside, in figures. `--all` lists what they count; `--running` starts daemons, and
 * counts what of the source runs, too.
 */
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { floors } from './house/floors.ts';
import { loadedBy, readSource } from './house/graph.ts';
import { inferredInterfaces, longFunctions, sharedNames, spreadLiterals } from './house/measures.ts';
import { linesOf, longParagraphs, testFiles } from './house/pages.ts';
import { mutualPairs, violationsOf } from './house/rules.ts';

const { values, positionals } = parseArgs({
  options: { all: { type: 'boolean', default: false }, running: { type: 'boolean', default: false } },
  allowPositionals: true,
});
const root = resolve(positionals[0] ?? resolve(import.meta.dirname, '..'));
const files = readSource(root);
const imports = files.flatMap((file) => file.imports);
const { circles, up } = violationsOf(imports, floors);
const long = longFunctions(files, 100);
const longest = long.filter(({ lines }) => lines > 150);
const shared = sharedNames(files);
const configs = [...loadedBy('config/load.ts', imports)];

const running = values.running ? await (await import('./house/running.ts')).readRunning() : null;
const figures: (readonly [what: string, items: readonly string[]])[] = [
  ['files in import circles (values, types, lazy)', circles.map((circle) => circle.join(' ')).flatMap((all) => all.split(' '))],
  ['pairs of rooms that import each other', mutualPairs(imports)],
  ['imports that run up', up],
  ['files that config/load.ts loads', configs],
  ['functions of more than 150 lines', longest.map(({ place, lines }) => `${place} ${lines}`)],
  ['functions of more than 100 lines', long.map(({ place, lines }) => `${place} ${lines}`)],
  ['...{ in object literals', spreadLiterals(files)],
  ['ReturnType<typeof', inferredInterfaces(files)],
  ['names exported by three or more files with different types', shared.map(({ name, files: by }) => `${name}: ${by.join(' ')}`)],
  ['paragraphs of more than 80 words on the pages about the architecture', longParagraphs(root, 80)],
];
if (running !== null) {
  figures.push(['files that a daemon without services loads', running.loaded]);
  figures.push(['files that run only for one job of the own queue', running.forJob]);
}
const print = (count: number, what: string): void => console.log(`${String(count).padStart(7)}  ${what}`);
for (const [what, items] of figures) {
  print(items.length, what);
  if (values.all) for (const item of items) console.log(`         ${item}`);
}
if (running !== null)
  print(
    linesOf(
      root,
      running.loaded.map((path) => `src/${path}`),
    ),
    'lines that a daemon without services loads',
  );
const production = [...files.map(({ path }) => `src/${path}`), 'src/machines/boot/boot.sh'];
print(linesOf(root, production), `lines in ${production.length} files of src without tests`);
const tests = testFiles(root);
print(linesOf(root, tests), `lines in ${tests.length} files of tests and what they use`);
