/** How a service of type `azure-pipelines` is written. */
import { key, sha256, token } from '../../schema/key.ts';
import { packageFrom } from '../../schema/program-keys.ts';
import type { Kinds } from '../../schema/strict.ts';
import { parseAzureUrl } from './url.ts';

const azureUrl = (v: Kinds) =>
  v.value((found) =>
    typeof found === 'string' ? parseAzureUrl(found) : v.no(`expected a web address, found ${v.describeKind(found)}`),
  );

const authority = (v: Kinds) =>
  v.value((found) => {
    const good = typeof found === 'string' && /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(found);
    return good ? v.yes(found.replace(/\/+$/, '')) : v.no('expected a web address such as "https://login.microsoftonline.com"');
  });

/** A secret written here by mistake must not appear in a message. */
const guid = (what: string, good: RegExp) => (v: Kinds) =>
  v.value((found) => (typeof found === 'string' && good.test(found) ? v.yes(found) : v.no(`expected ${what}`)));
const id = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export const principalKeys = {
  tenant: key(guid('the id of a tenant, or its domain', /^[A-Za-z0-9][A-Za-z0-9.-]{0,253}$/), undefined, 'id or domain', {
    description: 'Directory (tenant) that the application belongs to.',
    example: 'acme.onmicrosoft.com',
  }),
  client: key(guid('the id of an application, such as "8f6a2b1c-…" with 36 characters', id), undefined, 'id', {
    description: 'Application (client) id.',
    example: '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b',
  }),
  secret: token('A client secret of the application, in a file or a variable. It never enters a sandbox.'),
  authority: key(authority, 'https://login.microsoftonline.com', 'address', {
    description: 'Where Entra makes its tokens; another one for national clouds.',
    example: 'https://login.microsoftonline.us',
  }),
};

export const azurePackageKeys = {
  version: key(
    (v) => v.text('a version such as "5.278.0", or "latest"', /^(latest|\d{1,4}\.\d{1,5}\.\d{1,5})$/),
    'latest',
    'version or `latest`',
    {
      description: 'Version of the agent. `latest`: the one that the service offers; onejob rebuilds images when that changes.',
      example: '5.278.0',
    },
  ),
  from: key(packageFrom, undefined, 'address or path', {
    description: 'Where onejob gets its package from.',
    example: '/srv/vsts-agent-linux-x64-5.278.0.tar.gz',
    shown: "the service's own",
  }),
  sha256: sha256('Checksum that the package must have.', "the service's own"),
};

export const azureKeys = {
  url: key(azureUrl, undefined, 'address', {
    description:
      'Address of the organisation (`https://dev.azure.com/acme`), or of the collection of an Azure DevOps Server (`https://host/tfs/DefaultCollection`).',
    example: 'https://dev.azure.com/acme',
  }),
  token: token(
    'Personal access token with the scope "Agent Pools (Read & manage)". It never enters a sandbox, unless `registration` says so.',
  ),
  principal: key((v) => v.strict(principalKeys), undefined, {
    description: 'An Entra application instead of a token; not with Azure DevOps Server.',
    example:
      '{ tenant: acme.onmicrosoft.com, client: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b, secret: { file: /etc/onejob/client.secret } }',
  }),
  registration: key((v) => v.oneOf(['manager', 'in-agent', 'image']), 'manager', {
    description:
      "Who registers an agent with the service. `manager`: onejob, so that the token stays outside. `in-agent`: the agent's own `config.sh`; the token enters the sandbox and is removed before the job. `image`: the image's own start script, which gets `AZP_*`; jobs may be able to read the token.",
    example: 'in-agent',
  }),
  poll: key((v) => v.duration(2000, '2s'), 10_000, {
    description: 'How often onejob asks the service about agents and jobs; once for each pool, regardless of its number of agents.',
    example: '30s',
  }),
  boot_timeout: key((v) => v.duration(1000, '1s'), 180_000, {
    description: 'How long an agent may take to come online. onejob ends one that takes longer, and its pool backs off.',
    example: '5m',
  }),
  agent: key((v) => v.strict(azurePackageKeys), undefined, {
    description: 'The agent that onejob puts into the images it builds.',
    example: '{ version: 5.278.0 }',
  }),
};
