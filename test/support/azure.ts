/**
 * The stand-in for Azure DevOps where containers reach it, with a pool, and a config that uses both: what every end-to-end test
 * of Azure Pipelines begins with.
 */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { ensureAzureImages } from './azure-images.ts';

export interface AzureBench extends AsyncDisposable {
  readonly azure: AzureDevOps;
  /** Id of the agent pool `gpu` at the service. */
  readonly pool: number;
  /** Holds the PAT, mode 600. */
  readonly tokenFile: string;
  /** `services:` and one pool `ci` of `agents`, with more keys of the pool and of the service as lines of YAML in braces. */
  config(more?: { readonly agents?: number | string; readonly pool?: string; readonly service?: string; readonly top?: string }): string;
}

/** Address of the Engine's default bridge: a listener there can be reached from the containers of any bridge. */
export function bridgeAddress(): string {
  const address = networkInterfaces().docker0?.find(({ family }) => family === 'IPv4')?.address;
  if (address === undefined) throw new Error('The Engine has no default bridge docker0.');
  return address;
}

export async function azureBench(options: StandInOptions = {}): Promise<AzureBench> {
  const images = await ensureAzureImages();
  const azure = await startAzureDevOps({ host: '0.0.0.0', publicHost: bridgeAddress(), pollHoldMs: 2_000, ...options });
  const pool = azure.addPool('gpu', { autoUpdate: false });
  const dir = mkdtempSync(join(tmpdir(), 'oj-azure-'));
  const tokenFile = join(dir, 'pat');
  writeFileSync(tokenFile, `${azure.pat}\n`);
  chmodSync(tokenFile, 0o600);
  return {
    azure,
    pool,
    tokenFile,
    config: ({ agents = 1, pool: ofPool = '', service = '', top = '' } = {}) => `
${top}
services:
  azure: { type: azure-pipelines, url: ${azure.url}, token: { file: ${tokenFile} }, poll: 2s${service === '' ? '' : `, ${service}`} }
pools:
  ci: { service: azure, queue: gpu, agents: ${agents}, runtime: docker, image: "${images.agent}", stop_grace: 2s${ofPool === '' ? '' : `, ${ofPool}`} }
`,
    async [Symbol.asyncDispose]() {
      await azure[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
