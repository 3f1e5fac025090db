/** `npm run standin:azure`: the stand-in by hand, to see the whole flow without an account. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { conversation, ownAddress } from '../by-hand.ts';
import { packAgent } from './agent/pack.ts';
import { obey, told } from './console.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

const USAGE = `npm run standin:azure -- [--host ADDRESS] [--port PORT] [--pool NAME] [--jobs N]

A local stand-in for Azure DevOps with one pool. Containers must reach it, so it listens on an address
of this host that is not 127.0.0.1, if there is one; its port is 8990 unless you say otherwise.
--jobs N queues N jobs as soon as the first agent is registered.`;

const { values } = parseArgs({
  options: {
    host: { type: 'string' },
    port: { type: 'string' },
    pool: { type: 'string' },
    jobs: { type: 'string' },
    help: { type: 'boolean' },
  },
});
if (values.help === true) console.log(USAGE);
else await main();

async function main(): Promise<void> {
  await using azure = await startAzureDevOps({ host: values.host ?? ownAddress(), port: Number(values.port ?? 8990) });
  const name = values.pool ?? 'gpu';
  const pool = azure.addPool(name);
  await azure.addPackage(await packAgent());
  // Of its own, so that a onejob that leads this host goes on beside it.
  const stateDir = mkdtempSync(join(tmpdir(), 'onejob-azure-'));
  console.log(greeting(azure, name, stateDir));
  azure.on((event) => {
    const line = told(event);
    if (line !== null) console.log(line);
  });
  const jobs = Number(values.jobs ?? 0);
  if (jobs > 0) {
    void azure
      .next('agentAdded', (event) => event.pool === pool)
      .then(() => {
        for (let i = 1; i <= jobs; i++) azure.queue(pool, { name: `Job ${i}`, script: `echo "job ${i} in $(pwd)"` });
      });
  }
  await conversation((line) => obey(azure, pool, line));
  // Whoever leads it still needs it to end its agents.
  if (existsSync(join(stateDir, 'onejob.sock'))) console.log(`A onejob is still up; remove ${stateDir} once it is down.`);
  else rmSync(stateDir, { recursive: true, force: true });
}

function greeting(azure: AzureDevOps, pool: string, stateDir: string): string {
  return `A stand-in for Azure DevOps. It knows one pool, and forgets everything when it ends.

  URL    ${azure.url}
  pool   ${pool}
  PAT    ${azure.pat}

Images with an agent for it, made once:
  npx node test/support/azure-images.ts
Agents, in another terminal; the first line also before "bin/onejob status" and the like in a third one:
  export ONEJOB_STATE_DIR=${stateDir}
  AZP_TOKEN=${azure.pat} \\
    bin/onejob azure - ${azure.url} ${pool} -n 2 -d onejob-test/azure-agent:1
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: agents, requests, cancel, fault, log, help, quit.
`;
}
