import { expect, it } from 'vitest';
import { agentFiles } from './script.ts';
import type { RegisteredAgent } from './wire.ts';

const agent = {
  id: 17,
  name: 'gpu-0a1b2c3d-0123456789',
  authorization: {
    clientId: '6f1f5b0c-0000-4000-8000-000000000001',
    authorizationUrl: 'https://vssps.dev.azure.com/acme/_apis/oauth2/token',
  },
  serverUrl: null,
};
const parts = {
  agent,
  pool: { id: 3, name: 'GPU "größe"' },
  url: 'https://dev.azure.com/acme',
  name: agent.name,
  key: { rsaParameters: '{"d":"…"}' },
};

function read(more: Partial<typeof parts> | { readonly agent: RegisteredAgent } = {}) {
  const { agent, pool, ...rest } = { ...parts, ...more };
  const [settings, credentials, key] = agentFiles(agent, pool, rest);
  return {
    names: [settings?.name, credentials?.name, key?.name],
    settings: JSON.parse(settings?.text ?? '') as unknown,
    credentials: JSON.parse(credentials?.text ?? '') as { data: Record<string, string> },
    key: key?.text,
  };
}

it('in the cloud', () => {
  const { authorizationUrl, clientId } = agent.authorization;
  expect(read()).toEqual({
    names: ['.agent', '.credentials', '.credentials_rsaparams'],
    settings: {
      acceptTeeEula: true,
      agentId: 17,
      agentName: agent.name,
      poolId: 3,
      poolName: 'GPU "größe"',
      serverUrl: 'https://dev.azure.com/acme',
      workFolder: '_work',
    },
    credentials: { scheme: 'OAuth', data: { clientId, authorizationUrl, oauthEndpointUrl: authorizationUrl } },
    key: '{"d":"…"}',
  });
});

const inner = 'http://tfs-01.corp.local:8080/tfs/_apis/oauth2/token';
const server = {
  url: 'https://devops.example.org/tfs/My Collection/',
  agent: { ...agent, authorization: { ...agent.authorization, authorizationUrl: inner } },
};

it('on a Server of one’s own, reached by another name than its own', () => {
  const { settings, credentials } = read(server);
  expect(settings).toMatchObject({ serverUrl: 'https://devops.example.org/tfs/My%20Collection' });
  expect(credentials.data).toMatchObject({
    authorizationUrl: inner,
    oauthEndpointUrl: 'https://devops.example.org/tfs/_apis/oauth2/token',
  });
});

it('of the address that the service names only the path is taken', () => {
  const named = (serverUrl: string) => read({ ...server, agent: { ...server.agent, serverUrl } }).settings;
  expect(named('http://tfs-01.corp.local:8080/tfs/')).toMatchObject({ serverUrl: 'https://devops.example.org/tfs/' });
  expect(named('https://evil.example//other.example/x')).toMatchObject({
    serverUrl: expect.stringMatching(/^https:\/\/devops\.example\.org\//),
  });
  expect(named('nonsense')).toMatchObject({ serverUrl: 'https://devops.example.org/tfs/My%20Collection' });
});

it('an agent without a way to sign in', () => {
  expect(() => read({ agent: { ...agent, authorization: null } })).toThrow(expect.objectContaining({ code: 'E_CI_ANSWER' }));
});
