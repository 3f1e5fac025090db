/**
 * People who use the own queue: they hand jobs in, again when nobody answered, cancel some, and remember what they were told.
 * What a job did is known to the Engine; what the queue says of it must agree with that, once and for good.
 */

import { OnejobError } from '../../src/base/errors.ts';
import type { JobRequest } from '../../src/contract/job.ts';
import type { JobView } from '../../src/contract/schema.ts';
import { isDiskFull } from './builtins.ts';
import { requestOf, type SimHost } from './host.ts';
import type { Act, Seen } from './runtime.ts';
import type { Happening, Outside } from './scenario.ts';

interface Wanted {
  readonly act: Act;
  readonly request: JobRequest;
  isAccepted: boolean;
  acceptedAt: number;
  /** When its queue gave it to a slot; null while it waits. */
  takenAt: number | null;
  /** When it was given back last. */
  backAt: number;
  isCancelled: boolean;
  /** What was so when the wish to cancel it was accepted: the moment, what `away` was, and whose sandbox was to run it. */
  cancelled: { readonly at: number; readonly away: number; readonly agent: string | null } | null;
  /** It was there when everything was told to end. */
  mayBeStopped: boolean;
  result: JobView['result'];
}

/** ms in which a slot may have chosen already. */
const settling = 60_000;
/** In the environment of every job, and nowhere else. */
export const canary = 'canary-of-a-job';
/** ms until somebody who was not answered tries again. */
const again = 1_000;
/** ms before its time limit in which a job may end and count as late all the same: the event of its end was lost. */
const unseen = 5_000;
/** ms by which a time limit may be late. */
const lateness = 15_000;
/**
 * ms in which a job that was cancelled has ended when somebody was there to end it: with the longest grace of these scenarios, and
 * the time for which the output of a sandbox is waited for that was being made when a manager was killed.
 */
const cancelling = 30_000 + 60_000 + lateness;

export function ownQueueUsers(host: SimHost, random: () => number): Outside {
  const { engine, time } = host;
  const jobs = new Map<string, Wanted>();
  /** Those without a result. */
  const open = new Set<string>();
  const begunAt = new Map<string, number>();
  /** Jobs whose script has ended by itself, so that each sandbox that there is of them says how. */
  const over = new Set<string>();
  /** Jobs whose output nobody had synced when the power went. */
  const cutOff = new Set<string>();
  /** The commits with the results of jobs that nobody was told yet. */
  const endedIn = new Map<string, number>();
  const broken: string[] = [];
  /** ms in which nobody could end a job: no manager was up, the Engine away, the disk full. */
  let away = 0;
  let lookedAt = time.now;
  /** What of it there was when a job began. */
  const awayBefore = new Map<string, number>();
  /** When a manager came up last, and what `away` was then. */
  let [upAt, awayAtUp] = [0, 0];
  let checking = 0;
  let done = 0;
  let cancelled = 0;
  let timedOut = 0;
  let lost = 0;
  let passed = 0;
  let several = 0;

  const mayEnd = (id: string, wanted: Wanted): boolean => {
    if (wanted.isCancelled || wanted.mayBeStopped || engine.lost.has(id)) return true;
    const { timeout } = wanted.request;
    return timeout !== null && time.now - (begunAt.get(id) ?? time.now) >= timeout - 1_000;
  };
  const disturbed = (how: string) => (sandbox: Seen) => {
    if (sandbox.job === null || sandbox.exit !== null) return;
    const wanted = jobs.get(sandbox.job);
    if (wanted !== undefined && !mayEnd(sandbox.job, wanted)) broken.push(`S5/S6: running job ${sandbox.job} was ${how}`);
  };
  engine.watchers.add({
    signalled: disturbed('signalled'),
    removed: disturbed('removed'),
    ended({ job, exit }) {
      if (job !== null && exit?.kind === 'code' && exit.code === jobs.get(job)?.act.exit) over.add(job);
    },
    released(sandbox) {
      if (sandbox.job === null) return;
      if (/^[0-9a-f]{12}$/.test(sandbox.job) && !jobs.has(sandbox.job))
        broken.push(`S3: job ${sandbox.job} begins, and nobody handed it in`);
      const asked = jobs.get(sandbox.job)?.request.devices ?? null;
      if (asked !== null && sandbox.spec.devices.length !== asked)
        broken.push(`S1: job ${sandbox.job} begins with ${sandbox.spec.devices.length} devices, and asked for ${asked}`);
      if ((asked ?? 0) > 1) several += 1;
      const before = jobs.get(sandbox.job)?.cancelled;
      if (before != null && before.agent !== sandbox.spec.agent)
        broken.push(`S7: job ${sandbox.job} begins ${time.now - before.at} ms after it was cancelled`);
      begunAt.set(sandbox.job, time.now);
      awayBefore.set(sandbox.job, away);
    },
  });

  /**
   * None is taken before one that is more urgent, or as urgent and waited longer. One with its own image passes those that wait for
   * their pool's. While one of these waits for more devices, those behind it pass it and each other.
   */
  function checkOrder(id: string, { acceptedAt, request: { priority, image, devices } }: Wanted, pool: string): void {
    const before = new Set<string>();
    let waitsForMore = false;
    for (const other of open) {
      const one = jobs.get(other) as Wanted;
      // One that began and was lost is queued again, a moment after others perhaps.
      if (
        other === id ||
        one.takenAt !== null ||
        engine.begun.has(other) ||
        !one.isAccepted ||
        one.isCancelled ||
        one.result !== null ||
        (image !== null && one.request.image === null)
      )
        continue;
      if ((one.request.pool ?? pool) !== pool || one.request.priority < priority) continue;
      const until = one.request.priority > priority ? time.now : acceptedAt;
      const since = Math.max(one.acceptedAt, one.backAt);
      if (since < until && (one.request.devices ?? 1) > (devices ?? 1)) waitsForMore = true;
      if (since < until - settling) before.add(other);
    }
    if (waitsForMore) passed += 1;
    else for (const other of before) broken.push(`order: job ${id} was taken before job ${other}, whose turn it was`);
  }

  function tryToSubmit(id: string, wanted: Wanted): void {
    const { up, process } = host;
    let error: unknown = null;
    process?.run(() => {
      try {
        up?.manager.submit(wanted.request);
        wanted.isAccepted = up !== null;
        wanted.acceptedAt = time.now;
      } catch (thrown) {
        error = thrown;
      }
    });
    if (wanted.isAccepted) return;
    // Anyone who was not answered does not know whether the job was taken, and asks with the same id.
    if (error instanceof OnejobError && !error.retry) broken.push(`submit: ${error.message}`);
    else time.after(again, () => tryToSubmit(id, wanted));
  }

  function tryToCancel(id: string): void {
    const { up, process } = host;
    const wanted = jobs.get(id);
    if (wanted === undefined || wanted.result !== null) return;
    let isTold = false;
    if (up !== null && process !== null)
      process.run(() => {
        try {
          const agent = up.services.own.job(id)?.agent ?? null;
          up.services.own.cancel(id);
          isTold = true;
          wanted.cancelled ??= { at: time.now, away, agent };
        } catch {}
      });
    if (!isTold) time.after(again, () => tryToCancel(id));
  }

  function see(job: JobView): void {
    const wanted = jobs.get(job.id);
    if (wanted === undefined) return;
    const wasTaken = wanted.takenAt !== null;
    noteTaken(job, wanted);
    const commit = endedIn.get(job.id);
    if (job.state === 'done' && commit !== undefined && !host.isOnDisk(commit))
      broken.push(`S12: the end of job ${job.id} was told before it was on disk`);
    if (!wasTaken && wanted.takenAt !== null && wanted.isAccepted && !wanted.isCancelled) checkOrder(job.id, wanted, job.pool);
    note(job, wanted);
  }

  function noteTaken(job: JobView, wanted: Wanted): void {
    // A job may come back in the very step that takes the next one.
    if (job.state === 'queued' && wanted.takenAt !== null) wanted.backAt = time.now;
    wanted.takenAt = job.state === 'queued' ? null : (wanted.takenAt ?? time.now);
  }

  function note(job: JobView, wanted: Wanted): void {
    if (job.state !== 'done' || job.result === null) return;
    if (wanted.result !== null) {
      if (JSON.stringify(wanted.result) !== JSON.stringify(job.result))
        broken.push(`S7: job ${job.id} ended as ${JSON.stringify(wanted.result)}, and later as ${JSON.stringify(job.result)}`);
      return;
    }
    wanted.result = job.result;
    open.delete(job.id);
    endedIn.delete(job.id);
    done += 1;
    host.tell(`job ${job.id} is done: ${JSON.stringify(job.result)}`);
    judge(job.id, wanted, job.result);
  }

  function judge(id: string, wanted: Wanted, result: NonNullable<JobView['result']>): void {
    const begun = engine.begun.get(id) ?? 0;
    const { act, request } = wanted;
    if (begun > 1 + (engine.lost.has(id) ? request.retries : 0)) broken.push(`S3: job ${id} began ${begun} times`);
    const said = JSON.stringify(result);
    switch (result.kind) {
      case 'code':
        if (begun === 0) broken.push(`S7: job ${id} has result ${said} and never began`);
        else if (result.code !== act.exit && !(mayEnd(id, wanted) && (result.code === 143 || result.code === 137)))
          broken.push(`S7: job ${id} ended with ${act.exit}, and its result is ${said}`);
        else if (act.says !== undefined && result.code === act.exit && !cutOff.has(id))
          void checkLog(id, `${act.says}${act.says}`, act.says.length * (begun - 1));
        break;
      case 'cancelled':
        cancelled += 1;
        if (!mayEnd(id, wanted)) broken.push(`S7: job ${id} counts as cancelled, and nobody did that`);
        break;
      case 'timeout':
        timedOut += 1;
        if (request.timeout === null || act.ms < request.timeout - unseen)
          broken.push(`S7: job ${id} ran out of a time that it had`);
        break;
      case 'lost':
        lost += 1;
        if (!mayEnd(id, wanted)) broken.push(`S6: job ${id} counts as lost, and nothing ended it: ${said}`);
        break;
      case 'oom':
        if (!engine.lost.has(id)) broken.push(`S6: job ${id} had memory enough, and its result is ${said}`);
        break;
      default:
        broken.push(`S7: job ${id} ended as ${said}`);
    }
    const since = wanted.cancelled;
    if (since !== null && time.now - Math.max(since.at, upAt) - (away - Math.max(since.away, awayAtUp)) > cancelling)
      broken.push(`S7: job ${id} ended ${Math.round(time.now - since.at)} ms after it was cancelled: ${said}`);
    const begin = begunAt.get(id);
    if (request.timeout === null || begin === undefined || wanted.mayBeStopped) return;
    const took = time.now - begin - (away - (awayBefore.get(id) ?? 0));
    if (took > request.timeout + lateness && act.ms > request.timeout + lateness)
      broken.push(`S7: job ${id} had ${request.timeout} ms, and took ${Math.round(took)} in which somebody could have ended it`);
  }

  /** What it printed is kept, whole and once; before that, up to `earlier` bytes of tries that were lost. */
  async function checkLog(id: string, expected: string, earlier: number): Promise<void> {
    const { up, process } = host;
    if (up === null || process === null) return;
    checking += 1;
    try {
      const pieces: Uint8Array[] = [];
      for await (const { stream, bytes } of up.manager.logs({ job: id }, { follow: false }, new AbortController().signal))
        if (stream !== 'note') pieces.push(bytes);
      const kept = Buffer.concat(pieces).toString();
      const isWhole = kept.endsWith(expected) && kept.length <= expected.length + earlier;
      if (!isWhole && !process.isDead) broken.push(`S7: the log of job ${id} has ${JSON.stringify(kept)}`);
    } catch (error) {
      if (!process.isDead) broken.push(`the log of job ${id} cannot be read: ${(error as Error).message}`);
    } finally {
      checking -= 1;
    }
  }

  /** An id that no job has: `random` draws 32 bits, and of the jobs of a thousand days two have the same. */
  function unused(number: number): string {
    const id = number.toString(16).padStart(12, '0');
    return jobs.has(id) ? unused(number + 1) : id;
  }

  host.onEnding.add(() => {
    for (const id of open) (jobs.get(id) as Wanted).mayBeStopped = true;
  });
  // Nobody can know whether the script of a job that an agent had was handed over. A manager that was killed may have given it one.
  // How one ended that was over is known: its sandbox is removed only once that is on disk.
  host.onCut.add(() => {
    endedIn.clear();
    for (const id of open)
      if (host.up === null || (jobs.get(id) as Wanted).takenAt !== null) {
        if (!over.has(id)) engine.lost.add(id);
        cutOff.add(id);
      }
  });
  host.onCommit.add((store) => {
    for (const id of open)
      if (begunAt.has(id) && !endedIn.has(id) && store.jobs.get(id)?.progress.result != null) endedIn.set(id, host.commit);
  });
  host.onUp.add(() => {
    const { up, process } = host;
    [upAt, awayAtUp] = [time.now, away];
    if (up === null || process === null) return;
    up.services.own.onChange(see);
    // What became of them since somebody was told last, of all of them before anybody judges.
    const known = [...open].map((id) => [id, jobs.get(id) as Wanted, up.services.own.job(id)] as const);
    for (const [, wanted, job] of known) if (job !== null) noteTaken(job, wanted);
    for (const [id, wanted, job] of known)
      if (job !== null) note(job, wanted);
      else if (wanted.isAccepted) broken.push(`S7: job ${id} was accepted, and is not known any more`);
  });

  return {
    name: 'own queue',
    takes: {
      /** `cancelAfter`: ms until the user cancels it; `kill`: the manager is killed at that effect of it. */
      submit({ ms, exit = 0, says, term, pool = null, cancelAfter = null, kill = null, ...request }: Happening) {
        const id = unused(Math.floor(random() * 2 ** 48));
        const lines = typeof says === 'number' ? `${`line of ${id}\n`.repeat(says)}` : undefined;
        const act: Act = {
          ms: Number(ms),
          exit: Number(exit),
          ...(lines !== undefined && { says: lines }),
          ...(term !== undefined && { term: term as number | null }),
        };
        const { at: _, what: __, ...more } = request;
        const wanted = { act, request: requestOf(act, { pool: pool as string | null, ...more, id, env: { TOKEN: canary } }) };
        const whole = {
          ...wanted,
          isAccepted: false,
          acceptedAt: 0,
          takenAt: null,
          backAt: 0,
          isCancelled: false,
          cancelled: null,
          mayBeStopped: false,
          result: null,
        };
        jobs.set(id, whole);
        open.add(id);
        tryToSubmit(id, whole);
        if (cancelAfter !== null)
          time.after(Number(cancelAfter), () => {
            whole.isCancelled = true;
            if (kill !== null) host.crashAfter(Number(kill));
            tryToCancel(id);
          });
      },
      /** Somebody cancels one of the jobs that have no result yet. */
      cancel({ pick }: Happening) {
        const ids = [...open];
        const id = ids[Math.floor((Number(pick ?? 0) / 1_000) * ids.length) % Math.max(1, ids.length)];
        const wanted = id === undefined ? undefined : jobs.get(id);
        if (id === undefined || wanted === undefined) return;
        wanted.isCancelled = true;
        tryToCancel(id);
      },
    },
    broken() {
      if (host.up === null || !engine.isUp || isDiskFull()) away += time.now - lookedAt;
      lookedAt = time.now;
      return broken.splice(0);
    },
    unsettled() {
      const [first] = open;
      // Asking the manager would sync what it has not synced yet.
      if (first !== undefined)
        return `job ${first} has no result, and ${open.size - 1} others: ${host.store?.jobs.get(first)?.progress.state}`;
      return checking > 0 ? 'logs are read' : null;
    },
    census() {
      const found: string[] = [];
      for (const [id, { result }] of jobs) if (result === null) found.push(`S7: job ${id} has no result`);
      return found;
    },
    counts: () => ({ jobs: jobs.size, done, cancelled, timedOut, lost, passed, several }),
  };
}
