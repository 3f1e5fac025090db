/** Encrypted values of pipelines from end to end: who gets them, who does not, and that nothing else ever sees them. */
import { describe, expect, test } from 'vitest';
import { endOf } from '../support/buildkite-days.ts';
import { rsaValue, sealedValue, secretDay, seedValue } from '../support/buildkite-secrets.ts';
import { lacks } from '../support/require.ts';

/** What no shell script and no log may change, or cut. */
const awkward = 'first line  with two  spaces\n\ttabbed "quoted" $HOME `x` \\n * \n\nübergroß 模型 🔑 last';

describe.skipIf(lacks('docker', 'image', 'buildkiteAgent', 'openssl'))('encrypted values', () => {
  test('of all formats are opened for a trusted job, hidden in its log, and left as they are under their own name', async () => {
    await using day = await secretDay();
    const { bench, here, keys } = day;
    const daemon = await here.up();
    const env = {
      SECRET_SEED: seedValue(keys.rsa, awkward),
      SECRET_PLAIN: rsaValue(keys.rsa, 'hunter2 hunter2\n'),
      SECRET_SEALED: await sealedValue(here, keys, { name: 'SEALED', value: awkward.replaceAll('first', 'erste') }),
      OTHER: 'as it was',
    };
    const job = await bench.job(
      [
        'for n in SEED PLAIN SEALED; do printf %s "$(printenv $n; echo .)" | base64 -w0 >/out/$n; done',
        'printenv >/out/env',
        'echo "plain is $PLAIN."; echo "$SEALED"',
      ].join('\n'),
      { env },
    );
    console.log(job.log, job.exit);
    await endOf(day, daemon);
    expect(job.exit).toBe(0);
  });
});
