/** Opens a CI service that the config names. Others are not loaded: all of them together take longer to load than the rest of the daemon. */
import type { CiService } from '../ports/ci-service.ts';
import { azurePipelines } from './azure-pipelines/type.ts';
import { buildkite } from './buildkite/type.ts';
import { gitea } from './gitea/type.ts';
import { github } from './github/type.ts';
import { gitlab } from './gitlab/type.ts';
import type { OpenParts } from './parts.ts';
import type { KnownService } from './types.ts';

/** All but the own queue. */
export type OtherService = Exclude<KnownService, { type: 'own-queue' }>;

/** The service, and its address. */
export async function openService(service: OtherService, parts: OpenParts): Promise<[CiService, string]> {
  switch (service.type) {
    case azurePipelines.type:
      return [(await import('./azure-pipelines/service.ts')).openAzurePipelines(service, parts), service.url];
    case buildkite.type:
      return [(await import('./buildkite/service.ts')).openBuildkite(service, parts), service.endpoint];
    case gitea.type:
      return [(await import('./gitea/service.ts')).openGitea(service, parts), service.url];
    case github.type:
      return [
        (await import('./github/service.ts')).openGithub(service, parts),
        (await import('./github/client.ts')).apiOf(service.url),
      ];
    case gitlab.type:
      return [(await import('./gitlab/service.ts')).openGitlab(service, parts), service.url];
  }
}
