/** The message that hands out a job (template: the agent's own `L1TestBase.cs`): one step, a script for the shell. */
import { PROJECT, type Request, urlOf, type World } from './state.ts';

/** The steps of its pipeline. */
export function stepsOf(request: Pick<Request, 'script'>) {
  return [
    {
      type: 'task',
      id: '6d5c1a0e-2f3b-4c8e-9f5d-0a1b2c3d4e5f',
      name: 'CmdLine',
      displayName: 'Command Line',
      reference: { id: 'd9bafed4-0b18-4f58-968d-86655b4d2ce9', name: 'CmdLine', version: '2.250.1' },
      inputs: { script: request.script, workingDirectory: '', failOnStderr: 'false' },
      enabled: true,
      condition: 'succeeded()',
      continueOnError: false,
      timeoutInMinutes: 0,
      retryCountOnTaskFailure: 0,
    },
  ];
}

export function jobMessage(world: World, request: Request): Record<string, unknown> {
  const { build, plan } = request;
  const project = `${urlOf(world)}/${PROJECT.name}`;
  const variable = (value: string, isSecret = false) => ({ value, isSecret, isReadOnly: true });
  const definition = {
    id: build.definition.id,
    name: build.definition.name,
    _links: { web: { href: `${project}/_build/definition?definitionId=${build.definition.id}` } },
  };
  return {
    mask: [{ type: 'regex', value: plan.token }],
    steps: stepsOf(request),
    variables: {
      'system.servertype': variable(world.hosted ? 'Hosted' : 'OnPremises'),
      'system.collectionUri': variable(`${urlOf(world)}/`),
      'system.teamProject': variable(PROJECT.name),
      'system.teamProjectId': variable(PROJECT.id),
      'system.definitionName': variable(build.definition.name),
      'system.definitionId': variable(String(build.definition.id)),
      'system.jobId': variable(request.jobId),
      'system.jobName': variable(request.name),
      'system.planId': variable(plan.id),
      'system.timelineId': variable(plan.timeline),
      'build.buildId': variable(String(build.id)),
      'build.buildNumber': variable(build.number),
      'build.reason': variable(build.reason),
      'build.repository.name': variable(build.repository),
      'build.sourceBranch': variable(build.branch),
      'system.accessToken': variable(plan.token, true),
    },
    messageType: 'PipelineAgentJobRequest',
    plan: {
      scopeIdentifier: plan.scope,
      planType: 'Build',
      version: 8,
      planId: plan.id,
      planGroup: `${PROJECT.id}:job`,
      artifactUri: `vstfs:///Build/Build/${build.id}`,
      artifactLocation: null,
      definition,
      owner: { id: build.id, name: build.number, _links: { web: { href: `${project}/_build/results?buildId=${build.id}` } } },
    },
    timeline: { id: plan.timeline, changeId: plan.changeId, location: null },
    jobId: request.jobId,
    jobDisplayName: request.name,
    jobName: request.name.replaceAll(/\W/g, '_'),
    jobContainer: null,
    requestId: request.id,
    lockedUntil: new Date(request.lockedUntil ?? world.now()).toISOString(),
    resources: {
      endpoints: [
        {
          name: 'SystemVssConnection',
          url: `${urlOf(world)}/`,
          authorization: { scheme: 'OAuth', parameters: { AccessToken: plan.token } },
          data: { ServerId: PROJECT.id, ServerName: world.base },
          isShared: false,
          isReady: true,
        },
      ],
      repositories: [
        {
          alias: 'self',
          id: build.repository,
          type: 'GitHub',
          version: '0'.repeat(40),
          url: `https://github.com/${build.repository}`,
          properties: {},
        },
      ],
    },
    workspace: {},
  };
}
