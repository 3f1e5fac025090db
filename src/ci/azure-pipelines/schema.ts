/** How a service of type `azure-pipelines` is written. */
import { z } from 'zod';
import { formatDuration } from '../../config/units.ts';
import { describeKind, duration, key, no, oneOf, sha256, text, token, value, yes } from '../../config/values.ts';
import { pathProblem } from '../../config/volumes.ts';
import type { ServiceSchema } from '../service-type.ts';
import { azureDefaults, usualAuthority } from './type.ts';
import { parseAzureUrl } from './url.ts';

const azureUrl = value((found) => {
  if (typeof found !== 'string') return no(`expected a web address, found ${describeKind(found)}`);
  return parseAzureUrl(found);
});

const authority = value((found) => {
  const good = typeof found === 'string' && /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(found);
  return good ? yes(found.replace(/\/+$/, '')) : no('expected a web address such as "https://login.microsoftonline.com"');
});

/** A secret written here by mistake must not appear in a message. */
const guid = (what: string, good: RegExp) =>
  value((found) => (typeof found === 'string' && good.test(found) ? yes(found) : no(`expected ${what}`)));
const id = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

const principalKeys = z.strictObject({
  tenant: key(guid('the id of a tenant, or its domain', /^[A-Za-z0-9][A-Za-z0-9.-]{0,253}$/), 'id or domain', {
    description: 'Directory (tenant) that the application belongs to.',
    example: 'acme.onmicrosoft.com',
  }),
  client: key(guid('the id of an application, such as "8f6a2b1c-…" with 36 characters', id), 'id', {
    description: 'Application (client) id.',
    example: '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b',
  }),
  secret: token('A client secret of the application, in a file or a variable. It never enters a sandbox.'),
  authority: key(authority, 'address', {
    description: 'Where Entra makes its tokens; another one for national clouds.',
    example: 'https://login.microsoftonline.us',
    shown: usualAuthority,
  }),
});

const packageFrom = value((found) => {
  const what = 'an https address or an absolute path that ends in ".tar.gz"';
  if (typeof found !== 'string' || !found.endsWith('.tar.gz')) return no(`expected ${what}`);
  if (/^https:\/\/[^\s/?#@]+\/\S+$/.test(found)) return yes(found);
  return found.startsWith('/') && pathProblem(found) === null ? yes(found) : no(`${JSON.stringify(found)} is not ${what}`);
});

const packageKeys = z.strictObject({
  version: key(text('a version such as "5.278.0", or "latest"', /^(latest|\d{1,4}\.\d{1,5}\.\d{1,5})$/), 'version or `latest`', {
    description: 'Version of the agent. `latest`: the one that the service offers; onejob rebuilds images when that changes.',
    example: '5.278.0',
    shown: 'latest',
  }),
  from: key(packageFrom, 'address or path', {
    description: 'Where onejob gets its package from.',
    example: '/srv/vsts-agent-linux-x64-5.278.0.tar.gz',
    shown: "the service's own",
  }),
  sha256: sha256('Checksum that the package must have.', "the service's own"),
});

const keys = z.strictObject({
  url: key(azureUrl, 'address', {
    description:
      'Address of the organisation (`https://dev.azure.com/acme`), or of the collection of an Azure DevOps Server (`https://host/tfs/DefaultCollection`).',
    example: 'https://dev.azure.com/acme',
  }),
  token: token(
    'Personal access token with the scope "Agent Pools (Read & manage)". It never enters a sandbox, unless `registration` says so.',
  ),
  principal: key(principalKeys, 'map', {
    description: 'An Entra application instead of a token; not with Azure DevOps Server.',
    example:
      '{ tenant: acme.onmicrosoft.com, client: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b, secret: { file: /etc/onejob/client.secret } }',
  }),
  registration: key(oneOf(['manager', 'in-agent', 'image']), '`manager`, `in-agent` or `image`', {
    description:
      "Who registers an agent with the service. `manager`: onejob, so that the token stays outside. `in-agent`: the agent's own `config.sh`; the token enters the sandbox and is removed before the job. `image`: the image's own start script, which gets `AZP_*`; jobs may be able to read the token.",
    example: 'in-agent',
    shown: azureDefaults.registration,
  }),
  poll: key(duration(2000, '2s'), 'duration', {
    description: 'How often onejob asks the service about agents and jobs; once for each pool, regardless of its number of agents.',
    example: '30s',
    shown: formatDuration(azureDefaults.poll),
  }),
  boot_timeout: key(duration(1000, '1s'), 'duration', {
    description: 'How long an agent may take to come online. onejob ends one that takes longer, and its pool backs off.',
    example: '5m',
    shown: formatDuration(azureDefaults.boot_timeout),
  }),
  agent: key(packageKeys, 'map', {
    description: 'The agent that onejob puts into the images it builds.',
    example: '{ version: 5.278.0 }',
  }),
});

export const schema: ServiceSchema = {
  keys,
  maps: { principal: principalKeys, agent: packageKeys },
  needs: ['url', ['token', 'principal']],
  mapNeeds: { principal: ['tenant', 'client', 'secret'] },
};
