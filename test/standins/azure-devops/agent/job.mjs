/** From a job's message to its end: the lock that is renewed, the worker, the finish (agent `JobDispatcher.cs`). */
import { setTimeout as sleep } from 'node:timers/promises';
import { openTrace, stamp } from './diag.mjs';
import { wait } from './habits.mjs';
import { work } from './worker.mjs';

const lockToken = '00000000-0000-0000-0000-000000000000';
const gone = new Set(['TaskAgentJobNotFoundException', 'TaskAgentJobTokenExpiredException', 'TaskAgentNotFoundException']);

/** Begins the job of `message`. `finished` settles when it is over, never rejects; `cancel` ends it early. */
export function startJob({ message, connection, root, settings, once, print, trace }) {
  const cancelling = new AbortController();
  const over = new AbortController();
  const { requestId, jobDisplayName: name } = message;
  const request = (body) =>
    connection.call('PATCH', 'jobrequests', { poolId: settings.poolId, requestId }, { query: { lockToken }, body });

  /** Extends the lock; gives the ms to wait before the next time: a minute, or less where the lock is short. */
  const renew = async () => {
    const { value, headers } = await request({ requestId });
    const until = Date.parse(value?.lockedUntil ?? '');
    if (Number.isNaN(until)) throw new Error('The answer to a renewal has no lockedUntil');
    const now = Date.parse(headers.date ?? '') || Date.now();
    return Math.min(60_000, Math.max(200, (until - now) / 3));
  };
  const firstRenewal = async () => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await renew();
      } catch (error) {
        trace(`Job request ${requestId} not renewed (try ${tries}): ${error.message}`);
        if (gone.has(error.typeKey) || tries === 5) return null;
        await sleep(wait(10_000));
      }
    }
  };
  const keepRenewing = async (first) => {
    for (let pause = first; !over.signal.aborted; ) {
      await sleep(pause, undefined, { signal: over.signal }).catch(() => undefined);
      if (over.signal.aborted) return;
      pause = await renew().catch((error) => {
        trace(`Job request ${requestId} not renewed: ${error.message}`);
        if (gone.has(error.typeKey)) cancelling.abort();
        return pause;
      });
    }
  };
  const run = async () => {
    const pause = await firstRenewal();
    // Somebody else has it, or nobody any more: not run, and the agent ends all the same.
    if (pause === null) return;
    print(`${stamp()}: Running job: ${name}`);
    const renewing = keepRenewing(pause);
    const workerTrace = openTrace('Worker', root);
    const parts = { message, root, settings, once, trace: workerTrace };
    let result = 'failed';
    try {
      result = await work({ ...parts, cancelled: cancelling.signal });
    } catch (error) {
      workerTrace(`The worker failed: ${error.stack}`);
      print(`${stamp()}: An error occurred: ${error.message}`);
    }
    over.abort();
    await renewing;
    if ((message.plan.version ?? 0) < 8) {
      await request({ requestId, finishTime: new Date().toISOString(), result }).catch((error) =>
        trace(`Job request ${requestId} not finished: ${error.message}`),
      );
    }
    workerTrace(`Job completed with result: ${result}`);
    print(`${stamp()}: Job ${name} completed with result: ${result[0].toUpperCase()}${result.slice(1)}`);
  };
  return {
    jobId: message.jobId,
    cancel: () => cancelling.abort(),
    finished: run().catch((error) => trace(`The job ended in an error: ${error.stack}`)),
  };
}
