/** How a cloud of type `azure` is written. */
import { key, token } from '../../schema/key.ts';
import type { Kinds } from '../../schema/strict.ts';
import { address, credentials, deathDate, metadata } from '../kit/keys.ts';
import { publicEndpoint } from './config.ts';
import { securityGroupId, subnetId } from './id.ts';

/** Never shows what was found, which may be a secret that was written here by mistake. */
const hidden = (what: string, good: RegExp) => (v: Kinds) =>
  v.value((found) => (typeof found === 'string' && good.test(found) ? v.yes(found) : v.no(`expected ${what}`)));
const guid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export const azureCredentialKeys = {
  tenant: key(hidden('the id of a tenant, or its domain', /^[A-Za-z0-9][A-Za-z0-9.-]{0,253}$/), undefined, 'id or domain', {
    description: 'Directory (tenant) that the application belongs to.',
    example: 'acme.onmicrosoft.com',
  }),
  client: key(hidden('the id of an application, such as "8f6a2b1c-…" with 36 characters', guid), undefined, 'id', {
    description: 'Application (client) id of an Entra application, or with `metadata` that of one of several managed identities.',
    example: '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b',
  }),
  secret: token('A client secret of the application. It never leaves the manager.'),
  command: key((v) => v.command, undefined, 'list', {
    description:
      'Program that prints an access token for `https://management.azure.com`, as JSON like `az account get-access-token` does, or the token alone.',
    example: '[ /usr/local/bin/azure-token, --for, ci ]',
  }),
  metadata: metadata('Whether to use the managed identity of the Azure machine that onejob runs on.'),
};

const source = credentials(
  azureCredentialKeys,
  ['secret', 'command', 'metadata'],
  (way, has) => {
    const missing = way === 'secret' ? ['tenant', 'client', 'secret'].filter((one) => !has(one)) : [];
    if (missing.length > 0) return `has no "${missing.join('" and no "')}": an Entra application needs tenant, client and secret`;
    return way === 'command' && has('client') ? 'has a "client" in addition to "command", which does not use it' : null;
  },
  { tenant: 'secret' },
);

const id = (what: string, example: string, good: RegExp) =>
  hidden(`the resource id of ${what} such as "/subscriptions/…/resourceGroups/…/providers/${example}"`, good);

export const azureKeys = {
  subscription: key((v) => v.text('the id of a subscription, with 36 characters', guid), undefined, 'id', {
    description:
      'Subscription in which onejob creates machines. onejob lists everything of its own there, and touches nothing else.',
    example: '0d4c2f6e-1a3b-4c5d-8e7f-9a0b1c2d3e4f',
  }),
  location: key((v) => v.text('a location such as "westeurope"', /^[a-z0-9]{2,40}$/), undefined, 'location', {
    description: 'Location (region) in which onejob creates machines.',
    example: 'westeurope',
  }),
  credentials: key(source, undefined, 'map', {
    description: 'What onejob signs in with.',
    example:
      '{ tenant: acme.onmicrosoft.com, client: 5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b, secret: { file: /etc/onejob/azure.secret } }',
    shown: 'what `az account get-access-token` prints',
  }),
  subnet: key(id('a subnet', 'Microsoft.Network/virtualNetworks/NAME/subnets/NAME', subnetId), undefined, 'resource id', {
    description: 'Subnet of all machines of this location. Machines need a way out to the internet.',
    example:
      '/subscriptions/0d4c2f6e-1a3b-4c5d-8e7f-9a0b1c2d3e4f/resourceGroups/onejob-shared/providers/Microsoft.Network/virtualNetworks/onejob/subnets/machines',
  }),
  security_group: key(
    id('a network security group', 'Microsoft.Network/networkSecurityGroups/NAME', securityGroupId),
    undefined,
    'resource id',
    {
      description: 'Network security group of machines. It must allow outgoing connections, and needs no incoming ones.',
      example:
        '/subscriptions/0d4c2f6e-1a3b-4c5d-8e7f-9a0b1c2d3e4f/resourceGroups/onejob-shared/providers/Microsoft.Network/networkSecurityGroups/onejob',
      shown: 'only that of the subnet, if it has one',
    },
  ),
  public_ip: key((v) => v.yesNo, true, {
    description:
      'Whether each machine gets its own address as its way out. `false`: the subnet has another way out, such as a NAT gateway.',
    example: 'false',
  }),
  death_date: deathDate(
    '`cloud`: Azure itself deallocates each machine at the end of its `lifetime`, and a machine for which it does not confirm that is removed again. `manager-only`: only onejob ends it.',
  ),
  endpoint: key(address('https://management.usgovcloudapi.net'), publicEndpoint, 'address', {
    description: 'Address of Azure Resource Manager; another one for national clouds, private endpoints and tests.',
    example: 'https://management.usgovcloudapi.net',
  }),
  login_endpoint: key(address('https://login.microsoftonline.us'), 'https://login.microsoftonline.com', 'address', {
    description: 'Where Entra issues tokens; another address for national clouds.',
    example: 'https://login.microsoftonline.us',
  }),
};
