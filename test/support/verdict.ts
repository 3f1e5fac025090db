/**
 * What red tests of a lane mean. Pure: outcomes, the books and a date go in, a verdict comes out.
 *
 * - A red test of the deterministic part is a bug: nothing runs again, and no book excuses it.
 * - Any other red file runs again alone. Red every time is a regression; green once makes it a flake, one line each test.
 * - Two flakes of one test put it into quarantine until a date: it still runs and is still written down, but does not count.
 * - A quarantine that grows past ten entries, or that outlives its date, is red itself. So it is a debt, not a drawer.
 */

/** How long a test may stay in quarantine. */
export const quarantineDays = 14;
/** How many tests may be in quarantine at once. */
export const quarantineLimit = 10;
/** So many flakes of one test put it there. */
export const flakesToQuarantine = 2;

/** A test by its file and full name. The name '' stands for the file itself: it failed before, or beside, its tests. */
export interface TestName {
  readonly file: string;
  readonly test: string;
}

/** One run of one file. */
export interface FileRun {
  readonly file: string;
  readonly passed: readonly string[];
  /** First lines of what each red test said. */
  readonly failed: ReadonlyMap<string, string>;
}

/** What is the same for all flakes of one run of a lane. */
export interface Circumstances {
  /** Which lane: `gate` or `acceptance`. */
  readonly lane: string;
  /** Today, as YYYY-MM-DD. */
  readonly date: string;
  readonly commit: string;
  readonly seed: string | null;
  /** The machine's load over the last minute when the first run had ended. */
  readonly load: number;
}

/** One line of `test/flakes.jsonl`. */
export interface Flake extends TestName, Circumstances {
  /** Of how many runs it was red in how many. */
  readonly red: string;
  readonly said: string;
}

/** One entry of `test/quarantine.json`. */
export interface Quarantined extends TestName {
  readonly since: string;
  /** The last day on which it does not count. */
  readonly until: string;
}

/** The two files that outlive a run. */
export interface Books {
  readonly flakes: readonly Flake[];
  readonly quarantine: readonly Quarantined[];
}

export interface Verdict {
  /** Tests that are red, and what they said. None: the lane is green. */
  readonly red: readonly (TestName & { readonly said: string })[];
  /** What is wrong with the quarantine itself; each counts as a failure. */
  readonly problems: readonly string[];
  /** Lines to append. */
  readonly flakes: readonly Flake[];
  /** The whole quarantine from now on. */
  readonly quarantine: readonly Quarantined[];
  /** Tests in quarantine that ran. */
  readonly notCounted: number;
  readonly passed: number;
}

/** True when a red run of a file has to be repeated: something in it is red that counts. */
export function isRed(run: FileRun, quarantine: readonly TestName[]): boolean {
  return [...run.failed.keys()].some((test) => !has(quarantine, { file: run.file, test }));
}

/** Judges a lane. `runs` has all runs of each file, the first one first; a file that ran once was green, or may not run again. */
export function judge(
  runs: readonly (readonly FileRun[])[],
  books: Books,
  circumstances: Circumstances,
  options: { readonly isDeterministic: (file: string) => boolean; readonly honoursQuarantine: boolean },
): Verdict {
  const excused = options.honoursQuarantine ? books.quarantine : [];
  const red: (TestName & { said: string })[] = [];
  const flakes: Flake[] = [];
  let passed = 0;
  let notCounted = 0;

  for (const attempts of runs) {
    const last = attempts.at(-1);
    if (last === undefined) continue;
    const { file } = last;
    const isFixed = options.isDeterministic(file);
    const lenient = isFixed ? [] : excused;
    const isStillRed = isRed(last, lenient);
    for (const test of new Set(attempts.flatMap((run) => [...run.passed, ...run.failed.keys()]))) {
      const name = { file, test };
      const said = attempts.map((run) => run.failed.get(test)).filter((text) => text !== undefined);
      const isExcused = has(lenient, name);
      if (isExcused) notCounted++;
      if (isStillRed && !isExcused && last.failed.has(test)) red.push({ ...name, said: said[0] ?? '' });
      else if (said.length > 0)
        flakes.push({ ...name, ...circumstances, red: `${said.length} of ${attempts.length}`, said: said[0] ?? '' });
      // A file is not a test: when it is green, nothing of that name passes.
      if (!isExcused && test !== '' && !last.failed.has(test)) passed++;
    }
  }

  const quarantine = options.honoursQuarantine ? grown(books, flakes, circumstances.date) : books.quarantine;
  const problems = options.honoursQuarantine ? problemsOf(quarantine, circumstances.date, options.isDeterministic) : [];
  return { red, problems, flakes, quarantine, notCounted, passed };
}

/** The quarantine with every test in it that has too many flakes by now. */
function grown(books: Books, added: readonly Flake[], date: string): readonly Quarantined[] {
  const quarantine = [...books.quarantine];
  const counts = new Map<string, number>();
  for (const { file, test } of [...books.flakes, ...added]) {
    const key = `${file}\n${test}`;
    const count = (counts.get(key) ?? 0) + 1;
    counts.set(key, count);
    if (count < flakesToQuarantine || has(quarantine, { file, test })) continue;
    quarantine.push({ file, test, since: date, until: daysLater(date, quarantineDays) });
  }
  return quarantine;
}

function problemsOf(quarantine: readonly Quarantined[], date: string, isDeterministic: (file: string) => boolean): string[] {
  const problems = quarantine.flatMap((entry) => {
    if (isDeterministic(entry.file)) return [`${show(entry)} is of the deterministic part, which knows no quarantine.`];
    return entry.until < date
      ? [`${show(entry)} has been in quarantine since ${entry.since}: its time ended on ${entry.until}.`]
      : [];
  });
  if (quarantine.length > quarantineLimit)
    problems.push(`${quarantine.length} tests are in quarantine, and ${quarantineLimit} is the most.`);
  return problems;
}

/** A test as people read it. */
export function show({ file, test }: TestName): string {
  return test === '' ? file : `${file}: ${test}`;
}

function has(list: readonly TestName[], { file, test }: TestName): boolean {
  return list.some((one) => one.file === file && one.test === test);
}

function daysLater(date: string, days: number): string {
  return new Date(Date.parse(date) + days * 24 * 3_600_000).toISOString().slice(0, 10);
}
