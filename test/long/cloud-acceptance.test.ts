/** `onejob cloud acceptance` as people type it, on a stand-in of AWS in real time. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCli } from '../../src/cli.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { createAws, schedulerRole, testKey } from '../standins/aws/standin.ts';
import { testContext } from '../support/cli-context.ts';
import { onejob } from '../support/onejob.ts';

async function account() {
  const aws = createAws({
    clock: systemClock,
    times: { boot: 200, end: 200 },
    hooks: {
      onBoot(machine) {
        const run = /onejob-[0-9a-f]{16}/.exec(machine.userData.toString())?.[0];
        machine.console = `onejob acceptance ${run} speaks\n`;
      },
    },
  });
  await using parts = new AsyncDisposableStack();
  parts.defer(() => aws.close());
  const served = parts.use(await aws.serve());
  const home = parts.use(await onejob({ config: '' }));
  const secret = join(home.dir, 'aws.secret');
  writeFileSync(secret, testKey.secret, { mode: 0o600 });
  home.configure(`
clouds:
  aws:
    type: aws
    region: us-west-2
    endpoint: "${served.url}"
    scheduler_role: "${schedulerRole}"
    security_group: sg-0e00000000000000
    credentials: { access_key_id: ${testKey.id}, secret_access_key: { file: "${secret}" } }
`);
  const all = parts.move();
  return { aws, home, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

test('it passes, and prints a table without ids of the account', { timeout: 240_000 }, async () => {
  await using it = await account();
  const ended = await it.home.cli(['cloud', 'acceptance', 'aws', '--yes', '--markdown']).ended;
  expect(ended, ended.stderr + ended.stdout).toMatchObject({ code: 0 });
  const rows = ended.stdout.split('\n').filter((line) => line.startsWith('| '));
  expect(rows.length).toBeGreaterThan(15);
  expect(rows.filter((row) => !/ \| (?:ok|warning) \| /.test(row))).toEqual([expect.stringContaining('| Step |')]);
  for (const id of [it.aws.account.id, testKey.id, testKey.secret]) expect(ended.stdout).not.toContain(id);
  expect(ended.stderr).toMatch(/onejob cloud sweep --owner onejob-acceptance-[0-9a-f]{8} --cloud aws --all/);
  expect(it.aws.leftovers()).toEqual([]);
});

test('an interrupted one removes what it made', { timeout: 120_000 }, async () => {
  await using it = await account();
  const child = it.home.cli(['cloud', 'acceptance', 'aws', '--yes', '--json']);
  await expect.poll(() => it.aws.world.schedules.size, { timeout: 60_000 }).toBe(1);
  child.signal('SIGINT');
  const ended = await child.ended;
  expect(ended, ended.stderr).toMatchObject({ code: 130 });
  const steps = ended.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(steps.at(-1)).toMatchObject({ cloud: 'aws', step: 'clean up', result: 'ok' });
  expect(it.aws.leftovers()).toEqual([]);
});

test('without a terminal and without --yes it makes nothing', async () => {
  await using it = await account();
  const ended = await it.home.cli(['cloud', 'acceptance', 'aws']).ended;
  expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining('--yes') });
  const wrong = [['amazon'], ['aws', '--yes', '--host', 'burst'], ['aws', '--yes', '--type', 'p3.2xlarge']];
  for (const args of [...wrong, ['aws', '--json', '--markdown']])
    expect(await it.home.cli(['cloud', 'acceptance', ...args]).ended).toMatchObject({ code: 2, stdout: '' });
  expect(it.aws.calls).toEqual([]);
});

test.each(['no', ''])('somebody at a terminal answers "%s": it makes nothing', async (answer) => {
  await using it = await account();
  const args = ['cloud', 'acceptance', 'aws', '--config', join(it.home.dir, 'config.yml')];
  const typed = testContext(args, it.home.dir);
  Object.assign(typed.context.stdin(), { isTTY: true });
  Object.assign(typed.context.stderr, { isTTY: true });
  const code = runCli(typed.context);
  await typed.says(/Make it\? g4dn\.xlarge costs about \$0\.\d\d for at most 40 minutes .*\[no\]: /);
  typed.type(`${answer}\n`);
  expect(await code).toBe(130);
  expect(typed.stdout()).toMatch(/– costs: .*Declined\.\n$/);
  expect(it.aws.world.machines.size).toBe(0);
});
