/** Where Gitea puts the releases of its runner, and their checksums: a file next to each (runner 1.0.8, `.goreleaser.yaml`). */
import { OnejobError } from '../../base/errors.ts';
import type { AgentProject } from '../kit/agent-program.ts';
import { releasedSum } from '../kit/released.ts';
import { pinnedRunner } from './schema.ts';

const releases = 'https://dl.gitea.com/gitea-runner';

/** Architectures of releases, by Node's names. */
const architectures: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64', s390x: 's390x', riscv64: 'riscv64' };

/** `base`: where releases are; default: the project's. */
export function giteaRunner(base = releases): AgentProject {
  return {
    name: 'gitea-runner',
    type: 'gitea',
    pinned: pinnedRunner,
    url(version, arch) {
      const name = architectures[arch];
      if (name !== undefined) return `${base}/${version}/gitea-runner-${version}-linux-${name}`;
      const hint = 'Build one, and name its path in the service: agent: { from: /path/to/gitea-runner }.';
      throw new OnejobError('E_AGENT_PACKAGE', `Gitea does not release runner ${version} for Linux on ${arch}.`, { hint });
    },
    async sum(from, options) {
      if (!from.startsWith(`${base}/`)) return null;
      const file = from.replace(/^.*\//, '');
      return releasedSum({ from, sums: new URL(`${from}.sha256`), file, program: 'gitea-runner' }, options);
    },
  };
}
