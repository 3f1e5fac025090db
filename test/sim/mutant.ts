/**
 * Small faults as patches, in `mutants/`. Each has a head that says what it breaks:
 *
 *     # area: loop
 *     # fault: An action begins before its step was committed.
 *     # promise: S4
 *     # found by: kills (for those that one scenario is made for: it is played first)
 *     # test: src/a.test.ts (for those that the simulator does not see: this test is red with it)
 *     # survives: why the simulator cannot see it (only for those of which that is known)
 *     # open: how far it was hunted (only for those that nobody has hunted to the end yet)
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const root = join(import.meta.dirname, '../..');
const folder = join(import.meta.dirname, 'mutants');

/** Parts of the manager; each with the outside system whose scenarios look at it first, if there is one. */
export const areas = {
  core: null,
  loop: null,
  leases: 'gpus',
  'own queue': null,
  azure: 'azure',
  buildkite: 'buildkite',
  logs: null,
  store: null,
  power: null,
} as const satisfies Record<string, string | null>;
export type Area = keyof typeof areas;

export interface Mutant {
  /** The patch's file name, without its end. */
  readonly name: string;
  readonly path: string;
  readonly area: Area;
  /** One plain sentence. */
  readonly fault: string;
  /** The promise that it breaks, such as `S6`. */
  readonly promise: string;
  /** The scenario that is made for it; null for none. */
  readonly foundBy: string | null;
  /** The test that finds it, from the root; null: the simulator does. */
  readonly test: string | null;
  /** Why it is known to survive; null when it has to be killed. */
  readonly survives: string | null;
  /** How far it was hunted; null when that was done to the end. */
  readonly open: string | null;
  /** Files that it changes, from the root. */
  readonly files: readonly string[];
}

/** All of them, by name. @throws Error that names a patch with a head that is not well-formed */
export function readMutants(): Mutant[] {
  const names = readdirSync(folder).filter((name) => name.endsWith('.patch'));
  return names.sort().map((file) => readMutant(file.slice(0, -'.patch'.length), join(folder, file)));
}

function readMutant(name: string, path: string): Mutant {
  const text = readFileSync(path, 'utf8');
  const field = (key: string): string | null => new RegExp(`^# ${key}: (.+)$`, 'm').exec(text)?.[1] ?? null;
  const [area, fault, promise] = [field('area'), field('fault'), field('promise')];
  const files = [...text.matchAll(/^\+\+\+ b\/(\S+)$/gm)].map(([, file = '']) => file);
  const wrong = (what: string): Error => new Error(`mutants/${name}.patch ${what}`);
  if (area === null || !Object.hasOwn(areas, area)) throw wrong(`needs "# area:", one of ${Object.keys(areas).join(', ')}`);
  if (fault === null || !/^[A-Z].*\.$/.test(fault)) throw wrong('needs "# fault:", a sentence');
  if (promise === null || !/^S\d+$/.test(promise)) throw wrong('needs "# promise:", such as S6');
  if (files.length === 0 || files.some((file) => !/^(src\/|install\.sh$)/.test(file)))
    throw wrong('changes nothing of the product');
  return {
    name,
    path,
    area: area as Area,
    fault,
    promise,
    foundBy: field('found by'),
    test: field('test'),
    survives: field('survives'),
    open: field('open'),
    files,
  };
}

/** What git says about a patch that does not apply to a tree; null when it does. */
export function problemOf(mutant: Mutant, tree = root): string | null {
  return apply(mutant, tree, ['--check']);
}

function apply({ path }: Mutant, tree: string, more: readonly string[]): string | null {
  // One line of context is enough to find the place, and lets the code around it change.
  const args = ['apply', '-C1', '--whitespace=nowarn', ...more, path];
  // Outside of a repository it applies to the folder; in one, `--directory` would be needed from below its root.
  const env = { ...process.env, GIT_CEILING_DIRECTORIES: join(tree, '..') };
  try {
    execFileSync('git', args, { cwd: tree, env, stdio: ['ignore', 'ignore', 'pipe'] });
    return null;
  } catch (error) {
    return (error as { stderr?: Buffer }).stderr?.toString().trim() || (error as Error).message;
  }
}

/** A copy of the product and its simulator, to which one patch at a time is applied. */
export class Copy implements Disposable {
  readonly #dir = mkdtempSync(join(tmpdir(), 'onejob-mutant-'));
  readonly #before = new Map<string, Buffer>();

  constructor() {
    for (const name of ['src', 'test', 'scripts', 'package.json', 'vitest.config.ts', 'tsconfig.json', 'install.sh'])
      cpSync(join(root, name), join(this.#dir, name), { recursive: true });
    symlinkSync(join(root, 'node_modules'), join(this.#dir, 'node_modules'));
  }

  /** Where its simulator is. */
  get simulator(): string {
    return join(this.#dir, 'test/sim');
  }

  /** The first lines of what a test there says that is red; null: it is green. @throws Error when it cannot be run */
  redOf(test: string): string | null {
    const vitest = join(root, 'node_modules/vitest/vitest.mjs');
    const report = join(this.#dir, 'report.json');
    const words = ['run', test, '--reporter=json', `--outputFile=${report}`];
    rmSync(report, { force: true });
    const { stderr } = spawnSync(process.execPath, [vitest, ...words], { cwd: this.#dir, encoding: 'utf8', timeout: 300_000 });
    if (!existsSync(report)) throw new Error(`${test} cannot be run: ${stderr}`);
    const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as {
      testResults: { assertionResults: { title: string; status: string }[] }[];
    };
    const all = testResults.flatMap(({ assertionResults }) => assertionResults);
    if (all.length === 0) throw new Error(`${test} has no test: ${stderr}`);
    return all.find(({ status }) => status === 'failed')?.title ?? null;
  }

  /** @throws Error when the patch does not apply */
  apply(mutant: Mutant): void {
    for (const file of mutant.files) this.#before.set(file, readFileSync(join(this.#dir, file)));
    const problem = apply(mutant, this.#dir, []);
    if (problem !== null) throw new Error(`mutants/${mutant.name}.patch does not apply: ${problem}`);
  }

  restore(): void {
    for (const [file, bytes] of this.#before) writeFileSync(join(this.#dir, file), bytes);
    this.#before.clear();
  }

  [Symbol.dispose](): void {
    rmSync(this.#dir, { recursive: true, force: true });
  }
}
