/** Where Gitea puts the releases of its runner, and their checksums: a file next to each (runner 1.0.8, `.goreleaser.yaml`). */
import { OnejobError } from '../../errors.ts';
import { reasonOf, receiveText } from '../../images/receive.ts';
import type { AgentProject } from '../kit/agent-program.ts';
import { pinnedRunner } from './schema.ts';

const releases = 'https://dl.gitea.com/gitea-runner';

/** Architectures of releases, by Node's names. */
const architectures: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64', s390x: 's390x', riscv64: 'riscv64' };

/** `base`: where releases are; default: the project's. */
export function giteaRunner(base = releases): AgentProject {
  return {
    ...{ name: 'gitea-runner', type: 'gitea', pinned: pinnedRunner },
    url(version, arch) {
      const name = architectures[arch];
      if (name !== undefined) return `${base}/${version}/gitea-runner-${version}-linux-${name}`;
      const hint = 'Build one, and name its path in the service: agent: { from: /path/to/gitea-runner }.';
      throw new OnejobError('E_AGENT_PACKAGE', `Gitea does not release runner ${version} for Linux on ${arch}.`, { hint });
    },
    async sum(from, options) {
      if (!from.startsWith(`${base}/`)) return null;
      const sums = new URL(`${from}.sha256`);
      try {
        const [sum = ''] = (await receiveText(sums, { ...options, limit: 4_096 })).trim().split(/\s+/);
        if (/^[0-9a-f]{64}$/i.test(sum)) return sum.toLowerCase();
        throw new Error('it has no checksum');
      } catch (error) {
        options.signal.throwIfAborted();
        throw new OnejobError('E_AGENT_PACKAGE', `Cannot check the runner from ${from} against ${sums}: ${reasonOf(error)}.`, {
          hint: `Check whether "curl -fLO ${sums}" works on this host, or name a program that is already there: agent: { from: /path/to/gitea-runner }.`,
          retry: true,
          cause: error,
        });
      }
    },
  };
}
