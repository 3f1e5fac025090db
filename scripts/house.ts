/** `npm run house`: what the source looks like from outside, in figures. `--all` lists what they count. */
import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { floors } from './house/floors.ts';
import { loadedBy, readSource } from './house/graph.ts';
import { inferredInterfaces, longFunctions, sharedNames, spreadLiterals } from './house/measures.ts';
import { mutualPairs, violationsOf } from './house/rules.ts';

const { values, positionals } = parseArgs({
  options: { all: { type: 'boolean', default: false } },
  allowPositionals: true,
});
const files = readSource(resolve(positionals[0] ?? resolve(import.meta.dirname, '..')));
const imports = files.flatMap((file) => file.imports);
const { circles, up } = violationsOf(imports, floors);
const long = longFunctions(files, 100);
const longest = long.filter(({ lines }) => lines > 150);
const shared = sharedNames(files);
const configs = [...loadedBy('config/load.ts', imports)];

const figures: readonly (readonly [what: string, items: readonly string[]])[] = [
  ['files in import circles (values, types, lazy)', circles.map((circle) => circle.join(' ')).flatMap((all) => all.split(' '))],
  ['pairs of rooms that import each other', mutualPairs(imports)],
  ['imports that run up', up],
  ['files that config/load.ts loads', configs],
  ['functions of more than 150 lines', longest.map(({ place, lines }) => `${place} ${lines}`)],
  ['functions of more than 100 lines', long.map(({ place, lines }) => `${place} ${lines}`)],
  ['...{ in object literals', spreadLiterals(files)],
  ['ReturnType<typeof', inferredInterfaces(files)],
  ['names exported by three or more files with different types', shared.map(({ name, files: by }) => `${name}: ${by.join(' ')}`)],
];
for (const [what, items] of figures) {
  console.log(`${String(items.length).padStart(5)}  ${what}`);
  if (values.all) for (const item of items) console.log(`         ${item}`);
}
const lines = files.reduce((sum, { text }) => sum + text.split('\n').length - 1, 0);
console.log(`${String(lines).padStart(5)}  lines in ${files.length} TypeScript files of src without tests`);
