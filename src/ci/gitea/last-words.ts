/** Ends tasks whose runner cannot, with its own key: the last line of the log says why. */
import type { Clock } from '../../core/clock.ts';
import type { GiteaClient, RunnerKey } from './client.ts';

/** false: it is over, or not this runner's. @throws OnejobError E_CI_* */
export async function endTask(
  { client, clock }: { readonly client: GiteaClient; readonly clock: Clock },
  { key, task, words }: { readonly key: RunnerKey; readonly task: number; readonly words: string },
  signal: AbortSignal,
): Promise<boolean> {
  // An empty write shows whose task it is, and how long its log is.
  const from = await client.log(key, task, { from: 0, rows: [], isLast: false }, signal);
  if (from === null) return false;
  const rows = [
    { time: new Date(clock.wall()).toISOString(), content: `${words.startsWith('onejob ') ? '' : 'onejob: '}${words}` },
  ];
  await client.log(key, task, { from, rows, isLast: true }, signal);
  return client.fail(key, task, clock.wall(), signal);
}
