import { describe, expect, it } from 'vitest';
import { azureWorld, cloudErrorOf, patient, run } from '../../../test/kit/azure-cloud.ts';
import { location } from '../../../test/standins/azure-cloud/azure-cloud.ts';

const size = 'Standard_NC4as_T4_v3';

async function withMachine() {
  const one = azureWorld();
  const made = await one.settled(one.cloud.create(one.order(), patient));
  return { ...one, made, read: () => one.settled(one.cloud.console(made, patient)) };
}

describe('the console', () => {
  it('is its end, and no token goes where it lies', async () => {
    const { azure, read } = await withMachine();
    azure.consoles.set(run, `${'x'.repeat(70_000)} the end`);
    const text = await read();
    expect([text.length, text.endsWith('the end')]).toEqual([65_536, true]);
  });

  it('is empty as long as there is none, and once the machine is gone', async () => {
    const { azure, read, world, made } = await withMachine();
    expect(await read()).toBe('');
    azure.fail({ at: /retrieveBootDiagnosticsData/, how: { status: 200, code: '', json: {} } });
    expect(await read()).toBe('');
    for (const machine of world.machines()) world.removeResource(machine);
    expect([await read(), made.id.endsWith(run)]).toEqual(['', true]);
  });

  it('its address, which is a credential, is in no message', async () => {
    const { azure, read } = await withMachine();
    for (const how of ['lost', { status: 403, code: 'AuthenticationFailed' }] as const) {
      azure.fail({ at: /bootdiagnostics/, how });
      const { message, hint } = await cloudErrorOf(read());
      expect(message + hint).not.toContain('s3cret');
      expect(message).toContain(`Cannot read the console of ${run}`);
    }
    const json = { serialConsoleLogBlobUri: 'http://blob.example/log?sig=s3cret' };
    azure.fail({ at: /retrieveBootDiagnosticsData/, how: { status: 200, code: '', json } });
    const error = await cloudErrorOf(read());
    expect([error.code, error.message]).toEqual(['E_CLOUD_ANSWER', expect.not.stringContaining('s3cret')]);
  });
});

describe('the price', () => {
  const asked = (one: ReturnType<typeof azureWorld>) => one.azure.calls.filter((call) => call.includes('/retail/prices')).length;

  it("is that of Azure's list today, with the disk and the address, once a day", async () => {
    const one = azureWorld();
    const price = (spot: boolean) => one.settled(one.cloud.price({ type: size, spot }, patient));
    expect([await price(false), await price(true)]).toEqual([
      { perHour: 0.63, asOf: '2030-01-01' },
      { perHour: 0.15, asOf: '2030-01-01' },
    ]);
    await price(false);
    // The list comes through a cache, whose clock is nobody's.
    expect([asked(one), one.cloud.skew()]).toEqual([2, null]);
    one.clock.advance(86_400_000);
    one.azure.pricesAre(0.7);
    expect([await price(false), asked(one)]).toEqual([{ perHour: 0.73, asOf: '2030-01-02' }, 3]);
  });

  it('else that of a table, which says its day', async () => {
    const one = azureWorld();
    one.azure.pricesAre(null);
    const price = (type: string) => one.settled(one.cloud.price({ type, spot: false }, patient));
    expect(await price(size)).toEqual({ perHour: 0.556, asOf: '2026-11-01' });
    expect(await price('Standard_D2s_v5')).toBe(null);
    one.azure.fail({ at: /prices/, how: 'silent' });
    expect(await price('Standard_NC8as_T4_v3')).toMatchObject({ asOf: '2026-11-01' });
  });

  it('behind another address than that of Azure, nobody is asked', async () => {
    const one = azureWorld({ config: { endpoint: 'https://arm.example.org' } });
    expect(await one.settled(one.cloud.price({ type: size, spot: true }, patient))).toEqual({ perHour: 0.14, asOf: '2026-11-01' });
    expect([asked(one), location]).toEqual([0, 'westeurope']);
  });
});
