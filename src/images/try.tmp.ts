import { createImageBuilder } from './builder.ts';

const environment = { host: 'unix:///var/run/docker.sock', tlsVerify: false, certPath: null, context: null, config: '/tmp' };
const b = await createImageBuilder({ environment, owner: 'tryowner', packages: '/tmp/h4/packages' });
const agent =
  process.argv[2] === 'none'
    ? null
    : { type: 'azure-pipelines', version: process.argv[4] ?? '5.278.0', from: '/tmp/h4/agent.tgz', sha256: null };
const s = new AbortController();
try {
  console.log(
    await b.get(
      {
        type: 'azure-pipelines',
        base: process.argv[2] === 'none' ? 'debian:stable-slim' : process.argv[2]!,
        packages: (process.argv[3] ?? '').split(',').filter((x) => x),
        dockerfile: null,
        pull: 'missing',
        agent: async () => agent,
      },
      (l) => console.log('-', l),
      s.signal,
    ),
  );
} catch (e) {
  console.log(e);
}
console.log(await b.list(s.signal));
if (process.env.PRUNE) console.log(await b.prune(() => false, s.signal));
b.close();
