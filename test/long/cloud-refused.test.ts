/** Clouds that refuse for good: `cloud up` and `cloud sweep` end at once, and nothing was made. The real onejob on the stand-ins. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { aws as ofAws } from '../../src/clouds/aws/type.ts';
import { permissions as ofGcp } from '../../src/clouds/gcp/permissions.ts';
import { awsStandin, azureStandin, type CloudStandin, gcpStandin, joinOf } from '../support/cloud-standins.ts';
import { onejob } from '../support/onejob.ts';
import { playMachines } from '../support/played-machines.ts';

interface Strict extends CloudStandin {
  /** A secret that the cloud does not know. */
  readonly wrong: Readonly<Record<string, string>>;
  /** The credential may do nothing. */
  deny(): void;
  /** Only the call that makes a machine, or sets its end, says so: as in `forbidden`. */
  forbid(): void;
  readonly forbidden: RegExp;
}

const { machines } = playMachines();

const clouds: Readonly<Record<string, () => Promise<Strict>>> = {
  async aws() {
    const made = await awsStandin(machines);
    const { aws } = made;
    return Object.assign(made, {
      wrong: { AWS_SECRET: 'another-secret-key-that-nobody-has-made-yet' },
      deny() {
        for (const one of ofAws.permissions) aws.denied.add(one);
      },
      forbid: () => void aws.denied.add('scheduler:CreateSchedule'),
      forbidden: /onejob: Cannot set the end of life of machine i-\w+: .*scheduler:CreateSchedule\. Allow scheduler:CreateSchedule/,
    });
  },
  async gcp() {
    const made = await gcpStandin(machines);
    const { gcp } = made;
    const key = JSON.parse(gcp.keyFile());
    return Object.assign(made, {
      wrong: { GCP_KEY: JSON.stringify({ ...key, private_key_id: 'f'.repeat(40) }) },
      deny: () => void Object.assign(gcp.faults, { denied: ofGcp }),
      forbid: () => void Object.assign(gcp.faults, { noAddresses: true }),
      forbidden: /onejob: Cannot create onejob-\w+ .*vmExternalIpAccess.*A policy of the organisation forbids it/,
    });
  },
  async azure() {
    const made = await azureStandin(machines);
    const { azure } = made;
    return Object.assign(made, {
      wrong: { AZURE_SECRET: 'another~secret' },
      deny: () => azure.grant(),
      forbid: () =>
        azure.fail({ at: /^PUT \S+virtualMachines/, how: { status: 403, code: 'RequestDisallowedByPolicy' }, times: 1e6 }),
      forbidden: /onejob: Cannot create a \S+ in westeurope: .*RequestDisallowedByPolicy.*A policy of the organisation forbids it/,
    });
  },
};

/** An installation. `prepare` returns what is other in its environment than the cloud says. */
async function world(name: string, prepare: (cloud: Strict) => Readonly<Record<string, string>>) {
  await using parts = new AsyncDisposableStack();
  const cloud = parts.use(await (clouds[name] as () => Promise<Strict>)());
  const env = { ...cloud.env, ...prepare(cloud) };
  const here = parts.use(await onejob({ config: '', env }));
  here.configure(`
clouds: { far: { ${cloud.keys}, owner: acme-ci } }
hosts: { burst: { cloud: far, types: [${cloud.types[0]}], pools: { gpu: { agents: 1 } } } }
${await joinOf(here)}
pools: { local: { agents: 1, runtime: process } }
`);
  const owned = parts.move();
  const ask = async (...args: string[]) => {
    const { code, stderr } = await here.cli(['cloud', ...args]).ended;
    return { code, said: stderr.replace(/\s+/g, ' ') };
  };
  return { cloud, here, ask, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

const timeout = 240_000;

describe.each([
  ['azure', 'az', "ERROR: Please run 'az login' to setup account.", 'az login'],
  [
    'gcp',
    'gcloud',
    'ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected.',
    'gcloud auth login',
  ],
  [
    'aws',
    'aws',
    'Error when retrieving credentials from sso: The SSO session associated with this profile has expired or is otherwise invalid.',
    'aws sso login --profile ci',
  ],
] as const)('a program of %s that prints no credential', (name, program, says, signIn) => {
  test.each([
    ['nobody is signed in', true],
    ['it is not installed', false],
  ])('%s: "check", "up" and "sweep" end at once, with what to type', { timeout }, async (_, isInstalled) => {
    await using set = await world(name, () => ({}));
    const { cloud, here } = set;
    const bin = join(here.dir, 'programs');
    mkdirSync(bin);
    if (isInstalled) writeFileSync(join(bin, program), `#!/bin/sh\necho "${says}" >&2\nexit 1\n`, { mode: 0o755 });
    writeFileSync(join(here.dir, 'aws-config'), '[profile ci]\nsso_session = corp\n');
    const usual = name === 'aws' ? 'credentials: { profile: ci }' : '';
    here.configure(`
clouds: { far: { ${cloud.keys.replace(/, credentials: .*$/, '')}, owner: acme-ci, ${usual} } }
hosts: { burst: { cloud: far, types: [${cloud.types[0]}], pools: { gpu: { agents: 1 } } } }
${await joinOf(here)}
pools: { local: { agents: 1, runtime: process } }
`);
    const env = { PATH: bin, AWS_CONFIG_FILE: join(here.dir, 'aws-config') };
    for (const args of [['check'], ['up', 'burst'], ['sweep']]) {
      const { code, stdout, stderr } = await here.cli(['cloud', ...args], { env }).ended;
      const said = `${stdout}${stderr}`.replace(/\s+/g, ' ');
      expect([args[0], code, said]).toEqual([
        args[0],
        1,
        expect.stringContaining(isInstalled ? `"${signIn}"` : `Install "${program}"`),
      ]);
      expect(said).not.toContain('trying again');
    }
    expect(cloud.left()).toEqual([]);
  });
});

describe.each(Object.keys(clouds))('%s', (name) => {
  test('a credential that is refused', { timeout }, async () => {
    await using set = await world(name, ({ wrong }) => wrong);
    const { cloud, here, ask } = set;
    const refused = expect.stringMatching(
      /Cannot make a machine of burst: the check of cloud far found .*credential: .*Nothing was made/,
    );
    expect(await ask('up', 'burst')).toEqual({ code: 1, said: refused });
    expect(await ask('sweep')).toMatchObject({ code: 1 });
    await here.up();
    expect(await ask('up', 'burst')).toEqual({ code: 1, said: refused });
    expect(await here.api.machines()).toMatchObject([{ host: 'burst', wanted: 0, machines: [] }]);
    expect(cloud.left()).toEqual([]);
  });

  test('a credential that is missing', { timeout }, async () => {
    await using set = await world(name, ({ wrong }) => Object.fromEntries(Object.keys(wrong).map((key) => [key, ''])));
    const { cloud, ask } = set;
    for (const args of [['up', 'burst'], ['sweep']])
      expect(await ask(...args)).toEqual({ code: 1, said: expect.stringMatching(/(AWS_SECRET|GCP_KEY|AZURE_SECRET)/) });
    expect(cloud.left()).toEqual([]);
  });

  test('a credential that may do nothing', { timeout }, async () => {
    await using set = await world(name, ({ deny }) => {
      deny();
      return {};
    });
    const { cloud, here, ask } = set;
    const refused = expect.stringMatching(/Cannot make a machine of burst: (.*permission|.*authorization).*Nothing was made/i);
    expect(await ask('up', 'burst')).toEqual({ code: 1, said: refused });
    expect(await ask('sweep')).toMatchObject({ code: 1 });
    await here.up();
    expect(await ask('up', 'burst')).toEqual({ code: 1, said: refused });
    expect(cloud.left()).toEqual([]);
  });

  test('what only the call says that makes a machine', { timeout }, async () => {
    await using set = await world(name, ({ forbid }) => {
      forbid();
      return {};
    });
    const { cloud, here, ask } = set;
    await here.up();
    expect(await ask('up', 'burst')).toEqual({ code: 1, said: expect.stringMatching(cloud.forbidden) });
    expect(await here.api.machines()).toMatchObject([{ host: 'burst', wanted: 0, machines: [] }]);
    expect(cloud.left()).toEqual([]);
  });
});
