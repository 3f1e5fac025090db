/** `npm run standin:azure`: the stand-in by hand, to see the whole flow without an account. */
import { networkInterfaces } from 'node:os';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
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
  console.log(greeting(azure, name));
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
  await conversation(azure, pool);
}

/** Until `quit`, which waits for what was typed before, or a signal; the end of the input changes nothing, so that it can run in the background. */
function conversation(azure: AzureDevOps, pool: number): Promise<unknown> {
  return new Promise<unknown>((resolve) => {
    const lines = createInterface({ input: process.stdin });
    let before: Promise<unknown> = Promise.resolve();
    const stay = setInterval(() => undefined, 60_000);
    const end = (): void => {
      clearInterval(stay);
      lines.close();
      process.stdin.destroy();
      // An "up" that is under way would open the door again behind whoever closes it.
      void before.then(resolve);
    };
    process.once('SIGINT', end);
    process.once('SIGTERM', end);
    lines.on('line', (line) => {
      if (line.trim() === 'quit') return end();
      // One after the other: "down" and "up" take a moment.
      before = before
        .then(() => obey(azure, pool, line))
        .then(
          (answer) => answer !== '' && console.log(answer),
          (error: unknown) => console.log(error instanceof Error ? error.message : error),
        );
    });
  });
}

/** The address of a bridge for containers, else the first that is reachable from one. */
function ownAddress(): string {
  const all = Object.entries(networkInterfaces()).flatMap(([name, addresses]) =>
    (addresses ?? []).map((each) => ({ name, ...each })),
  );
  const outward = all.filter((each) => each.family === 'IPv4' && !each.internal);
  return (outward.find(({ name }) => name.startsWith('docker')) ?? outward[0])?.address ?? '127.0.0.1';
}

function greeting(azure: AzureDevOps, pool: string): string {
  return `A stand-in for Azure DevOps. It knows one pool, and forgets everything when it ends.

  URL    ${azure.url}
  pool   ${pool}
  PAT    ${azure.pat}

Images with an agent for it, made once:
  npx node test/support/azure-images.ts
Agents, in another terminal:
  AZP_TOKEN=${azure.pat} \\
    bin/onejob azure - ${azure.url} ${pool} -n 2 -d onejob-test/azure-agent:1
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: agents, requests, cancel, fault, log, help, quit.
`;
}
