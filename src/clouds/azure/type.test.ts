import { describe, expect, it } from 'vitest';
import { location, securityGroup, subnet, subscription } from '../../../test/standins/azure-cloud/azure-cloud.ts';
import { strict } from '../../schema/strict.ts';
import { audienceOf } from './config.ts';
import { azureKeys } from './schema.ts';
import { azure } from './type.ts';

const schema = strict(azureKeys);
const least = { subscription, location, subnet };
const read = (more: object) => {
  const found = schema.safeParse({ ...least, ...more });
  return found.success
    ? azure.resolve('lab', found.data)
    : found.error.issues.map((issue) => {
        // What a config says of an unknown key is made of its name and of those that are known.
        const why = issue.code === 'unrecognized_keys' ? issue.keys.join() : issue.message;
        return `${issue.path.join('.')}: ${why}`;
      });
};
const client = '5b1e2a34-7c1f-4d0e-9a2b-0c6d8e1f2a3b';

describe('an entry of `clouds`', () => {
  it('the least', () => {
    expect(read({})).toEqual({
      name: 'lab',
      type: 'azure',
      subscription,
      location,
      subnet,
      securityGroup: null,
      publicIp: true,
      deathDate: 'cloud',
      credentials: { kind: 'command', command: null },
      endpoint: 'https://management.azure.com',
      loginEndpoint: 'https://login.microsoftonline.com',
    });
    expect(azure.needs.every((key) => azure.resolve('lab', { ...least, [key]: undefined }) === null)).toBe(true);
  });

  it('all of it', () => {
    const secret = { file: '/etc/onejob/azure.secret' };
    const more = {
      security_group: securityGroup,
      public_ip: false,
      death_date: 'manager-only',
      endpoint: 'https://management.usgovcloudapi.net/',
    };
    const found = read({
      ...more,
      login_endpoint: 'https://login.microsoftonline.us',
      credentials: { tenant: 'acme', client, secret },
    });
    expect(found).toMatchObject({
      securityGroup,
      publicIp: false,
      deathDate: 'manager-only',
      endpoint: 'https://management.usgovcloudapi.net',
      credentials: { kind: 'application', tenant: 'acme', client, secret: { kind: 'file', path: secret.file } },
    });
    if (found === null || Array.isArray(found)) throw new Error('It was not understood.');
    expect([azure.secrets(found).map(([key]) => key), audienceOf(found)]).toEqual([
      ['credentials.secret'],
      'https://management.usgovcloudapi.net',
    ]);
  });

  it.each([
    [{ command: ['token'] }, { kind: 'command', command: ['token'] }],
    [{ metadata: true }, { kind: 'metadata', client: null }],
    [
      { metadata: true, client },
      { kind: 'metadata', client },
    ],
  ])('credentials %j', (credentials, expected) => {
    expect(read({ credentials })).toMatchObject({ credentials: expected });
  });

  it.each([
    [{ subscription: 'x' }, 'subscription'],
    [{ location: 'West Europe' }, 'location'],
    [{ subnet: 'subnet-1' }, 'subnet'],
    [{ security_group: subnet }, 'security_group'],
    [{ credentials: {} }, 'credentials: write one of'],
    [{ credentials: { tenant: 'a' } }, 'credentials: has no "client" and no "secret"'],
    [{ credentials: { metadata: true, command: ['x'] } }, 'not both command and metadata'],
    [{ credentials: { command: ['x'], client } }, 'has a "client" in addition to'],
    [{ credentials: { tenant: 'a', client: 'Q~secret', secret: { env: 'S' } } }, 'credentials.client'],
    [{ endpoint: 'http://arm.example.org' }, 'must begin with https'],
    [{ endpoint: 'https://arm.example.org/path' }, 'endpoint: expected an address'],
    [{ login_endpoint: 'ftp://x' }, 'login_endpoint'],
    [{ strange: 1 }, 'strange'],
  ])('refuses %j', (more, why) => {
    const found = read(more);
    expect(Array.isArray(found) && found.join()).toContain(why);
    expect(JSON.stringify(found)).not.toContain('Q~secret');
  });

  it('a stand-in on this host may speak without TLS', () => {
    expect(read({ endpoint: 'http://127.0.0.1:8080' })).toMatchObject({ endpoint: 'http://127.0.0.1:8080' });
    expect(audienceOf({ endpoint: 'http://127.0.0.1:8080' })).toBe('https://management.azure.com');
  });
});

describe('sizes', () => {
  it.each([
    'Standard_NC4as_T4_v3',
    'Standard_NC24ads_A100_v4',
    'Standard_NC40ads_H100_v5',
    'Standard_NV36ads_A10_v5',
    'Standard_ND96isr_H100_v5',
    'Standard_D2s_v5',
  ])('%s is fine', (size) => expect(azure.typeProblem(size)).toBe(null));

  it.each([
    ['Standard_NC6', 'K80'],
    ['Standard_NC24r', 'K80'],
    ['Standard_NC6_Promo', 'K80'],
    ['Standard_NC6s_v2', 'P100'],
    ['Standard_NC12s_v3', 'V100'],
    ['Standard_NC24rs_v3', 'V100'],
    ['Standard_ND6s', 'P40'],
    ['Standard_ND40rs_v2', 'V100'],
    ['Standard_NV6', 'M60'],
    ['Standard_NV12s_v3', 'M60'],
    ['Standard_NV4as_v4', 'MI25'],
    ['Standard_NC128ds_xl_RTXPRO6000BSE_v6', '595.58.03-grid-azure'],
    ['g5.xlarge', 'not the name of a size'],
  ])('%s is refused', (size, why) => expect(azure.typeProblem(size)).toContain(why));
});
