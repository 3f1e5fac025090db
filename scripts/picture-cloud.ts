/**
 * Makes the picture in docs/cloud.md from a real run: the stand-in of AWS, whose machine is a second onejob of this host, and `onejob`
 * in a terminal of 110 columns. Needs tmux and bubblewrap. What it made is gone afterwards.
 *
 *     node scripts/picture-cloud.ts
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { awsStandin } from '../test/support/cloud-standins.ts';
import { freePort } from '../test/support/free-port.ts';
import { secondOnejobs } from '../test/support/second-onejob.ts';
import { ansiToSvg } from './ansi-svg.ts';
import { film } from './lab.ts';

const [columns, rows] = [110, 40];

await using second = secondOnejobs();
await using cloud = await awsStandin(second.machines);
const port = await freePort();
const text = await film({ columns, rows }, async ({ dir, up, type }) => {
  const archive = join(dir, 'onejob.tgz');
  writeFileSync(archive, 'a package');
  const secret = join(dir, 'aws');
  writeFileSync(secret, cloud.env.AWS_SECRET ?? '', { mode: 0o600 });
  await up(`clouds:
  aws: { ${cloud.keys.replace('env: AWS_SECRET', `file: ${secret}`)} }
hosts:
  burst: { cloud: aws, types: [g6.xlarge, g5.xlarge], idle: 10m, prices: { g6.xlarge: 0.80 }, pools: { build: { runtime: process } } }
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }
`);
  await type("onejob run --pool burst.build -- sh -c 'echo hello from a machine'");
  await type('onejob status');
  await type('onejob cloud down burst');
  await type('onejob cloud receipts');
});
writeFileSync(join(import.meta.dirname, '..', 'docs', 'pictures', 'cloud.svg'), ansiToSvg(text, { columns, title: 'onejob' }));
