/**
 * A pipeline on agents that nothing can reach: `cloud up` in one stage, a job on the machine, and `cloud down` on another host without
 * any state. The machine and the two commands only call the stand-in of the cloud.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { awsStandin, azureStandin, type CloudStandin, gcpStandin, type Machines } from '../support/cloud-standins.ts';
import { mailMachines } from '../support/mail-machine.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const secret = 'the-token-of-a-service';

const clouds: Readonly<Record<string, (machines: Machines) => Promise<CloudStandin>>> = {
  aws: awsStandin,
  gcp: gcpStandin,
  azure: azureStandin,
};

describe.skipIf(lacks('bubblewrap', 'openssl'))('without a way to the controller', () => {
  test.for(Object.entries(clouds))('%s: up, a job, and down from another host', { timeout: 400_000 }, async ([, stand]) => {
    let made: CloudStandin | null = null;
    const consoles: string[] = [];
    await using played = mailMachines(() => {
      if (made === null) throw new Error('the stand-in is not there yet');
      const { guest } = made;
      return {
        ...made,
        guest(id) {
          const { metadata, print } = guest(id);
          return {
            metadata,
            print(text) {
              consoles.push(text);
              print(text);
            },
          };
        },
      };
    });
    await using cloud = await stand(played.machines);
    made = cloud;
    const config = `
services:
  hub: { type: gitea, url: "http://127.0.0.1:1", token: { env: HUB } }
clouds:
  lab: { ${cloud.keys}, owner: lab }
hosts:
  burst:
    cloud: lab
    types: [${cloud.types.join(', ')}]
    pools: { gpu: { service: hub, queue: acme/gpu, agents: 1, runtime: process }, other: { service: hub, queue: acme/demo, agents: 1, runtime: process } }
join: { through: cloud, package: "https://example.org/onejob.tgz", sha256: "${'a'.repeat(64)}" }
`;
    const env = { ...cloud.env, HUB: secret };
    await using here = await onejob({ config, env });
    const up = here.cli(['cloud', 'up', 'burst', '--timeout', '3m']);
    const { home, root } = await played.joined;
    const upped = await up.ended;
    expect(upped, upped.stdout + upped.stderr).toMatchObject({ code: 0 });
    expect(JSON.parse(readFileSync(join(root, 'machine.json'), 'utf8'))).toMatchObject({ url: null });
    expect(readFileSync(join(root, 'run/onejob-cloud/secrets/hub.token'), 'utf8')).toBe(secret);

    const job = await home.run('--no-workspace', '--', 'echo', 'hello').ended;
    expect(job, job.stderr).toMatchObject({ code: 0, stdout: 'hello\n' });

    await using there = await onejob({ config, env });
    const down = await there.cli(['cloud', 'down', 'burst', '--timeout', '5m']).ended;
    expect(played.broken).toEqual([]);
    expect(down, down.stdout + down.stderr).toMatchObject({ code: 0 });
    expect(down.stdout + down.stderr).toMatch(/drains\. It was ended with "onejob cloud down"\.[\s\S]*is gone: two complete lists/);
    expect(consoles.join('')).toMatch(/^onejob: onejob-[0-9a-f]{16} drained /m);
    expect(consoles.join('')).not.toContain(secret);
    const receipts = await there.cli(['cloud', 'receipts', '--json']).ended;
    expect(JSON.parse(receipts.stdout)).toMatchObject({
      host: 'burst',
      state: 'gone',
      absentAt: [expect.any(Number), expect.any(Number)],
    });
    expect(cloud.left()).toEqual([]);
  });
});
