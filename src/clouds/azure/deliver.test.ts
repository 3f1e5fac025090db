/** Mail as user data, up to what the machine reads at its metadata service. */
import { expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, patient, run } from '../../../test/kit/azure-cloud.ts';
import { metadataAt } from '../../../test/support/cloud-standins.ts';
import { readMail } from '../../machines/join/mail.ts';

async function bench() {
  const { azure, cloud, clock, settled, order, world } = azureWorld();
  const made = await settled(cloud.create(order(), patient));
  const read = () => settled(readMail('azure', { clock, fetch: metadataAt(azure.fetch, run) }, patient));
  return { azure, world, read, deliver: (text: string) => settled(cloud.deliver(made, text, patient)) };
}

it('a machine has no mail, then the newest; what it boots from stays', async () => {
  const { world, read, deliver } = await bench();
  expect(await read()).toBeNull();
  await deliver('stay 1 Ym94');
  expect(await read()).toEqual({ do: 'stay', at: 1, box: Buffer.from('box') });
  await deliver('drain 2 -');
  expect(await read()).toEqual({ do: 'drain', at: 2, box: null });
  expect(world.machines()[0]?.userData).toContain('#cloud-config');
});

it('a refusal says what was tried, and what is missing', async () => {
  const { azure, deliver } = await bench();
  azure.grant('Microsoft.Compute/virtualMachines/read');
  const error = await cloudErrorOf(deliver('stay 1 -'));
  expect(error).toMatchObject({ code: 'E_CLOUD_DENIED', retry: false });
  expect(error.message).toContain(`Cannot send mail to machine ${run}`);
  expect(error.hint).toContain('Microsoft.Compute/virtualMachines/write');
});
