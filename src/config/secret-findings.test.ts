import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';
import { secretFindings } from './findings.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const now = Date.UTC(2030, 0, 20);

async function findings(token: string, variables: Record<string, string> = {}) {
  const { config } = await folder.load(
    `services: { s: { type: azure-pipelines, url: "https://dev.azure.com/a", token: ${token} } }`,
  );
  return secretFindings(config, now, variables);
}

it('a secret that is there and has its time is told with the day it ends', async () => {
  const file = folder.write('pat', 'hunter2');
  expect(await findings(`{ file: ${file}, expires: 2030-02-28 }`)).toEqual([
    { level: 'ok', subject: 'services.s.token', message: `It is present: file ${file}, expires 2030-02-28.`, hint: null },
  ]);
});

it.each([
  ['2030-01-31', 'It expires on 2030-01-31, in 11 days.', 'Create a new one in time.'],
  ['2030-01-19', 'It expired on 2030-01-19.', 'Create a new one and change the date.'],
])('one that ends on %s is a warning', async (expires, message, hint) => {
  expect(await findings(`{ file: ${folder.write('pat', 'hunter2')}, expires: ${expires} }`)).toEqual([
    { level: 'warning', subject: 'services.s.token', message, hint },
  ]);
});

it('so is one that is no longer there, or that others can read', async () => {
  expect(await findings('{ file: /nowhere/pat }')).toEqual([
    { level: 'warning', subject: 'services.s.token', message: '/nowhere/pat does not exist.', hint: null },
  ]);
  expect(await findings('{ env: PAT }')).toMatchObject([{ message: 'Its environment variable PAT is not set.' }]);
  const open = folder.write('open', 'hunter2', 0o644);
  const [found] = await findings(`{ file: ${open} }`);
  expect(found).toMatchObject({
    message: `${open} can be used by every user of this host (mode 644).`,
    hint: `Run "chmod 600 ${open}".`,
  });
  expect(JSON.stringify(found)).not.toContain('hunter2');
});
