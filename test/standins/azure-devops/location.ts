/** How clients find routes: the first calls of every one of them (layer B). */
import { createHash } from 'node:crypto';
import { challengeOf } from './auth.ts';
import { type Exchange, list, ok, type Reply, type Route } from './http.ts';
import { urlOf, type World } from './state.ts';

const POOL = '_apis/{area}/pools/{poolId}';
const PLAN = '{scopeIdentifier}/_apis/{area}/hubs/{hubName}/plans/{planId}';

/** Resources by location id, with the templates from which clients make their URLs. */
const RESOURCES: readonly (readonly [area: string, name: string, id: string, template: string])[] = [
  ['Location', 'ConnectionData', '00d9565f-ed9c-4a06-9a50-00e7896ccab4', '_apis/{resource}'],
  ['Location', 'ResourceAreas', 'e81700f7-3be2-46de-8624-2eb35882fcaa', '_apis/{resource}/{areaId}'],
  ['Location', 'ServiceDefinitions', 'd810a47d-f4f4-4a62-a03f-fa1860585c4c', '_apis/{resource}/{serviceType}/{identifier}'],
  ['distributedtask', 'pools', 'a8c47e17-4d56-4a56-92bb-de7ea7dc65be', '_apis/{area}/{resource}/{poolId}'],
  ['distributedtask', 'agents', 'e298ef32-5878-4cab-993c-043836571f42', `${POOL}/{resource}/{agentId}`],
  ['distributedtask', 'usercapabilities', '30ba3ada-fedf-4da8-bbb5-dacf2f82e176', `${POOL}/agents/{agentId}/{resource}`],
  ['distributedtask', 'updates', '8cc1b02b-ae49-4516-b5ad-4f9b29967c30', `${POOL}/agents/{agentId}/{resource}`],
  ['distributedtask', 'sessions', '134e239e-2df3-4794-a6f6-24f1f19ec8dc', `${POOL}/{resource}/{sessionId}`],
  ['distributedtask', 'messages', 'c3a054f6-7a8a-49c0-944e-3a8e5d7adfd7', `${POOL}/{resource}/{messageId}`],
  ['distributedtask', 'jobrequests', 'fc825784-c92a-4299-9221-998a02d1b54f', `${POOL}/{resource}/{requestId}`],
  [
    'distributedtask',
    'packages',
    '8ffcd551-079c-493a-9c02-54346299d144',
    '_apis/{area}/{resource}/{packageType}/{platform}/{version}',
  ],
  ['distributedtask', 'timelines', '83597576-cc2c-453c-bea6-2882ae6a1653', `${PLAN}/{resource}/{timelineId}`],
  ['distributedtask', 'records', '8893bc5b-35b2-4be7-83cb-99e683551db4', `${PLAN}/timelines/{timelineId}/{resource}`],
  [
    'distributedtask',
    'feed',
    '858983e4-19bd-4c5e-864c-507b59b58b12',
    `${PLAN}/timelines/{timelineId}/records/{recordId}/{resource}`,
  ],
  ['distributedtask', 'logs', '46f5667d-263a-4684-91b1-dff7fdcf64e2', `${PLAN}/{resource}/{logId}`],
  ['distributedtask', 'events', '557624af-b29e-4c20-8ab0-0399d2204f3f', `${PLAN}/{resource}`],
  ['build', 'builds', '0cd358e1-9217-4d94-8269-1c1ee6f93dcf', '{project}/_apis/{area}/{resource}/{buildId}'],
  ['build', 'Timeline', '8baac422-4c6e-4de5-8532-db96d92acffa', '{project}/_apis/{area}/builds/{buildId}/{resource}/{timelineId}'],
];

const AREAS: readonly (readonly [id: string, name: string])[] = [
  ['a85b8835-c1a1-4aac-ae97-1c3d0ba72dbd', 'distributedtask'],
  ['965220d5-5bb9-42cf-8d67-9b146df2a5a4', 'build'],
];

const VERSIONS = { resourceVersion: 6, minVersion: '1.0', maxVersion: '7.2', releasedVersion: '7.1' } as const;

export const locationRoutes: readonly Route[] = [
  {
    method: 'GET',
    name: 'connectionData',
    path: '_apis/connectionData',
    allow: ['pat', 'principal', 'agent', 'job'],
    unversioned: true,
    answer: connectionData,
  },
  { method: 'OPTIONS', name: 'options', path: '_apis/{area?}', allow: ['anyone'], unversioned: true, answer: options },
  { method: 'GET', name: 'ResourceAreas', path: '_apis/ResourceAreas', allow: ['anyone'], answer: (x) => areas(x.world) },
];

/** Resource locations of one area, or all; an area that nobody knows is empty. */
function options(x: Exchange): Reply {
  const wanted = x.params.area?.toLowerCase();
  const found = RESOURCES.filter(([area]) => wanted === undefined || area.toLowerCase() === wanted);
  return list(found.map(([area, resourceName, id, routeTemplate]) => ({ id, area, resourceName, routeTemplate, ...VERSIONS })));
}

/** On-premises there aren't any, and clients stay with the URL that they have. */
function areas(world: World): Reply {
  if (!world.hosted) return ok({ count: 0, value: null });
  return list(AREAS.map(([id, name]) => ({ id, name, locationUrl: `${urlOf(world)}/` })));
}

function connectionData(x: Exchange): Reply {
  const { world, caller } = x;
  const user =
    caller.identity === 'agent'
      ? `agent ${caller.agent?.name}`
      : caller.identity === 'job'
        ? 'Project Collection Build Service'
        : 'Stand-in User';
  // One connection must see one descriptor, so it follows from who asks.
  const id = guidOf(`${caller.identity} ${caller.agent?.clientId ?? caller.plan?.id ?? ''}`);
  const who = {
    id,
    descriptor: `Microsoft.TeamFoundation.ServiceIdentity;${id}`,
    subjectDescriptor: `svc.${id}`,
    providerDisplayName: user,
    isActive: true,
    properties: { Account: { $type: 'System.String', $value: user } },
  };
  const definitions = RESOURCES.map(([serviceType, displayName, identifier, template]) => ({
    serviceType,
    identifier,
    displayName,
    relativeToSetting: 'context',
    relativePath: `/${template.replace('{area}', serviceType).replace('{resource}', displayName)}`,
    ...VERSIONS,
  }));
  return {
    ...ok({
      authenticatedUser: who,
      authorizedUser: who,
      instanceId: guidOf(world.base),
      deploymentId: guidOf(world.origin),
      deploymentType: world.hosted ? 'hosted' : 'onPremises',
      locationServiceData: {
        // Empty: a .NET client then asks no other location service.
        serviceOwner: '00000000-0000-0000-0000-000000000000',
        defaultAccessMappingMoniker: 'PublicAccessMapping',
        accessMappings: [
          {
            moniker: 'PublicAccessMapping',
            displayName: 'Public Access Mapping',
            accessPoint: `${world.origin}/`,
            virtualDirectory: world.base,
            serviceOwner: '00000000-0000-0000-0000-000000000000',
          },
        ],
        clientCacheFresh: false,
        clientCacheTimeToLive: 3600,
        lastChangeId: 1,
        lastChangeId64: 1,
        serviceDefinitions: definitions,
      },
    }),
    headers: challengeOf(world),
  };
}

/** The same GUID for the same words. */
function guidOf(words: string): string {
  const hex = createHash('sha256').update(words).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
