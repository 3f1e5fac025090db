/** `npm run standin:azure`: the stand-in by hand, to see the whole flow without an account. */
import { playByHand, tellEvents, trialFolder } from '../kit/by-hand.ts';
import { packAgent } from './agent/pack.ts';
import { obey, told } from './console.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

const USAGE = `npm run standin:azure -- [--host ADDRESS] [--port PORT] [--pool NAME] [--jobs N]

A local stand-in for Azure DevOps with one pool. Containers must reach it, so it listens on an address
of this host that is not 127.0.0.1, if there is one; its port is 8990 unless you say otherwise.
--jobs N queues N jobs as soon as the first agent is registered.`;

await playByHand({ usage: USAGE, port: 8990, options: { pool: { type: 'string' } } }, async ({ host, port, more }, stack) => {
  const azure = stack.use(await startAzureDevOps({ host, port }));
  const name = String(more.pool ?? 'gpu');
  const pool = azure.addPool(name);
  await azure.addPackage(await packAgent());
  const { state } = stack.use(trialFolder('azure'));
  tellEvents(azure, told);
  return {
    greeting: greeting(azure, name, state),
    obey: (line) => obey(azure, pool, line),
    queueJobs: (count) =>
      void azure
        .next('agentAdded', (event) => event.pool === pool)
        .then(() => {
          for (let i = 1; i <= count; i++) azure.queue(pool, { name: `Job ${i}`, script: `echo "job ${i} in $(pwd)"` });
        }),
  };
});

function greeting(azure: AzureDevOps, pool: string, stateDir: string): string {
  return `A stand-in for Azure DevOps. It knows one pool, and forgets everything when it ends.

  URL    ${azure.url}
  pool   ${pool}
  PAT    ${azure.pat}

Images with an agent for it, made once:
  npx node test/support/azure-images.ts
Agents, in another terminal; the first line also before "bin/onejob status" and the like in a third one:
  unset ONEJOB_CONFIG ONEJOB_SOCKET
  export ONEJOB_STATE_DIR=${stateDir}
  AZP_TOKEN=${azure.pat} \\
    bin/onejob azure - ${azure.url} ${pool} -n 2 -d onejob-test/azure-agent:1
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: agents, requests, cancel, fault, log, help, quit.
`;
}
