/** Mail in the metadata of an instance, up to what the machine reads at its metadata server. */
import { expect, test } from 'vitest';
import { gcpWorld, never } from '../../../test/kit/gcp.ts';
import { metadataAt } from '../../../test/support/cloud-standins.ts';
import { readMail } from '../../machines/join/mail.ts';

async function bench() {
  const { gcp, cloud, clock, done, order } = await gcpWorld();
  const made = await done(cloud.create(order(), never));
  const read = () => done(readMail('gcp', { clock, fetch: metadataAt(gcp.fetch, made.id) }, never));
  return { gcp, made, read, deliver: (text: string) => done(cloud.deliver(made, text, never)) };
}

test('a machine has no mail, then the newest; what it boots from stays', async () => {
  const { gcp, read, deliver } = await bench();
  expect(await read()).toBeNull();
  await deliver('stay 1 Ym94');
  expect(await read()).toEqual({ do: 'stay', at: 1, box: Buffer.from('box') });
  await deliver('drain 2 -');
  expect(await read()).toEqual({ do: 'drain', at: 2, box: null });
  expect(gcp.machines()[0]?.metadata).toEqual({
    'user-data': '#cloud-config\n',
    'block-project-ssh-keys': 'TRUE',
    'onejob-mail': 'drain 2 -',
  });
});

test('metadata that somebody else changed meanwhile is not overwritten', async () => {
  const { gcp, read, deliver } = await bench();
  const conflict = gcp.fail(
    { method: 'POST', path: /setMetadata$/ },
    { status: 412, reason: 'conditionNotMet', message: 'Supplied fingerprint does not match current metadata fingerprint.' },
  );
  await expect(deliver('stay 1 -')).rejects.toMatchObject({ name: 'CloudError', reason: 'conditionNotMet', retry: true });
  expect(await read()).toBeNull();
  conflict();
  await deliver('stay 2 -');
  expect(await read()).toMatchObject({ at: 2 });
});
