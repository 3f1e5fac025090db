/** Messages for people, from a real daemon to a real webhook: once, also across kill -9 and a changed config. */
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';

test('an expired credential is told once; kill -9 neither repeats nor loses it; the config is applied', async () => {
  const got: { event: string; subject: string; text: string }[] = [];
  let status = 500;
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    if (status === 200) got.push(JSON.parse(text));
    response.writeHead(status).end();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  try {
    await using here = await onejob({ config: '' });
    const file = join(here.dir, 'url');
    writeFileSync(file, `http://127.0.0.1:${port}/hunter2`, { mode: 0o600 });
    const config = (agents: number) =>
      `pools: { default: { agents: ${agents}, runtime: process } }\nnotify: { webhook: { file: ${file}, expires: 2020-01-31 } }`;
    here.configure(config(1));
    const tried = await here.cli(['notify', 'test']).ended;
    expect(tried).toMatchObject({ code: 1, stderr: expect.stringMatching(/it answered 500/) });
    status = 200;
    const tested = await here.cli(['notify', 'test', '--json']).ended;
    expect(JSON.parse(tested.stdout)).toEqual({ to: `the webhook in file ${file}`, answer: 'it answered 200' });
    expect(got.splice(0)).toMatchObject([{ event: 'test' }]);

    // A daemon that is refused and killed: the next one tells people.
    status = 500;
    const first = await here.up();
    await first.child.says(/failed to tell people/);
    expect((await here.cli(['status']).ended).stdout).toMatch(/^! Cannot deliver a message/m);
    await first.kill();
    status = 200;
    const second = await here.up();
    await second.child.says(/told people/);
    expect(got).toMatchObject([
      { event: 'problem', subject: 'notify.webhook', text: expect.stringContaining('It expired on 2020-01-31.') },
    ]);
    await second.kill();
    const third = await here.up();
    here.configure(config(2));
    expect((await here.cli(['config', 'apply']).ended).code).toBe(0);
    expect((await here.cli(['doctor']).ended).stdout).toMatch(/ok +notify: Messages for people go to the webhook in file/);
    expect((await third.stop()).code).toBe(0);
    expect(got).toHaveLength(1);
    for (const { child } of [first, second, third])
      expect((await child.ended).stderr + (await child.ended).stdout).not.toContain('hunter2');
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test('without "notify" a test says what to write', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1 } }' });
  expect(await here.cli(['notify', 'test']).ended).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/config\.yml has no "notify" that says where messages go\.\s+Write for example: notify:/),
  });
});
