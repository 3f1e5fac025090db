/**
 * The Engine's events, in the words of the runtime axis. `connected` is sent each time the stream is established, so that the
 * caller looks at everything once; `lost` once per interruption, whatever the number of attempts.
 */
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { z } from 'zod';
import { Waiters } from '../../base/abortable.ts';
import { toFailure } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { RuntimeEvent } from '../../ports/runtime.ts';
import { jsonOf } from '../../system/json.ts';
import { endpointUrl } from '../engine/endpoint.ts';
import type { Engine } from '../engine/engine.ts';
import { labels } from './create.ts';
import { type Exits, exitCodeOf } from './exits.ts';

const hungUp = 'The Docker Engine closed the connection: it was stopped, or is restarting';
const firstPause = 100;
const longestPause = 5_000;
/** s */
const overlap = 10;

const eventLine = z.object({
  Action: z.string(),
  Actor: z.object({ ID: z.string(), Attributes: z.record(z.string(), z.string()) }),
});

/** Events of `owner`'s containers, until `signal` aborts. Reconnects by itself. */
export async function* followEvents(
  engine: Engine,
  exits: Exits,
  owner: string,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent, void> {
  let wait = firstPause;
  let isLost = false;
  while (!signal.aborted) {
    const connection = new AbortController();
    const either = AbortSignal.any([signal, connection.signal]);
    try {
      // Not filtered by kind of event, because Podman's filter uses other names than its events.
      const filters = { type: ['container'], label: [`${labels.owner}=${owner}`] };
      // The list of containers lags behind the events, so the stream begins a little earlier. Otherwise both could miss a
      // container that has just ended.
      const since = Math.floor(engine.clock.wall() / 1000) - overlap;
      const stream = await engine.events(filters, since, either);
      if (stream === null) throw new Error('the Engine sends no events');
      // A stream that breaks while the Engine is being asked reports nothing later.
      const hangUp = () => connection.abort();
      stream.on('error', hangUp).on('close', hangUp);
      await exits.refresh(either);
      isLost = false;
      wait = firstPause;
      yield { kind: 'connected' };
      yield* read(stream, exits, owner, connection.signal);
      if (!signal.aborted) throw new Error(`${hungUp} (${endpointUrl(engine.endpoint)})`);
    } catch (error) {
      if (signal.aborted) return;
      if (!isLost) yield { kind: 'lost', failure: toFailure(error).message };
      isLost = true;
    } finally {
      connection.abort();
      exits.interrupted();
      engine.interrupted();
    }
    await sleep(engine.clock, wait, signal);
    wait = Math.min(longestPause, wait * 2);
  }
}

/**
 * Reads ahead of the consumer: judging one exit can mean waiting for the connection to end, and only reading shows that.
 * `connection` aborts with the end of the stream.
 */
async function* read(stream: Readable, exits: Exits, owner: string, connection: AbortSignal): AsyncGenerator<RuntimeEvent, void> {
  const judged: Promise<RuntimeEvent | null>[] = [];
  const waiters = new Waiters();
  const lines = createInterface({ input: stream, crlfDelay: Number.POSITIVE_INFINITY });
  lines.on('line', (line) => {
    if (line.trim() !== '') judged.push(judge(line, exits, owner, connection));
    waiters.wake();
  });
  // readline passes on the stream's errors, and an unhandled one would end the process.
  lines.on('error', () => {});
  try {
    for (;;) {
      const next = judged.shift();
      if (next !== undefined) {
        const event = await next;
        if (event !== null) yield event;
      } else if (connection.aborted) return;
      else await waiters.next(connection);
    }
  } finally {
    lines.close();
    stream.destroy();
  }
}

async function judge(line: string, exits: Exits, owner: string, connection: AbortSignal): Promise<RuntimeEvent | null> {
  const parsed = eventLine.safeParse(jsonOf(line));
  if (!parsed.success) return null;
  const { ID, Attributes } = parsed.data.Actor;
  const agent = Attributes[labels.agent];
  // The Engine was asked for no others.
  if (agent === undefined || Attributes[labels.owner] !== owner) return null;
  switch (parsed.data.Action) {
    case 'die': {
      const code = exitCodeOf.parse(Attributes.exitCode);
      return { kind: 'exited', agent, exit: await exits.atDeath(ID, code, Attributes[labels.engine], connection) };
    }
    case 'destroy':
    // Podman's word for it.
    case 'remove':
      exits.forget(ID);
      return { kind: 'removed', agent };
    default:
      return null;
  }
}
