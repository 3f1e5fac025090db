/** Where GitLab puts the releases of its runner, and their checksums: one file for all of a version (docs, "Bleeding edge releases"). */
import { OnejobError } from '../../errors.ts';
import { reasonOf, receiveText } from '../../images/receive.ts';
import type { AgentProject } from '../kit/agent-program.ts';
import { pinnedRunner } from './schema.ts';

const releases = 'https://gitlab-runner-downloads.s3.amazonaws.com';

/** Architectures of releases, by Node's names. */
const architectures: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64', s390x: 's390x', ppc64: 'ppc64le' };

/** `base`: where releases are; default: the project's. */
export function gitlabRunner(base = releases): AgentProject {
  return {
    ...{ name: 'gitlab-runner', type: 'gitlab', pinned: pinnedRunner },
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
      try {
        const lines = (await receiveText(sums, { ...options, limit: 65_536 }))
          .split('\n')
          .map((line) => line.trim().split(/\s+\*?/));
        const sum = lines.find(([, name]) => name?.replace(/^\.\//, '') === file)?.[0] ?? '';
        if (/^[0-9a-f]{64}$/i.test(sum)) return sum.toLowerCase();
        throw new Error(`it has no checksum of ${file}`);
      } catch (error) {
        options.signal.throwIfAborted();
        throw new OnejobError('E_AGENT_PACKAGE', `Cannot check the runner from ${from} against ${sums}: ${reasonOf(error)}.`, {
          hint: `Check whether "curl -fLO ${sums}" works on this host, or name a program that is already there: agent: { from: /path/to/gitlab-runner }.`,
          retry: true,
          cause: error,
        });
      }
    },
  };
}
