import { expect, it } from 'vitest';
import { failureOf, patient } from '../../../test/kit/azure.ts';
import { choosePackage, type OfferedPackage } from './in-image.ts';

const one = (version: string): OfferedPackage => ({ version, url: `https://x/${version}`, sha256: `of ${version}` });
const client = { packages: async (platform: string) => (platform === 'linux-x64' ? [one('5.278.0'), one('4.275.0')] : []) };
const choose = (config: Partial<Parameters<typeof choosePackage>[1]>, platform = 'linux-x64') =>
  choosePackage('azure-pipelines', { version: null, from: null, sha256: null, ...config }, client.packages, platform, patient);

it('takes the newest that the service hands out, or the version that config names', async () => {
  expect(await choose({})).toMatchObject({ version: '5.278.0', from: 'https://x/5.278.0', sha256: 'of 5.278.0' });
  expect(await choose({ version: '4.275.0', sha256: 'mine' })).toMatchObject({ from: 'https://x/4.275.0', sha256: 'mine' });
});

it('takes a package from elsewhere without asking', async () => {
  const from = '/srv/vsts-agent-linux-x64-5.270.1.tar.gz';
  expect(await choose({ from })).toEqual({ type: 'azure-pipelines', version: '5.270.1', from, sha256: null });
  expect(await choose({ from: '/srv/agent.tgz', version: '1.2.3' })).toMatchObject({ version: '1.2.3' });
});

it.each([
  [{ version: '9.9.9' }, 'linux-x64', /version 9\.9\.9 of the agent for linux-x64\. It has 5\.278\.0, 4\.275\.0\.$/],
  [{}, 'linux-arm64', /any agent for linux-arm64\.$/],
  [{ from: '/srv/agent.tgz' }, 'linux-x64', /version of the agent in \/srv\/agent\.tgz/],
] as const)('says what is missing: %j for %s', async (config, platform, message) => {
  expect(await failureOf(choose(config, platform))).toMatchObject({ code: 'E_AGENT_PACKAGE', message });
});
