/** How a cloud of type `gcp` is written. */

import { clearTextHost } from '../../http/address.ts';
import { key } from '../../schema/key.ts';
import { isWebAddress } from '../../schema/program-keys.ts';
import type { Kinds } from '../../schema/strict.ts';
import { credentials, deathDate, metadata } from '../kit/keys.ts';

const region = /^[a-z]+-[a-z]+\d+$/;
const zone = /^[a-z]+-[a-z]+\d+-[a-z0-9]+$/;
const project = /^(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$/;
const network = /^(projects\/[a-z0-9.:-]+\/(global\/networks|regions\/[a-z0-9-]+\/subnetworks)\/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?$/;

const endpoint = (v: Kinds) =>
  v.value((found) => {
    const what = 'an https address such as "https://compute-ci.p.googleapis.com", or an http address of this host';
    if (typeof found !== 'string' || !isWebAddress(found) || clearTextHost(found) !== null) return v.no(`expected ${what}`);
    return v.yes(found.replace(/\/+$/, ''));
  });

export const gcpCredentialKeys = {
  file: key((v) => v.secretReference, undefined, 'secret', {
    description: 'Key of a service account, as Google generates it (JSON).',
    example: '{ file: /etc/onejob/gcp-key.json }',
  }),
  command: key((v) => v.command, undefined, 'list', {
    description: 'A command of this host that prints an access token.',
    example: '[gcloud, auth, print-access-token]',
  }),
  metadata: metadata('Uses the service account of the machine that onejob runs on, if that is at Google.'),
};

export const gcpKeys = {
  project: key((v) => v.text('the id of a project such as "acme-ci"', project), undefined, 'id', {
    description: 'Project in which onejob creates machines.',
    example: 'acme-ci',
  }),
  region: key((v) => v.text('a region such as "us-central1"', region), undefined, 'name', {
    description: 'Region in which onejob creates machines.',
    example: 'us-central1',
  }),
  zones: key((v) => v.z.array(v.text('a zone such as "us-central1-a"', zone)).min(1, 'is empty'), undefined, 'list', {
    description: 'Only these zones of the region, in this order.',
    example: '[us-central1-a, us-central1-f]',
    shown: 'all that have the type',
  }),
  credentials: key(credentials(gcpCredentialKeys, ['file', 'command', 'metadata']), undefined, 'map', {
    description: 'How onejob signs in: one of `file`, `command` and `metadata`.',
    example: '{ file: { file: /etc/onejob/gcp-key.json } }',
    shown: 'the key of a service account that GOOGLE_APPLICATION_CREDENTIALS names, else what `gcloud` is signed in as',
  }),
  network: key((v) => v.text('the name of a network, or its path', network), 'default', 'name', {
    description: 'Network of the machines. It must have a subnetwork of the same name in the region, as networks in auto mode do.',
    example: 'ci',
  }),
  subnetwork: key((v) => v.text('the name of a subnetwork, or its path', network), undefined, 'name', {
    description: 'Subnetwork of the machines; one of another project by its whole path.',
    example: 'projects/acme-net/regions/us-central1/subnetworks/ci',
    shown: 'that with the name of `network`',
  }),
  external_ip: key((v) => v.yesNo, true, {
    description: 'Gives each machine its own address. Nothing can connect to it. Without it, the network needs Cloud NAT.',
    example: 'false',
  }),
  death_date: deathDate(
    'Who ends machines at the end of their `lifetime`. `cloud`: Google deletes them by itself, and onejob removes a machine for which Google does not confirm that. `manager-only`: only onejob ends them.',
  ),
  endpoint: key(endpoint, 'https://compute.googleapis.com', 'address', {
    description: 'Where the API of Compute Engine is, for private endpoints.',
    example: 'https://compute-ci.p.googleapis.com',
  }),
};
