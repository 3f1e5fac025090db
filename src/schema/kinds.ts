/** All kinds of values that keys of the config can have, each with a message that says what to write instead. */
import { isIP } from 'node:net';
import { z } from 'zod';
import { globProblem } from '../base/glob.ts';
import { imageReference } from '../base/image-reference.ts';
import { no, type Parsed, parseDuration, parseShare, parseSize } from '../base/units.ts';
import { parseListen, parseNamed } from '../http/address.ts';
import type { Mount } from '../ports/runtime.ts';
import { minisignKey as parseMinisignKey } from '../system/minisign.ts';
import type { Described } from './about.ts';
import { listed } from './problem.ts';
import type { SecretReference } from './secret-reference.ts';
import { templateProblem } from './template.ts';
import { parseVolume, pathProblem } from './volumes.ts';
import { webhookProblem } from './webhook.ts';

export { no, z };

/** What was said about a key of a schema. */
export function aboutOf(type: unknown): Described {
  return (type as { readonly about: Described }).about;
}

/** Names of pools and services. */
export const word = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
export const oneLine = /^[^\p{Cc}]+$/u;

/** A zod type from a function that parses one value. `title`: its kind, as the docs page says it. */
export function value<T>(parse: (found: unknown) => Parsed<T>, title = 'text') {
  const type = z.unknown().transform((found, context): T => {
    const parsed = found === null ? no('is empty; give it a value or remove the key') : parse(found);
    if (parsed.ok) return parsed.value;
    context.addIssue({ code: 'custom', message: parsed.why });
    return z.NEVER;
  });
  return type.meta({ title });
}

/** The kind of the values of a type, as the docs page says it. */
export function kindOf(type: z.ZodType): string {
  return type.meta()?.title ?? (type instanceof z.ZodArray ? 'list' : 'map');
}

export function yes<T>(found: T): { readonly ok: true; readonly value: T } {
  return { ok: true, value: found };
}

export function text(what: string, good: RegExp = oneLine) {
  return value((found) => {
    const written = typeof found === 'number' ? String(found) : found;
    if (typeof written !== 'string') return no(`expected ${what}, found ${describeKind(found)}`);
    return good.test(written) ? yes(written) : no(`${quote(written)} is not ${what}`);
  });
}

/** A whole number, or one of these words. */
export function integer<const W extends string = never>(least: number, most: number, ...words: readonly W[]) {
  const or = words.map((word) => ` or "${word}"`).join('');
  return value(
    (found): Parsed<number | W> => {
      const word = words.find((one) => one === found);
      if (word !== undefined) return yes(word);
      if (typeof found !== 'number' || !Number.isInteger(found))
        return no(`expected a whole number${or}, found ${describeValue(found)}`);
      const range = `${least} to ${most}${or === '' ? '' : `,${or}`}`;
      return found < least || found > most ? no(`must be from ${range}, found ${found}`) : yes(found);
    },
    listed(['number', ...words.map(code)], 'or'),
  );
}

export function numeric(least: number, most: number) {
  return value((found) => {
    if (typeof found !== 'number' || Number.isNaN(found)) return no(`expected a number, found ${describeValue(found)}`);
    return found < least || found > most ? no(`must be from ${least} to ${most}, found ${found}`) : yes(found);
  }, 'number');
}

export const yesNo = value(
  (found) => (typeof found === 'boolean' ? yes(found) : no(`expected true or false, found ${describeValue(found)}`)),
  'true or false',
);

export function oneOf<const T extends readonly string[]>(words: T) {
  return value(
    (found): Parsed<T[number]> => {
      const word = words.find((one) => one === found);
      if (word !== undefined) return yes(word);
      const quoted = words.map((one) => `"${one}"`);
      return no(`expected ${listed(quoted, 'or')}, found ${describeValue(found)}`);
    },
    listed(words.map(code), 'or'),
  );
}

function measured(kind: string, example: string, parse: (written: string) => Parsed<number>, least: number, leastText: string) {
  return value((found) => {
    if (typeof found !== 'string' && typeof found !== 'number')
      return no(`expected a ${kind} such as "${example}", found ${describeKind(found)}`);
    const parsed = parse(String(found));
    if (parsed.ok && parsed.value < least) return no(`must be at least ${leastText}, found ${quote(String(found))}`);
    return parsed;
  }, kind);
}

/** ms */
export function duration(least = 0, leastText = '0s') {
  return measured('duration', '10m', parseDuration, least, leastText);
}

/** bytes */
export function size(least = 0, leastText = '0B') {
  return measured('size', '24GiB', parseSize, least, leastText);
}

/** 0 to 1 */
export const share = measured('percentage', '10%', parseShare, 0, '0%');

/** The same, or `none`, which overrides `defaults`; null. */
export function orNone<T>(type: z.ZodType<T>) {
  const none = value(() => yes(null));
  return either((found) => found === 'none', none, type).meta({ title: listed([kindOf(type), code('none')], 'or') });
}

/** Chooses the type by the kind of the value, so that a problem inside a map is reported at its own key. */
export function either<A, B>(isFirst: (found: unknown) => boolean, first: z.ZodType<A>, second: z.ZodType<B>) {
  return z.unknown().transform((found, context): A | B => {
    const parsed = (isFirst(found) ? first : second).safeParse(found, { reportInput: true });
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) context.issues.push({ ...issue, input: found } as z.core.$ZodRawIssue);
    return z.NEVER;
  });
}

/** A map with these keys. The message of an unknown key is the list of those that are known: `interpret` makes a sentence of it. */
export function mapOf<S extends Readonly<Record<string, z.ZodType>>>(shape: S) {
  const known = Object.keys(shape).join(' ');
  return z.strictObject(shape, { error: ({ code }) => (code === 'unrecognized_keys' ? known : undefined) });
}

export function isMap(found: unknown): found is Record<string, unknown> {
  return typeof found === 'object' && found !== null && !Array.isArray(found);
}

function code(word: string): string {
  return `\`${word}\``;
}

function describeValue(found: unknown): string {
  if (typeof found === 'string') return quote(found);
  return typeof found === 'number' || typeof found === 'boolean' ? String(found) : describeKind(found);
}

function quote(written: string): string {
  return JSON.stringify(written.length > 60 ? `${written.slice(0, 57)}…` : written);
}

/** The port is optional. */
export const ipAddress = value((found) => {
  const isOne = typeof found === 'string' && (isIP(found) !== 0 || isIP(parseListen(found)?.host ?? '') !== 0);
  return isOne ? yes(found) : no('expected an IP address such as "10.0.0.1", or with a port "10.0.0.1:7443" or "[fd00::1]:7443"');
}, 'address');

/** Or a name, with its port. */
export const addressOrName = value((found) => {
  if (typeof found === 'string' && parseNamed(found) !== null) return yes(found);
  const isOne = ipAddress.safeParse(found).success;
  const how = 'expected an IP address such as "10.0.0.1" or "10.0.0.1:7443", or a name with a port such as "onejob:7443"';
  return isOne ? yes(String(found)) : no(how);
}, 'address');

export const absolute = value((found) => {
  if (typeof found !== 'string') return no(`expected an absolute path, found ${describeKind(found)}`);
  const why = pathProblem(found);
  return why === null ? yes(found) : no(why);
}, 'path');

/** A secret by reference. The value may be the secret itself by mistake, so it is never shown. */
export const secretReference = z.unknown().transform((found, context): SecretReference => {
  const fail = (message: string, path: string[] = []): never => {
    context.addIssue({ code: 'custom', message, path });
    return z.NEVER;
  };
  const how = 'name the place of the secret, not its value: { file: /path } or { env: NAME }';
  if (!isMap(found)) return fail(`${how}; found ${describeKind(found)}`);
  const known = ['file', 'env', 'expires'];
  const strange = Object.keys(found).find((name) => !known.includes(name));
  if (strange !== undefined) return fail(`unknown key; ${how}, and its last day with expires: YYYY-MM-DD`, [strange]);
  const { file, env, expires = null } = found;
  if ((file === undefined) === (env === undefined))
    return fail(file === undefined ? how : `give either file or env, not both; ${how}`);
  const end = expires === null ? null : lastMoment(expires);
  if (end !== null && Number.isNaN(end)) return fail('expected a day such as 2027-05-01', ['expires']);
  if (file !== undefined) {
    if (typeof file !== 'string') return fail(`expected an absolute path, found ${describeKind(file)}`, ['file']);
    const why = pathProblem(file);
    return why === null ? { kind: 'file', path: file, expires: end } : fail(why.replace(/, found .*$/, ''), ['file']);
  }
  if (typeof env === 'string' && /^[A-Za-z_][A-Za-z0-9_]*$/.test(env)) return { kind: 'env', variable: env, expires: end };
  return fail('expected the name of an environment variable', ['env']);
});

/** An address that may be a secret, so it is never shown. */
export const webhook = either(
  isMap,
  secretReference,
  value((found) => {
    const how = 'expected an address such as "https://hooks.example/…", or its place: { file: /path } or { env: NAME }';
    if (typeof found !== 'string') return no(`${how}; found ${describeKind(found)}`);
    const why = webhookProblem(found);
    return why === null ? yes(found) : no(why);
  }),
);

/** The end of a day, UTC, in ms since the epoch; NaN for an invalid day. */
function lastMoment(found: unknown): number {
  const day = z.iso.date().safeParse(found);
  return day.success ? Date.parse(`${day.data}T23:59:59.999Z`) : Number.NaN;
}

const limit = value((found) => {
  if (found === 'unlimited' || found === -1) return yes(-1);
  if (typeof found === 'number' && Number.isSafeInteger(found) && found >= 0) return yes(found);
  return no('expected a whole number from 0, or "unlimited"');
});

export const ulimit = either(
  isMap,
  mapOf({ soft: limit, hard: limit }),
  limit.transform((both) => ({ soft: both, hard: both })),
);

export function volume(as: 'volume' | 'cache') {
  return value<Mount>((found) => {
    if (typeof found === 'string') return parseVolume(found, as);
    return no(`expected HOST:CONTAINER[:VARIABLE][:ro|rw] as text, found ${describeKind(found)}`);
  });
}

export const checksum = value((found) => {
  if (typeof found === 'string' && /^[0-9a-f]{64}$/i.test(found)) return yes(found.toLowerCase());
  return no('expected a SHA-256 checksum: 64 digits 0 to 9 and a to f');
});

export const minisignKey = value((found) => {
  if (typeof found === 'string' && parseMinisignKey(found) !== null) return yes(found);
  return no('expected a public key of minisign: the second line of minisign.pub, which begins with "RW"');
});

/** The kind of a value, in words of YAML. */
export function describeKind(found: unknown): string {
  if (found === null || found === undefined) return 'nothing';
  if (Array.isArray(found)) return 'a list';
  const kinds: Partial<Record<string, string>> = { object: 'a map', string: 'text', number: 'a number', boolean: 'true or false' };
  return kinds[typeof found] ?? 'something else';
}

export const listen = value((found) => {
  return typeof found !== 'string' || parseListen(found) === null
    ? no('expected an address and a port such as "127.0.0.1:7717" or "[::1]:7717"')
    : yes(found);
});

/** As the header `Host` has it, without a port. */
export const hostName = text(
  'the name of a host such as "gpuci.example.org", without a port',
  /^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/,
);

/** USD */
export const money = value((found) => {
  const amount = typeof found === 'number' ? String(found) : found;
  const [, digits] = typeof amount === 'string' ? (/^\$?(\d+(?:\.\d{1,2})?)(?: ?USD)?$/.exec(amount.trim()) ?? []) : [];
  return digits === undefined ? no(`expected an amount such as "40 USD", found ${describeValue(found)}`) : yes(Number(digits));
}, 'amount');

export const imageName = imageReference;
/** Nothing that a shell would read. */
export const originName = /^https?:\/\/[A-Za-z0-9.-]+(?::\d+)?\/?$/;
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

const anyImage = pattern('a pattern such as "docker.io/library/*"', 64);

/** An image as it is compared: `node` alone, or a registry that somebody else may choose, would match other things than it says. */
export const learntPattern = value((found) => {
  const parsed = anyImage.safeParse(found);
  if (!parsed.success) return no(parsed.error.issues[0]?.message ?? '');
  const isNamed = /^(?=[^/]*[.:]|localhost\/)[a-zA-Z0-9.-]+(:\d+)?\/./.test(parsed.data);
  return isNamed ? yes(parsed.data) : no(`${quote(parsed.data)} must begin with a registry, as in "docker.io/library/*"`);
});

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

/** A list is another way to write the text. */
export const tags = either(
  Array.isArray,
  z.array(text('a tag without a comma', /^[^,\r\n]{1,255}$/)).transform((all) => all.join(',')),
  either(
    isMap,
    z.record(z.string(), either(Array.isArray, z.array(text('text', oneLine)), text('text or a list of text values', oneLine))),
    text('a list, a map, or text such as "gpu=a100,os=linux"', oneLine),
  ),
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

/** A claim of the cluster and where it is mounted. */
export const claim = value((found) => {
  const how = 'expected a claim such as "imagenet:/datasets/imagenet"';
  if (typeof found !== 'string') return no(`${how}, found ${describeKind(found)}`);
  const [, name, path, mode] = /^([a-z0-9][-a-z0-9.]*):(\/[^:]*)(?::(ro|rw))?$/.exec(found) ?? [];
  if (name === undefined || path === undefined) return no(`${how}, found ${quote(found)}`);
  const why = pathProblem(path);
  return why === null ? yes({ claim: name, path, writable: mode === 'rw' }) : no(`${quote(found)}: ${why}`);
}, 'claim');
