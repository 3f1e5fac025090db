/** All kinds of values that keys of the config can have: those of `values.ts`, and those of a single key. */
import { z } from 'zod';
import { globProblem } from '../glob.ts';
import type { Described, Keys } from './key.ts';
import * as kinds from './kinds.ts';
import { templateProblem } from './template.ts';
import { parseSize } from './units.ts';
import { describeKind, either, isMap, kindOf, no, oneLine, oneOf, orNone, text, value, yes } from './values.ts';

export * from './values.ts';
export { z };

/** The schema of a map. */
export function strict<S extends Keys>(keys: S) {
  const shape = Object.entries(keys).map(([name, { type: make, default: usual, told }]) => {
    const type = make(kinds);
    const [kind, about] = told.length === 1 ? [kindOf(type), told[0]] : told;
    return [name, Object.assign(type.optional(), { about: { ...about, kind, default: usual } satisfies Described })];
  });
  return z.strictObject(Object.fromEntries(shape) as { [K in keyof S]: z.ZodOptional<ReturnType<S[K]['type']>> });
}

/** What was said about a key of a schema. */
export function aboutOf(type: unknown): Described {
  return (type as { readonly about: Described }).about;
}

export const imageName = /^[A-Za-z0-9][^\s\p{Cc}]{0,511}$/u;
export const networkName = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/;

export const rules = ['refuse', 'run-without-secrets'] as const;
export const rule = oneOf(rules);

/** Earlier versions had `run` for forks, which would give them secrets now. */
export const forkRule = either(
  (found) => found === 'run',
  value<(typeof rules)[number]>(() => no('"run" would give secrets to anyone who opens a pull request; use "run-without-secrets"')),
  rule,
);

/** Refuses negation: one of several patterns must match, so that `!main` next to `*` would keep nothing out. */
export function pattern(what: string, slashes: number) {
  return value((found) => {
    if (typeof found !== 'string') return no(`expected ${what}, found ${isMap(found) ? 'a map' : describeKind(found)}`);
    if (found === '' || found.length > 255 || !oneLine.test(found)) return no(`expected ${what}`);
    if (found.startsWith('!'))
      return no(`${JSON.stringify(found)} begins with "!"; a pattern says what is trusted, not what is not`);
    const problem = globProblem(found);
    if (problem !== null) return no(`${JSON.stringify(found)} is not a valid pattern: ${problem}`);
    if (found.split('/').length - 1 > slashes) return no(`${JSON.stringify(found)} is not ${what}: it has too many slashes`);
    return yes(found);
  });
}

const anyRepository = pattern('a pattern such as "github.com/acme/*"', 64);

/** A repository as it is compared: other ways to write its address would silently match nothing. */
export const repositoryPattern = value((found) => {
  const known = anyRepository.safeParse(found);
  if (!known.success || typeof found !== 'string') return no(known.error?.issues[0]?.message ?? 'expected a pattern');
  const shown = JSON.stringify(found);
  const plain = found
    .replace(/^(https?|git):\/\/([^/@]*@)?/i, '')
    .replace(/^[a-z+]+:\/\//i, '')
    .replace(/^([^/:@]*):[^/@]*@/, '$1@')
    .replace(/^git@/, '')
    .replace(/^([^/:]+):(?!\d+\/)/, '$1/')
    .replace(/(\.git)?\/*$/, '');
  if (plain !== found) {
    // A server may have other repositories for a user other than `git`.
    const any = plain.includes('@') ? '' : ', whatever protocol fetches it';
    return no(`${shown} would match nothing; write it as ${JSON.stringify(plain)}${any}`);
  }
  return found.includes('/') || found === '**'
    ? yes(found)
    : no(`${shown} names no repository; write HOST/PATH such as "github.com/acme/*"`);
});

export const atLeastSize = value((found) => {
  const size = typeof found === 'string' ? /^(?:>=|<=|>|<|=)?\s*(\S.*)$/.exec(found)?.[1] : undefined;
  if (size === undefined || typeof found !== 'string') return no('expected a condition such as ">=40GiB"');
  const parsed = parseSize(size);
  return parsed.ok ? yes(found) : no(parsed.why);
});

export const uuid = text('the UUID of a device such as "GPU-…" or "MIG-…"', /^[A-Za-z0-9][A-Za-z0-9/_.:-]{3,127}$/);

export const environment = z.record(
  z.string(),
  value((found) =>
    typeof found === 'string' ? (found.includes('\0') ? no('contains a NUL character') : yes(found)) : no('expected text'),
  ),
);

export const agentName = value((found) => {
  if (typeof found !== 'string' || found === '') return no('expected a name such as "gpu.{1..}"');
  const why = templateProblem(found);
  return why === null ? yes(found) : no(`${JSON.stringify(found)} ${why}`);
});

export const tags = either(
  isMap,
  z.record(z.string(), either(Array.isArray, z.array(text('text', oneLine)), text('text or a list of text values', oneLine))),
  text('a map, or text such as "gpu=a100,os=linux"', oneLine),
);

export const variable = orNone(text('the name of a variable such as "OMP_NUM_THREADS"', /^[A-Za-z_][A-Za-z0-9_]{0,127}$/));

export const user = text(
  'a user such as "1000", "1000:1000" or "builder"',
  /^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$/,
);

export const tmpfs = z.record(
  z.string(),
  value((found) => {
    if (typeof found !== 'string') return no('expected a size such as "64MiB", or mount options such as "size=64m,mode=1777"');
    const parsed = parseSize(found);
    if (parsed.ok) return yes(`size=${parsed.value}`);
    return found === '' || /^[a-z0-9_=,%]*=[a-z0-9_=,%]*$/.test(found) || /^(rw|ro|noexec|nosuid|nodev|exec)(,|$)/.test(found)
      ? yes(found)
      : no(parsed.why);
  }),
);

export const capabilities = z.array(
  value((found) => {
    const name = typeof found === 'string' ? found.toUpperCase().replace(/^CAP_/, '') : '';
    if (name === 'ALL') return no('"ALL" is not possible; use unsafe: { privileged: true } instead');
    return /^[A-Z_]{3,32}$/.test(name) ? yes(name) : no('expected the name of a capability such as "SYS_PTRACE"');
  }),
);

const argument = value((found) => {
  const written = typeof found === 'number' ? String(found) : found;
  if (typeof written !== 'string') return no(`expected text, found ${describeKind(found)}`);
  return written.includes('\0') ? no('contains a NUL character') : yes(written);
});

/** A program and its arguments, which run without a shell. */
export const command = z.array(argument).transform((words, context): [string, ...string[]] => {
  const [program, ...rest] = words;
  const isPath = program?.includes('/') ?? false;
  const why =
    program === undefined || program === ''
      ? 'names no program'
      : isPath && !program.startsWith('/')
        ? `begins with ${JSON.stringify(program)}, which is neither an absolute path nor a name on the PATH`
        : null;
  if (why === null) return [program ?? '', ...rest];
  context.addIssue({ code: 'custom', message: `${why}; write [program, argument, …]` });
  return z.NEVER;
});
