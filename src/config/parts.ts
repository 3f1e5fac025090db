/** The larger values of a pool: devices, image recipes, secrets, ulimits, volumes. */
import { z } from 'zod';
import type { Mount } from '../runtimes/runtime.ts';
import type { SecretReference } from '../secrets/reference.ts';
import { describeKind } from './kind.ts';
import { parseSize } from './units.ts';
import { either, integer, integerOr, isMap, key, no, oneLine, oneOf, text, value, yes, yesNo } from './values.ts';
import { parseVolume, pathProblem } from './volumes.ts';

const atLeastSize = value((found) => {
  const size = typeof found === 'string' ? /^(?:>=|<=|>|<|=)?\s*(\S.*)$/.exec(found)?.[1] : undefined;
  if (size === undefined || typeof found !== 'string') return no('expected a condition such as ">=40GiB"');
  const parsed = parseSize(size);
  return parsed.ok ? yes(found) : no(parsed.why);
});

const uuid = text('the UUID of a device such as "GPU-…" or "MIG-…"', /^[A-Za-z0-9][A-Za-z0-9/_.:-]{3,127}$/);

export const deviceKeys = z.strictObject({
  count: key(integerOr('all', 1, 512), 'number or `all`', { description: 'How many.', example: '2', shown: '1' }),
  model: key(text('a model', oneLine), 'text', { description: 'Words that the name of the device holds.', example: 'A100' }),
  vendor: key(oneOf(['nvidia', 'amd', 'intel']), '`nvidia`, `amd` or `intel`', { description: 'Who made it.', example: 'nvidia' }),
  memory: key(atLeastSize, 'condition', {
    description: 'How much memory it has; a size alone means at least.',
    example: '">=40GiB"',
  }),
  compute: key(text('a condition such as ">=8.0"', /^(>=|<=|>|<|=)?\s*\d+(\.\d+)?$/), 'condition', {
    description: 'Its compute capability; a number alone means at least.',
    example: '">=8.0"',
  }),
  mig: key(
    either(
      (found) => typeof found === 'boolean',
      yesNo,
      text('true, false or a profile such as "1g.10gb"', /^(\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb([+-][a-z0-9.+-]+)?$/i),
    ),
    'true, false or profile',
    { description: 'MIG instances instead of whole cards.', example: '1g.10gb', shown: 'false' },
  ),
  uuid: key(either(Array.isArray, z.array(uuid), uuid), 'text or list', {
    description: 'Only these. The first agent of the pool gets the first of them, and so on.',
    example: '[GPU-8a6b1a3c-0e6b-4c80-8e0a-0d0a8f6e2a11]',
  }),
  share: key(integer(1, 64), 'number', {
    description: 'How many agents may hold the same device at the same time.',
    example: '2',
    shown: '1',
  }),
  display: key(oneOf(['refuse', 'allow']), '`refuse` or `allow`', {
    description: 'Whether a card that drives a display may be taken.',
    example: 'refuse',
    shown: 'allow',
  }),
  capabilities: key(z.array(oneOf(['graphics', 'video', 'display'])), 'list of `graphics`, `video` and `display`', {
    description: "What NVIDIA's driver may be used for beside computing and nvidia-smi.",
    example: '[graphics, video]',
  }),
  numa: key(yesNo, 'true or false', {
    description: 'Agents only run on CPUs of the NUMA nodes that their devices hang on, where the host tells these.',
    example: 'true',
    shown: 'false',
  }),
});

export const absolute = value((found) => {
  if (typeof found !== 'string') return no(`expected an absolute path, found ${describeKind(found)}`);
  const why = pathProblem(found);
  return why === null ? yes(found) : no(why);
});

export const imageKeys = z.strictObject({
  base: key(text('an image, or "auto"', /^[A-Za-z0-9][^\s\p{Cc}]{0,511}$/u), 'image or `auto`', {
    description: 'What to build on.',
    example: '"ubuntu:24.04"',
  }),
  packages: key(z.array(text('the name of a package', /^[a-z0-9][a-z0-9+.:=~_-]*$/i)), 'list', {
    description: "Packages of the image's distribution, put on top of it.",
    example: '[git, curl]',
  }),
  dockerfile: key(absolute, 'path', {
    description: 'A Dockerfile that is built first. No other file of its folder is sent with it.',
    example: '/etc/onejob/Dockerfile',
  }),
  flavour: key(oneOf(['base', 'runtime', 'devel']), '`base`, `runtime` or `devel`', {
    description: 'How much of the GPU tools `auto` brings.',
    example: 'runtime',
    shown: 'devel',
  }),
  distribution: key(text('a distribution such as "ubuntu22.04"', /^[a-z][a-z0-9. :_-]{1,31}$/i), 'text', {
    description: 'Which distribution `auto` takes an image of.',
    example: 'ubuntu22.04',
    shown: "Ubuntu's newest that fits",
  }),
});

/** A secret by reference. What stands in its place by mistake may be the secret itself: it is never shown. */
export const secretReference = z.unknown().transform((found, context): SecretReference => {
  const fail = (message: string, path: string[] = []): never => {
    context.addIssue({ code: 'custom', message, path });
    return z.NEVER;
  };
  const how = 'a secret is named, not written down: { file: /path } or { env: NAME }';
  if (!isMap(found)) return fail(`${how}; found ${describeKind(found)}`);
  const known = ['file', 'env', 'expires'];
  const strange = Object.keys(found).find((name) => !known.includes(name));
  if (strange !== undefined) return fail(`unknown key; ${how}, and when it ends with expires: YYYY-MM-DD`, [strange]);
  const { file, env, expires = null } = found;
  if ((file === undefined) === (env === undefined)) return fail(file === undefined ? how : `both file and env are given; ${how}`);
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

/** The end of a day, UTC, in ms since the epoch; NaN when there is no such day. */
function lastMoment(found: unknown): number {
  if (typeof found !== 'string' || !/^\d{4}-\d\d-\d\d$/.test(found)) return Number.NaN;
  const at = Date.parse(`${found}T00:00:00Z`);
  // Date rolls 2027-02-30 over into March in some forms; what comes back must be the same day.
  return !Number.isNaN(at) && new Date(at).toISOString().startsWith(found) ? at + 86_399_999 : Number.NaN;
}

const limit = value((found) => {
  if (found === 'unlimited' || found === -1) return yes(-1);
  if (typeof found === 'number' && Number.isSafeInteger(found) && found >= 0) return yes(found);
  return no('expected a whole number from 0, or "unlimited"');
});

export const ulimit = either(
  isMap,
  z.strictObject({ soft: limit, hard: limit }),
  limit.transform((both) => ({ soft: both, hard: both })),
);

export function volume(as: 'volume' | 'cache') {
  return value<Mount>((found) => {
    if (typeof found === 'string') return parseVolume(found, as);
    return no(`expected HOST:CONTAINER[:VARIABLE][:ro|rw] as a text, found ${describeKind(found)}`);
  });
}
