/**
 * Which page stands in which part of the documentation: tutorials teach, how-to guides lead to a goal, the reference is for looking up,
 * explanations say why. What only those who change onejob need is a part of its own. A page that no part names stops the build.
 */
import { globSync } from 'node:fs';

export interface Group {
  /** Null: right below the title of the part. */
  readonly title: string | null;
  /** Paths from the root of the repository. */
  readonly pages: readonly string[];
}

export interface Part {
  readonly title: string;
  readonly groups: readonly Group[];
}

/** The page that the site begins with. */
export const startPage = 'README.md';

/** The part for those who change onejob. */
export const inner = 'How onejob is made';

/** Globs of pages; what a line before has is not in a later one. */
const plan: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>> = {
  Tutorials: {
    '': ['docs/tutorials/first-hour.md', 'docs/tutorials/users.md', 'docs/tutorials/gpu-host.md', 'docs/tutorials/*.md'],
  },
  'How-to guides': {
    '': [
      'docs/choose.md',
      'docs/sizing.md',
      'docs/operating.md',
      'docs/many-hosts.md',
      'docs/people.md',
      'docs/changing-the-config.md',
      'docs/dashboard.md',
      'docs/troubleshooting.md',
      'docs/gpus.md',
      'docs/benchmark-slots.md',
      'docs/job-sizes.md',
      'docs/images.md',
      'docs/job-containers.md',
      'docs/caches.md',
      'docs/secrets.md',
      'docs/moving/*.md',
    ],
    'CI services': [
      'docs/ci/own-queue.md',
      'docs/ci/azure-pipelines.md',
      'docs/ci/buildkite.md',
      'docs/ci/buildkite-trust.md',
      'docs/ci/github.md',
      'docs/ci/gitlab.md',
      'docs/ci/gitlab-executor.md',
      'docs/ci/*.md',
    ],
    'More than one host': ['docs/scaling.md', 'docs/kubernetes.md', 'docs/cloud.md', 'docs/cloud/machine.md', 'docs/cloud/*.md'],
  },
  Reference: {
    '': [
      'docs/glossary.md',
      'docs/configuration.md',
      'docs/errors.md',
      'docs/findings.md',
      'docs/metrics.md',
      'docs/json.md',
      'docs/api.md',
      'docs/tried-with.md',
      'docs/stand-ins.md',
      'CHANGELOG.md',
    ],
    'Keys of the config': [
      'docs/configuration/pools.md',
      'docs/configuration/host.md',
      'docs/configuration/services.md',
      'docs/configuration/*.md',
    ],
    Runtimes: ['docs/runtimes/docker.md', 'docs/runtimes/process.md', 'docs/runtimes/*.md'],
  },
  Explanation: {
    '': [
      'docs/verdict.md',
      'docs/what-happens-if.md',
      'docs/what-happens-if/job.md',
      'docs/what-happens-if/*.md',
      'docs/slot-lifecycle.md',
      'docs/security.md',
      'docs/security/*.md',
      'docs/comparison.md',
      'docs/performance.md',
    ],
  },
  [inner]: {
    '': [
      'CONTRIBUTING.md',
      'docs/architecture.md',
      'docs/architecture/job.md',
      'docs/architecture/*.md',
      'docs/testing.md',
      'docs/testing/*.md',
      'docs/style.md',
    ],
    Decisions: ['docs/adr/*.md'],
  },
};

/** @throws Error for a page that stands in no part, or a line that names no page */
export function readParts(root: string): Part[] {
  const seen = new Set([startPage]);
  const parts = Object.entries(plan).map(([title, groups]) => ({
    title,
    groups: Object.entries(groups).map(([group, globs]) => ({
      title: group === '' ? null : group,
      pages: globs.flatMap((glob) => pagesOf(root, glob).filter((page) => !seen.has(page) && seen.add(page))),
    })),
  }));
  const lost = globSync('docs/**/*.md', { cwd: root }).filter((page) => !seen.has(page));
  if (lost.length > 0) throw new Error(`No part of the documentation has ${lost.join(', ')}: add it to scripts/site/parts.ts.`);
  return parts;
}

function pagesOf(root: string, glob: string): string[] {
  const found = globSync(glob, { cwd: root }).sort();
  if (found.length === 0) throw new Error(`There is no page ${glob}, which scripts/site/parts.ts names.`);
  return found;
}
