/** Mail as tags, up to what the machine reads at its metadata service. */
import { expect, it } from 'vitest';
import { awsBench } from '../../../test/kit/aws.ts';
import { metadataAt } from '../../../test/support/cloud-standins.ts';
import { readMail } from '../../machines/join/mail.ts';

async function bench() {
  const { aws, cloud, order, never, clock, error } = awsBench();
  const made = await cloud.create(order(), never);
  const read = () => readMail('aws', { clock, fetch: metadataAt(aws.fetch, made.id) }, never);
  return { aws, clock, error, made, read, deliver: (text: string) => cloud.deliver(made, text, never) };
}

const mail = (bytes: number, fill = 1) => `stay 1 ${Buffer.alloc(bytes, fill).toString('base64')}`;

it('a machine has no mail, then the newest, whether it is longer or shorter', async () => {
  const { aws, made, read, deliver } = await bench();
  expect(await read()).toBeNull();
  await deliver(mail(3000));
  expect(await read()).toEqual({ do: 'stay', at: 1, box: Buffer.alloc(3000, 1) });
  await deliver('drain 2 -');
  expect(await read()).toEqual({ do: 'drain', at: 2, box: null });
  // What it is found by stays.
  expect(aws.world.machines.get(made.id)?.tags).toMatchObject({ 'onejob-owner': 'box-1', 'onejob-mail-2': expect.any(String) });
});

it('mail whose tags have not all arrived does not count', async () => {
  const { aws, clock, read, deliver } = await bench();
  await deliver(mail(3000));
  aws.world.flaws.tornTags = 2_000;
  await deliver(mail(3000, 2));
  expect(await read()).toBeNull();
  clock.advance(2_000);
  expect((await read())?.box).toEqual(Buffer.alloc(3000, 2));
});

it('what tags cannot hold is refused with a way out, and so is what the credential may not do', async () => {
  const { aws, error, deliver } = await bench();
  await deliver(mail(7_600));
  const tooLong = await error(deliver(mail(7_700)));
  expect(tooLong).toMatchObject({ code: 'E_CLOUD_REQUEST', retry: false, hint: expect.stringContaining('join.listen') });
  aws.denied.add('ec2:CreateTags');
  expect(await error(deliver('stay 1 -'))).toMatchObject({
    code: 'E_CLOUD_DENIED',
    hint: expect.stringContaining('ec2:CreateTags'),
  });
});
