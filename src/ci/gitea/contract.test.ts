import { settled } from '../../../test/kit/azure.ts';
import { type EarlySubject, earlyBoundContract } from '../../../test/kit/ci-contract.ts';
import { giteaService } from '../../../test/kit/gitea-service.ts';

earlyBoundContract('Gitea, in memory', async (): Promise<EarlySubject> => {
  const { gitea, service, live, runnerOf, close } = giteaService();
  gitea.add('somebody', ['ci']).isOnline = true;
  return {
    service,
    pool: 'ci',
    live,
    inside: '',
    enqueue: async () => `forge-${gitea.queue(['ci']).id}`,
    commit: (write) => write(),
    async start(script) {
      const runner = runnerOf(script);
      gitea.fetchTask(runner);
      return {
        async work() {
          const { id } = gitea.queue(['ci']);
          gitea.fetchTask(runner);
          return `forge-${id}`;
        },
        async finish() {
          const job = gitea.jobs.find((one) => one.runner === runner.id);
          if (job !== undefined) gitea.end(job, 'success');
        },
      };
    },
    listed: () => gitea.runners.map(({ name }) => name),
    other(name, isOnline) {
      gitea.add(name, ['ci']).isOnline = isOnline;
    },
    loseAnswer: () => gitea.loseAnswer(),
    async goAway() {
      const back = gitea.goAway();
      // What was answered before is heard.
      await settled();
      return async () => back();
    },
    close: async () => close(),
  };
});
