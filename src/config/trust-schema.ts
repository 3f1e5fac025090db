/** How a pool's trust is written. What the rules mean is decided in `src/ci/buildkite/trust.ts`. */
import { z } from 'zod';
import { globProblem } from '../glob.ts';
import { poolDefaults } from './defaults.ts';
import { describeKind } from './kind.ts';
import { either, isMap, key, no, oneLine, oneOf, text, value, yes } from './values.ts';

const { trust: defaults } = poolDefaults;
const rules = ['refuse', 'run-without-secrets'] as const;
const rule = oneOf(rules);

/** `run` was a word for forks once: who wrote it must hear that it would have given them secrets. */
const forkRule = either(
  (found) => found === 'run',
  value<(typeof rules)[number]>(() => no('"run" would hand secrets to whoever opens a pull request; write "run-without-secrets"')),
  rule,
);

/** Negation is refused: with several patterns, of which one must match, `!main` beside `*` would keep nothing out. */
function pattern(what: string, slashes: number) {
  return value((found) => {
    if (typeof found !== 'string') return no(`expected ${what}, found ${isMap(found) ? 'a map' : describeKind(found)}`);
    if (found === '' || found.length > 255 || !oneLine.test(found)) return no(`expected ${what}`);
    if (found.startsWith('!'))
      return no(`${JSON.stringify(found)} begins with "!"; a pattern says what is trusted, not what is not`);
    const problem = globProblem(found);
    if (problem !== null) return no(`${JSON.stringify(found)} is no pattern that is known: ${problem}`);
    if (found.split('/').length - 1 > slashes) return no(`${JSON.stringify(found)} is not ${what}: it has too many slashes`);
    return yes(found);
  });
}

const anyRepository = pattern('a pattern such as "github.com/acme/*"', 64);

/** What an address means, in the one way of writing that is compared: other ways would match nothing, and say nothing of it. */
const repositoryPattern = value((found) => {
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
    // Of another user than `git` a server may have other repositories.
    const any = plain.includes('@') ? '' : ', whichever way it is fetched';
    return no(`${shown} would match nothing; write it as ${JSON.stringify(plain)}${any}`);
  }
  return found.includes('/') || found === '**'
    ? yes(found)
    : no(`${shown} names no repository; write HOST/PATH such as "github.com/acme/*"`);
});

export const trustKeys = z.strictObject({
  forks: key(forkRule, '`refuse` or `run-without-secrets`', {
    description: 'What happens to pull requests from another repository, and to those of which nobody says where they are from.',
    example: 'refuse',
    shown: defaults.forks,
  }),
  pipelines: key(z.array(pattern('a pattern such as "app-*" or "acme/app"', 1)), 'list of patterns', {
    description:
      'Pipelines whose jobs are trusted, by their slug or as `organisation/slug`. `*` stands for any text without a slash, `{a,b}` for either.',
    example: '[app, "app-*"]',
    shown: 'any',
  }),
  branches: key(z.array(pattern('a pattern such as "release/*"', 64)), 'list of patterns', {
    description:
      "Branches whose jobs are trusted. `*` stands for any text without a slash, `**` for any text: `release/**` is all below `release/`. Forks' branches have no say.",
    example: '[main, "release/**"]',
    shown: 'any',
  }),
  tags: key(z.array(pattern('a pattern such as "v*"', 64)), 'list of patterns', {
    description:
      "Tags whose builds are trusted, whatever `branches` says. Without it no build of a tag is: who may push tags may name one like a protected branch. Forks' tags have no say.",
    example: '["v*"]',
    shown: 'none',
  }),
  sources: key(z.array(oneOf(['webhook', 'schedule', 'ui', 'api', 'trigger_job'])), 'list', {
    description:
      'What may have made the build of a trusted job. Who makes one on the website (`ui`) or by the API (`api`) names branch and commit by hand, without the right to push.',
    example: '[webhook, schedule]',
    shown: 'any',
  }),
  repositories: key(z.array(repositoryPattern), 'list of patterns', {
    description:
      'Repositories whose jobs are trusted, as `HOST/PATH`, whichever way they are fetched; `USER@HOST/PATH` where SSH logs in as another user than `git`. Without it a pipeline is believed which repository is its own.',
    example: '["github.com/acme/*"]',
    shown: 'any',
  }),
  triggered: key(oneOf(['as-others', 'trust']), '`as-others` or `trust`', {
    description:
      'Builds that another build triggered (a `trigger` step). The service does not say whether that was one of a fork, which chooses branch, commit and environment of what it triggers: `as-others` treats them as `others` says, `trust` by the other rules alone.',
    example: 'trust',
    shown: defaults.triggered,
  }),
  others: key(rule, '`refuse` or `run-without-secrets`', {
    description:
      'What happens to jobs that `pipelines`, `branches`, `tags`, `sources` or `repositories` do not name, and to those that `triggered` is about.',
    example: 'refuse',
    shown: defaults.others,
  }),
  caches: key(oneOf(['none', 'private']), '`none` or `private`', {
    description:
      'Caches of untrusted jobs. `private`: those that have a name, with a folder of their own for each repository; jobs of the same fork share them. All of them together have one `cache_limit`.',
    example: 'private',
    shown: defaults.caches,
  }),
  image: key(text('an image such as "debian:stable-slim"', /^[A-Za-z0-9][^\s\p{Cc}]{0,511}$/u), 'image', {
    description: 'Image of untrusted jobs.',
    example: 'ghcr.io/acme/ci-plain:3',
    shown: "the pool's",
  }),
  network: key(text('a network: "default", "internet", or the name of one', /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/), 'text', {
    description:
      "Network of untrusted jobs, as `network` of the pool, whatever that is. `default` lets them reach this host's ports, private networks and a cloud's metadata (169.254.169.254).",
    example: 'untrusted-lab',
    shown: defaults.network,
  }),
});
