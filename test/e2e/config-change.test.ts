/** The config is read once: what differs from it later is told, and a hangup stops onejob as TERM does, instead of killing it. */
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';

test('a config that changed is told by status, plan and doctor; a hangup ends the daemon with its reason in the log', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  const daemon = await here.up();
  await expect.poll(async () => (await here.api.plan()).length).toBe(0);
  expect((await here.cli(['plan']).ended).stdout).toBe('Nothing to do: what exists matches the config.\n');
  here.configure('pools: { default: { agents: 2, runtime: process } }');
  const changed =
    /^! \S+config\.yml was changed after the daemon loaded it at [\d:]+; the daemon still uses what it loaded\. To apply it, type .*"onejob down --leave"/m;
  expect((await here.cli(['status']).ended).stdout).toMatch(changed);
  const plan = (await here.cli(['plan']).ended).stdout;
  expect(plan).toMatch(changed);
  expect(plan).toContain('Nothing to do: what exists matches the loaded config.');
  expect((await here.cli(['doctor']).ended).stdout).toMatch(/^warning +config: \S+config\.yml was changed after/m);

  daemon.child.signal('SIGHUP');
  const ended = await daemon.child.ended;
  expect(ended.code).toBe(0);
  expect(ended.stdout).toMatch(/hangup/);
  expect(ended.stdout).toMatch(/onejob is down/);
  expect((await here.census()).left).toEqual([]);
});
