/** The adapter of Google Cloud and its stand-in, judged by what Google wrote: its own client, and the description of its API. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { openGcp } from '../../src/clouds/gcp/cloud.ts';
import { usualImage } from '../../src/clouds/gcp/image.ts';
import type { Cloud } from '../../src/ports/cloud.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { gcpConfig, gcpWorld, never, planOf } from '../kit/gcp.ts';
import { createGcp, type GcpStandin } from '../standins/gcp/standin.ts';
import { type Document, type Exchanged, judge } from '../support/discovery.ts';
import { gcpClients } from '../support/gcp-clients.ts';
import { lacks } from '../support/require.ts';

const anywhere = { places: [], everywhere: false };

describe.skipIf(lacks('gcpClients'))('with a client of Google Cloud', () => {
  test('it reads what onejob made, and what it makes and deletes itself behaves as it expects', { timeout: 120_000 }, async () => {
    const gcp = createGcp({ clock: systemClock, asksForToken: false, times: { start: 100, stop: 200 }, pageSize: 2 });
    await using _port = await gcp.serve();
    const cloud = await openedAt(gcp);
    const { order } = await gcpWorld();
    const born = Math.floor(Date.now() / 1000);
    const wanted = order({ born, expires: born + 3600 });
    await cloud.create(wanted, never);
    gcp.faults.stockout = { zones: ['us-central1-a'], available: ['us-central1-f'], name: 'no-capacity' };
    const script = join(import.meta.dirname, '../support/gcp-client.py');
    const { stdout } = await promisify(execFile)('python3', [script, gcp.origin, 'us-central1-a'], {
      env: { PATH: process.env.PATH, PYTHONPATH: gcpClients.library },
    });
    const said = JSON.parse(stdout);
    expect(said).toEqual({
      seen: {
        name: wanted.run,
        status: 'RUNNING',
        type: 'n1-standard-4',
        gpus: [['nvidia-tesla-t4', 1]],
        model: 'STANDARD',
        labels: {
          'onejob-owner': 'lab-7',
          'onejob-run': wanted.run,
          'onejob-host': 'burst',
          'onejob-born': String(wanted.born),
          'onejob-expires': String(wanted.expires),
        },
        seconds: expect.closeTo(3600, -1),
        action: 'DELETE',
        ends: expect.stringMatching(/^\d{4}-.*Z$/),
        metadata: { 'user-data': wanted.userData, 'block-project-ssh-keys': 'TRUE' },
      },
      disks: [[wanted.run, wanted.run, 1]],
      empty: ['NO_RESULTS_ON_PAGE'],
      sameOperation: true,
      twin: 'CONFLICT',
      stockout: [
        [
          'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS',
          { vmType: 'n1-standard-4', zone: 'us-central1-a', zonesAvailable: 'us-central1-f' },
        ],
      ],
      made: ['by-python', 'RUNNING', true],
      left: [],
      warnings: ['NO_RESULTS_ON_PAGE'],
    });
    expect(await cloud.list('lab-7', anywhere, never)).toEqual({ things: [], unknown: [] });
    // Google's client asks for the same version of the API as onejob does.
    const versions = gcp.requests.filter(({ url }) => url.pathname.startsWith('/compute/')).map(({ version }) => version);
    expect(new Set(versions)).toEqual(new Set(['2026-09-01']));
  });

  test('every request of onejob, and every answer of the stand-in, is as the description of the API has it', async () => {
    const { cloud, gcp, done, pass, order } = await gcpWorld();
    const offers = [
      { type: 'n1-standard-4/nvidia-tesla-t4:2', spot: true, zone: 'us-central1-a' },
      { type: 'g2-standard-4', spot: false, zone: 'us-central1-b' },
    ];
    for (const offer of offers) {
      const wanted = order({ offer });
      const made = await done(cloud.create(wanted, never));
      await done(cloud.setEnd(wanted, made, never));
      await done(cloud.console(made, never));
      await done(cloud.deliver(made, 'stay 1 -', never));
    }
    gcp.faults.stockout = { zones: ['us-central1-c'], available: ['us-central1-a'] };
    const offer = { type: 'g2-standard-4', spot: false, zone: 'us-central1-c' };
    await done(cloud.create(order({ offer }), never)).catch(() => {});
    gcp.faults.diskSurvives = true;
    gcp.keepAddress('us-central1', 'kept', { 'onejob-owner': 'lab-7' });
    for (let rounds = 0; rounds < 2; rounds++) {
      const { things } = await done(cloud.list('lab-7', anywhere, never));
      for (const { kind, id, place } of things) await done(cloud.destroy({ kind, id, place }, never)).catch(() => {});
      await pass(30_000);
    }
    gcp.faults.unreachable = ['us-central1-a'];
    expect((await done(cloud.list('lab-7', anywhere, never))).things).toEqual([]);
    gcp.clearFaults();
    const image = { from: 'projects/acme-images/global/images/gpu-base-7', has: 'driver' } as const;
    const plan = planOf('n1-standard-4/nvidia-tesla-t4', 'prefer');
    for (const one of [image, usualImage]) await done(cloud.preflight({ ...plan, image: one }, never));

    const judged = exchanges(gcp).map((one) => judge(documentOf(one.url), one));
    expect(judged.flatMap(({ id, wrong }) => wrong.map((why) => `${id}: ${why}`))).toEqual([]);
    expect([...new Set(judged.map(({ id }) => id))].sort()).toEqual([
      ...['cloudresourcemanager.projects.testIamPermissions', 'compute.acceleratorTypes.aggregatedList'],
      ...['compute.addresses.aggregatedList', 'compute.addresses.delete', 'compute.disks.aggregatedList', 'compute.disks.delete'],
      ...['compute.images.get', 'compute.images.getFromFamily', 'compute.instances.aggregatedList', 'compute.instances.delete'],
      ...['compute.instances.get', 'compute.instances.getSerialPortOutput', 'compute.instances.insert'],
      'compute.instances.setMetadata',
      ...['compute.machineTypes.aggregatedList', 'compute.projects.get', 'compute.regions.get', 'compute.subnetworks.get'],
      'compute.zoneOperations.get',
    ]);
  });

  test('the judge finds what is wrong', () => {
    const url = new URL('https://compute.googleapis.com/compute/v1/projects/p/zones/z/instances?requestId=1&retry=1');
    const body = {
      name: 'x',
      gpu: 1,
      scheduling: { provisioningModel: 'CHEAP', maxRunDuration: { seconds: 30 } },
      disks: [{ initializeParams: { diskSizeGb: 50 } }, 'disk'],
      labels: { one: 1 },
    };
    const answer = { status: 200, json: { kind: 'compute#operation', status: 'FINISHED' } };
    expect(judge(documentOf(url), { method: 'POST', url, body, answer })).toEqual({
      id: 'compute.instances.insert',
      wrong: [
        'query retry is not known',
        'request.gpu is not known',
        'request.scheduling.provisioningModel: "CHEAP" is not in the enumeration',
        'request.scheduling.maxRunDuration.seconds: number instead of string (int64)',
        'request.disks[0].initializeParams.diskSizeGb: number instead of string (int64)',
        'request.disks[1]: string instead of object',
        'request.labels.one: number instead of string',
        'answer.status: "FINISHED" is not in the enumeration',
      ],
    });
    const strange = new URL('https://compute.googleapis.com/compute/v1/projects/p/zones/z/machines');
    expect(judge(documentOf(strange), { method: 'GET', url: strange, body: '', answer }).wrong).toHaveLength(1);
  });
});

/** On its port. */
function openedAt(gcp: GcpStandin): Promise<Cloud> {
  const config = { ...gcpConfig, endpoint: gcp.origin };
  const log = { info() {}, warn() {}, error() {} };
  return openGcp(config, { clock: systemClock, fetch, log, variables: { GCP_KEY: gcp.keyFile() }, version: '1.2.3' });
}

/** Calls of APIs that got an answer. */
function exchanges(gcp: GcpStandin): Exchanged[] {
  return gcp.requests.flatMap(({ method, url, body, answer }) =>
    answer === undefined || !/^\/(compute|v3)\//.test(url.pathname) ? [] : [{ method, url, body, answer }],
  );
}

const documents = new Map<string, Document>();
function documentOf({ pathname }: URL): Document {
  const name = pathname.startsWith('/v3/') ? 'cloudresourcemanager.v3' : 'compute.v1';
  const known = documents.get(name) ?? JSON.parse(readFileSync(gcpClients.discovery(name), 'utf8'));
  documents.set(name, known);
  return known;
}
