import { patient, settled } from '../../../test/kit/azure.ts';
import { type EarlySubject, earlyBoundContract } from '../../../test/kit/ci-contract.ts';
import { githubService, inside, jitIn } from '../../../test/kit/github-service.ts';

earlyBoundContract('GitHub, in memory', async (): Promise<EarlySubject> => {
  const { github, service, client, live, close } = githubService();
  const stranger = await client.generateJitConfig(
    'orgs/acme',
    { name: 'somebody', group: 1, labels: ['ci'] },
    new AbortController().signal,
  );
  const theirs = github.connect(stranger.config);
  github.queue({ labels: ['ci'] });
  theirs.take();
  return {
    service,
    pool: 'ci',
    live,
    inside,
    enqueue: async () => `hub-${github.queue({ labels: ['ci'] }).id}`,
    commit: (write) => write(),
    async start(script) {
      const runner = github.connect(jitIn(script));
      return {
        async work() {
          github.queue({ labels: ['ci'] });
          runner.take();
          return `hub-${runner.row.id}`;
        },
        async finish() {
          runner.finish('success');
        },
      };
    },
    async other(name, isOnline) {
      const { config } = await client.generateJitConfig('orgs/acme', { name, group: 1, labels: ['ci'] }, patient);
      if (isOnline) github.connect(config);
    },
    listed: () => [...github.runners.values()].map(({ name }) => name),
    loseAnswer: () => void github.fault(/generate-jitconfig/, { how: 'lost', after: true }),
    async goAway() {
      const back = github.fault(/./, { how: 'refused' }, Number.POSITIVE_INFINITY);
      // What was answered before is heard.
      await settled();
      return async () => back();
    },
    close: async () => close(),
  };
});
