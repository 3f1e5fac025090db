/** Where GitLab puts the releases of its runner, and their checksums: one file for all of a version (docs, "Bleeding edge releases"). */
import { OnejobError } from '../../base/errors.ts';
import type { AgentProject } from '../kit/agent-program.ts';
import { releasedSum } from '../kit/released.ts';
import { pinnedRunner } from './schema.ts';

const releases = 'https://gitlab-runner-downloads.s3.amazonaws.com';

/** Architectures of releases, by Node's names. */
const architectures: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64', s390x: 's390x', ppc64: 'ppc64le' };

/** `base`: where releases are; default: the project's. */
export function gitlabRunner(base = releases): AgentProject {
  return {
    name: 'gitlab-runner',
    type: 'gitlab',
    pinned: pinnedRunner,
    url(version, arch) {
      const name = architectures[arch];
      if (name !== undefined) return `${base}/v${version}/binaries/gitlab-runner-linux-${name}`;
      const hint = 'Build one, and name its path in the service: agent: { from: /path/to/gitlab-runner }.';
      throw new OnejobError('E_AGENT_PACKAGE', `GitLab does not release runner ${version} for Linux on ${arch}.`, { hint });
    },
    async sum(from, options) {
      const [, version, file] = from.startsWith(base)
        ? (/^\/(v[^/]+)\/(binaries\/[^/]+)$/.exec(from.slice(base.length)) ?? [])
        : [];
      if (version === undefined) return null;
      const sums = new URL(`${base}/${version}/release.sha256`);
      return releasedSum({ from, sums, file: file ?? '', program: 'gitlab-runner' }, options);
    },
  };
}
