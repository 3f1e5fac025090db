/** Which package of the agent images get: what config names, else the newest that the service hands out. */
import { basename } from 'node:path';
import type { AgentPackageConfig } from '../../config/config.ts';
import { OnejobError } from '../../errors.ts';
import type { AgentPackage } from '../ci-service.ts';
import type { AzureClient } from './client.ts';

const type = 'azure-pipelines';

/** `platform`: such as `linux-x64`. @throws OnejobError E_AGENT_PACKAGE when there is no such version, E_CI_* */
export async function choosePackage(
  config: AgentPackageConfig,
  client: Pick<AzureClient, 'packages'>,
  platform: string,
  signal: AbortSignal,
): Promise<AgentPackage> {
  const { version, from, sha256 } = config;
  if (from !== null) {
    const named = version ?? /-(\d+\.\d+\.\d+)\.tar\.gz$/.exec(basename(from))?.[1];
    if (named !== undefined) return { type, version: named, from, sha256 };
    throw new OnejobError('E_AGENT_PACKAGE', `Cannot tell the version of the agent in ${from} by its name.`, {
      hint: 'Write it beside: agent: { version: "5.278.0", from: … }.',
    });
  }
  const packages = await client.packages(platform, signal);
  const found = version === null ? packages[0] : packages.find((one) => one.version === version);
  if (found !== undefined) return { type, version: found.version, from: found.url, sha256: sha256 ?? found.sha256 };
  const seen = packages.map((one) => one.version).slice(0, 5);
  const what = version === null ? 'any agent' : `version ${version} of the agent`;
  throw new OnejobError(
    'E_AGENT_PACKAGE',
    `The service does not hand out ${what} for ${platform}.${seen.length > 0 ? ` It has ${seen.join(', ')}.` : ''}`,
    {
      hint: 'Name a version that it has, or where the package is: agent: { from: https://… }.',
    },
  );
}
