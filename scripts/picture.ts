/**
 * Makes the picture in README from a real run: a daemon, a job, and the commands that look at them, typed into a terminal
 * of 100 columns. Needs tmux. What it made is gone afterwards.
 *
 *     node scripts/picture.ts
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ansiToSvg } from './ansi-svg.ts';
import { allReady, film } from './lab.ts';
import { until } from './terminal.ts';

const pictures = join(import.meta.dirname, '..', 'docs', 'pictures');
const [columns, rows] = [100, 36];

const config = `pools:
  default: { agents: 2, name: "build-{n}" }
  data:    { agents: 1, name: "data-{n}" }
`;

const text = await film({ columns, rows }, async ({ work, env, up, type }) => {
  const client = await up(config);
  writeFileSync(join(work, 'probe.sh'), 'sleep 60\n');
  await type("onejob run -- sh -c 'echo hello from $(hostname)'");
  for (const pool of ['default', 'data', 'data'])
    execFileSync('onejob', ['run', '--pool', pool, '--detach', '--', 'sh', 'probe.sh'], { env, cwd: work });
  await until(async () => {
    const slots = (await client.status()).pools.flatMap((pool) => pool.slots);
    return slots.filter((slot) => slot.agent.state === 'busy').length === 2 && (await allReady(client));
  });
  await type('onejob status');
  await type('onejob doctor');
});
mkdirSync(pictures, { recursive: true });
writeFileSync(join(pictures, 'run.svg'), ansiToSvg(text, { columns, title: 'onejob' }));
