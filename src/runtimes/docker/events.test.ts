/** The stream of events, and what counts during an interruption, with an Engine that the test controls. */
import type { ServerResponse } from 'node:http';
import { expect, test } from 'vitest';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { followEvents } from './events.ts';
import { Exits } from './exits.ts';

const never = new AbortController().signal;

/** `made`: the start of the Engine that made it. */
const ended = (id: string, code: number, made: string) => ({
  Id: id,
  Name: `/${id}`,
  Image: 'sha256:i',
  State: { Status: 'exited', ExitCode: code, Running: false, OOMKilled: false, Pid: 0 },
  Config: { User: '', Labels: { 'onejob.engine': made } },
});

/** Answers all but `/events` and what `held` names, whose replies wait in `replies`. */
async function over(name: string, liveRestore: boolean) {
  const it = { bridge: 'first', held: new Set<string>() };
  const replies = new Map<string, ServerResponse[]>();
  const arrivals = new Map<string, (() => void)[]>();
  const fake = fakeEngine(name, (path, _, reply) => {
    const answers: Readonly<Record<string, string>> = {
      '/version': '{}',
      '/info': JSON.stringify({ LiveRestoreEnabled: liveRestore }),
      '/networks/bridge': JSON.stringify({ Id: it.bridge, Name: 'bridge' }),
    };
    if (answers[path] !== undefined && !it.held.has(path)) {
      reply.end(answers[path]);
      return;
    }
    replies.set(path, [...(replies.get(path) ?? []), reply]);
    for (const arrived of arrivals.get(path) ?? []) arrived();
  });
  const engine = await fake.connect();
  const exits = new Exits(engine, null);
  const stop = new AbortController();
  const events = followEvents(engine, exits, 'o', stop.signal);
  /** The nth call of a path, which waits for its answer. */
  const reply = async (path: string, n: number): Promise<ServerResponse> => {
    for (;;) {
      const one = replies.get(path)?.[n];
      if (one !== undefined) return one;
      await new Promise<void>((resolve) => arrivals.set(path, [...(arrivals.get(path) ?? []), resolve]));
    }
  };
  const stand = async (n: number): Promise<ServerResponse> => {
    const stream = await reply('/events', n);
    stream.writeHead(200).flushHeaders();
    return stream;
  };
  return {
    it,
    exits,
    stop,
    events,
    reply,
    stand,
    async [Symbol.asyncDispose]() {
      stop.abort();
      await fake.stop();
    },
  };
}

/** Up to the next attempt after the stream broke, which gets no answer. */
async function interrupted(here: Awaited<ReturnType<typeof over>>, before: () => Promise<void>): Promise<void> {
  const connected = here.events.next();
  const stream = await here.stand(0);
  expect((await connected).value).toEqual({ kind: 'connected' });
  await before();
  const lost = here.events.next();
  stream.destroy();
  expect((await lost).value).toMatchObject({ kind: 'lost' });
  void here.events.next();
  await here.reply('/events', 1);
}

test('a container that an Engine ended before its return is lost, even if asked before its events are followed again', async () => {
  await using here = await over('events-start', false);
  await interrupted(here, async () => {
    expect(await here.exits.atDeath('c0', 0, 'first', never)).toEqual({ kind: 'code', code: 0 });
  });
  const lost = { kind: 'lost', reason: expect.stringContaining('the Engine was stopped') };
  here.it.bridge = 'second';
  expect(await here.exits.afterwards([ended('c1', 0, 'first')], never)).toEqual(new Map([['c1', lost]]));
  // It may crash again before that.
  here.it.bridge = 'third';
  expect(await here.exits.afterwards([ended('c2', 0, 'second')], never)).toEqual(new Map([['c2', lost]]));
  expect(await here.exits.afterwards([ended('c3', 0, 'third')], never)).toEqual(new Map([['c3', { kind: 'code', code: 0 }]]));
});

test('an exit that an Engine with live-restore did not record does not count while its events are not followed', async () => {
  await using here = await over('events-unrecorded', true);
  await interrupted(here, async () => {});
  const lost = { kind: 'lost', reason: expect.stringContaining('did not record') };
  expect(await here.exits.afterwards([ended('c1', 255, 'first')], never)).toEqual(new Map([['c1', lost]]));
});

test('a stream that breaks while the Engine is being asked is followed again, and ends on request', async () => {
  await using here = await over('events-break', true);
  here.it.held.add('/info');
  const first = here.events.next();
  const stream = await here.stand(0);
  const info = await here.reply('/info', 0);
  const gone = new Promise((resolve) => stream.once('close', resolve));
  stream.destroy();
  await gone;
  info.end(JSON.stringify({ LiveRestoreEnabled: true }));
  here.it.held.clear();
  // Whichever of the two is seen first: that the stream broke, or the answer.
  await first;
  const again = here.stand(1);
  let next = here.events.next();
  while ((await next).value?.kind !== 'connected') next = here.events.next();
  await again;
  const last = here.events.next();
  here.stop.abort();
  expect(await last).toEqual({ done: true, value: undefined });
});
