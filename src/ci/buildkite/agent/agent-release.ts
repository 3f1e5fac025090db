/**
 * Where Buildkite puts the releases of its agent, and their checksums: one list per release, next to its files (agent 3.137,
 * `install.sh`, `.buildkite/steps/build-github-release.sh`).
 */
import { OnejobError } from '../../../base/errors.ts';
import { reasonOf, receiveText } from '../../../images/receive.ts';
import type { AgentProject } from '../../kit/agent-program.ts';
import { pinnedAgent } from '../schema.ts';

const releases = 'https://github.com/buildkite/agent/releases/download';

/** Architectures of releases, by Node's names; onejob knows no other releases. */
const architectures: Readonly<Record<string, string>> = {
  x64: 'amd64',
  arm64: 'arm64',
  arm: 'armhf',
  ppc64: 'ppc64le',
  s390x: 's390x',
  riscv64: 'riscv64',
  ia32: '386',
};

/** @throws OnejobError E_AGENT_PACKAGE when there is none for this architecture */
export function releaseUrl(version: string, arch: string, base = releases): string {
  const name = architectures[arch];
  if (name !== undefined) return `${base}/v${version}/buildkite-agent-linux-${name}-${version}.tar.gz`;
  const hint = 'Build one, and name its path in the service: agent: { from: /path/to/buildkite-agent }.';
  throw new OnejobError('E_AGENT_PACKAGE', `Buildkite does not release agent ${version} for Linux on ${arch}.`, { hint });
}

/**
 * SHA-256 of the files that onejob uses by default, so that changing a release does not change what runs here. Source:
 * cashapp/hermit-packages, `buildkite-agent.hcl`, which records each release when it appears.
 */
export const pinnedSums: Readonly<Record<string, string>> = {
  [releaseUrl('3.137.0', 'x64')]: '0eb50928ac767f7d1ae63c7a52bf99091a4582ff1675aa328d73a8e241893558',
  [releaseUrl('3.137.0', 'arm64')]: 'e653747bcdcc936f0d729ff1a00721ef70bbf467a9d18b7a01cb7f8619f517ff',
};

/** The list of checksums next to a file of a release; null for any other file. */
function sumsUrl(from: string): URL | null {
  const { origin, pathname } = new URL(from);
  const version = /\/v([^/]+)\/buildkite-agent-linux-[a-z0-9]+-\1\.tar\.gz$/.exec(pathname)?.[1];
  return version === undefined ? null : new URL(`${origin}${pathname.replace(/[^/]+$/, `buildkite-agent-${version}.SHA256SUMS`)}`);
}

/** `base`: where releases are; `pins`: SHA-256 by address; default: the project's. */
export function buildkiteAgent(base?: string, pins: Readonly<Record<string, string>> = pinnedSums): AgentProject {
  return {
    name: 'buildkite-agent',
    type: 'buildkite',
    pinned: pinnedAgent,
    url: (version, arch) => releaseUrl(version, arch, base),
    async sum(from, options) {
      const sums = URL.canParse(from) ? sumsUrl(from) : null;
      if (pins[from] !== undefined || sums === null) return pins[from] ?? null;
      const file = new URL(from).pathname.replace(/^.*\//, '');
      try {
        const text = await receiveText(sums, { ...options, limit: 2 ** 20 });
        const line = text.split('\n').find((one) => one.trim().split(/\s+\*?/)[1] === file);
        const sum = line?.trim().split(/\s+/)[0]?.toLowerCase();
        if (sum !== undefined && /^[0-9a-f]{64}$/.test(sum)) return sum;
        throw new Error(`it has no checksum for ${file}`);
      } catch (error) {
        options.signal.throwIfAborted();
        throw new OnejobError('E_AGENT_PACKAGE', `Cannot check the agent from ${from} against ${sums}: ${reasonOf(error)}.`, {
          hint: `Check whether "curl -fLO ${sums}" works on this host, or name a program that is already there: agent: { from: /path/to/buildkite-agent }.`,
          retry: true,
          cause: error,
        });
      }
    },
  };
}
