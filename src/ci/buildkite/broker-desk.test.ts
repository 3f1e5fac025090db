import { describe, expect, it } from 'vitest';
import { handClock } from '../../core/testing.ts';
import type { BrokerAgent, Offer } from './broker/protocol.ts';
import { keptLog } from './broker/testing.ts';
import { type BrokerDesk, createBrokerDesk, type DeskListener } from './broker-desk.ts';
import { away, type FakeBroker, fakeBroker, heldAgent } from './testing-broker.ts';

const never = new AbortController().signal;
const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
const bk = { name: 'bk', endpoint: 'https://agent.example/v3', token: 'token' };
const offerOf = (slot: string, more: Partial<Offer> = {}): Offer => ({
  ...{ slot, pool: 'ci', service: 'bk', name: slot, metaData: ['queue=default'], priority: 0, open: true },
  ...more,
});

interface Heard {
  readonly listener: DeskListener;
  readonly all: (readonly string[])[];
  readonly agents: BrokerAgent[];
  /** The last that was said of the broker's absence. */
  away: string | null | undefined;
  readonly health: string[];
}

function hearing(): Heard {
  const heard: Heard = {
    ...{ all: [], agents: [], away: undefined, health: [] },
    listener: {
      all: (agents) => heard.all.push(agents.map(({ id }) => id)),
      agent: (agent) => heard.agents.push(agent),
      health: ({ service, kind }) => heard.health.push(`${service} ${kind}`),
      away(why) {
        heard.away = why;
      },
    },
  };
  return heard;
}

interface Bench {
  readonly broker: FakeBroker;
  readonly desk: BrokerDesk;
  readonly log: ReturnType<typeof keptLog>;
  /** Lets time pass in small steps, and everything happen in it. */
  pass(ms: number): Promise<void>;
}

function bench({ up = true } = {}): Bench {
  const broker = fakeBroker();
  const clock = handClock();
  const log = keptLog();
  if (up) broker.up();
  const desk = createBrokerDesk({ calls: broker.calls, start: broker.start, clock, log });
  return {
    ...{ broker, desk, log },
    async pass(ms) {
      for (let gone = 0; gone < ms; gone += 50) {
        await settled();
        clock.advance(50);
      }
      await settled();
    },
  };
}

describe('a broker that is there', () => {
  it('is used, and no other is started', async () => {
    const { broker, desk, pass } = bench();
    const heard = hearing();
    broker.put(heldAgent('a1'));
    desk.listen('bk', heard.listener);
    await pass(1_000);
    expect({ started: broker.started, all: heard.all, away: heard.away, port: desk.port }).toEqual({
      ...{ started: 0, all: [['a1']], away: null, port: 7070 },
    });
    await desk.close(true);
  });

  it('tells each service of its own agents and health', async () => {
    const { broker, desk, pass } = bench();
    const [one, two] = [hearing(), hearing()];
    broker.put(heldAgent('a1'));
    broker.put(heldAgent('b1', { service: 'other' }));
    broker.up({ services: [{ service: 'other', kind: 'refused', why: 'no' }] });
    desk.listen('bk', one.listener);
    desk.listen('other', two.listener);
    await pass(100);
    broker.put(heldAgent('a2'));
    broker.put(heldAgent('c1', { service: 'gone from config' }));
    broker.health({ service: 'bk', kind: 'ok', why: null });
    expect([one.all, one.agents.map(({ id }) => id), one.health]).toEqual([[['a1']], ['a2'], ['bk ok']]);
    expect([two.all, two.agents, two.health]).toEqual([[['b1']], [], ['other refused']]);
    await desk.close(true);
  });
});

describe('offers', () => {
  it('are sent whole first, and then what has changed, in order and one request at a time', async () => {
    const { broker, desk, pass } = bench();
    desk.serve(bk);
    desk.offer(offerOf('ci/1'));
    desk.offer(offerOf('ci/2'));
    desk.listen('bk', hearing().listener);
    await pass(100);
    expect(broker.offers).toEqual([{ services: [bk], offers: [offerOf('ci/1'), offerOf('ci/2')], complete: true }]);
    let inFlight = 0;
    let most = 0;
    broker.instead = async () => {
      inFlight += 1;
      most = Math.max(most, inFlight);
      await settled();
      inFlight -= 1;
      return {};
    };
    for (const open of [false, true, false]) {
      desk.offer(offerOf('ci/1', { open }));
      await Promise.resolve();
      await Promise.resolve();
    }
    await pass(100);
    expect(most).toBe(1);
    expect(broker.posted('/v1/offers').at(-1)).toEqual({ offers: [offerOf('ci/1', { open: false })], complete: false });
    await desk.close(true);
  });

  it('that are made in one step go in one request', async () => {
    const { broker, desk, pass } = bench();
    desk.listen('bk', hearing().listener);
    await pass(100);
    const before = broker.offers.length;
    for (let n = 1; n <= 18; n++) desk.offer(offerOf(`ci/${n}`));
    await pass(100);
    expect(broker.offers.slice(before).map(({ offers }) => offers.length)).toEqual([18]);
    await desk.close(true);
  });

  it('that are withdrawn are left out of a whole', async () => {
    const { broker, desk, pass } = bench();
    desk.offer(offerOf('ci/1'));
    desk.offer(offerOf('ci/2'));
    desk.listen('bk', hearing().listener);
    await pass(100);
    desk.withdraw('ci/2');
    await pass(100);
    expect(broker.offers.at(-1)).toMatchObject({ offers: [offerOf('ci/1')], complete: true });
    await desk.close(true);
  });

  it('are all sent again to a broker that came back, with the services', async () => {
    const { broker, desk, pass } = bench();
    desk.serve(bk);
    desk.offer(offerOf('ci/1'));
    desk.listen('bk', hearing().listener);
    await pass(100);
    broker.down();
    desk.offer(offerOf('ci/1', { open: false }));
    await pass(100);
    broker.up();
    await pass(3_000);
    expect(broker.offers.at(-1)).toEqual({ services: [bk], offers: [offerOf('ci/1', { open: false })], complete: true });
    await desk.close(true);
  });

  it('that a broker did not take are sent again, whole', async () => {
    const { broker, desk, log, pass } = bench();
    desk.listen('bk', hearing().listener);
    await pass(100);
    broker.instead = async () => Promise.reject(away('does not answer within 10 s'));
    desk.offer(offerOf('ci/1'));
    await pass(500);
    broker.instead = null;
    await pass(2_000);
    expect(broker.offers.at(-1)).toMatchObject({ offers: [offerOf('ci/1')], complete: true });
    expect(log.lines).toContainEqual(expect.objectContaining({ event: 'broker did not take offers' }));
    await desk.close(true);
  });

  it('are not sent once more when a service is told that nothing has changed', async () => {
    const { broker, desk, pass } = bench();
    desk.serve(bk);
    desk.listen('bk', hearing().listener);
    await pass(100);
    const before = broker.offers.length;
    desk.serve({ ...bk });
    await pass(100);
    expect(broker.offers.length).toBe(before);
    desk.serve({ ...bk, token: 'another' });
    await pass(100);
    expect(broker.offers.at(-1)?.services).toEqual([{ ...bk, token: 'another' }]);
    await desk.close(true);
  });
});

describe('a broker that is not there', () => {
  it('is started once, and waited for', async () => {
    const { broker, desk, pass } = bench({ up: false });
    const heard = hearing();
    desk.listen('bk', heard.listener);
    await pass(3_000);
    expect([broker.started, heard.away]).toEqual([1, 'the broker is being started']);
    broker.up();
    await pass(3_000);
    expect([broker.started, heard.away, heard.all]).toEqual([1, null, [[]]]);
    await desk.close(true);
  });

  it('is started again when nothing comes of it, and people are told how it ended', async () => {
    const { broker, desk, pass } = bench({ up: false });
    const heard = hearing();
    desk.listen('bk', heard.listener);
    await pass(1_000);
    broker.exit('ended with exit code 3');
    await pass(1_000);
    expect(heard.away).toContain('ended with exit code 3');
    await pass(10_000);
    expect(broker.started).toBeGreaterThan(1);
    expect(broker.started).toBeLessThan(5);
    await desk.close(true);
  });

  it('that was killed is followed by another at once, which says everything again', async () => {
    const { broker, desk, pass } = bench();
    const heard = hearing();
    broker.put(heldAgent('a1'));
    desk.listen('bk', heard.listener);
    await pass(100);
    broker.down();
    await pass(50);
    expect([heard.away, desk.port, broker.started]).toEqual(['the broker has ended, and is being started again', null, 1]);
    broker.up();
    await pass(1_000);
    expect([heard.away, heard.all]).toEqual([null, [['a1'], ['a1']]]);
    await desk.close(true);
  });

  it('of another version is left alone, and its reason shown, until it has ended', async () => {
    const { broker, desk, pass } = bench();
    const heard = hearing();
    broker.up({ protocol: 99, version: '9.9.9' });
    desk.listen('bk', heard.listener);
    await pass(20_000);
    expect(heard.away).toMatch(/^A broker of onejob 9\.9\.9 is still at work, .* ends with its last job/);
    expect(broker.posted('/v1/leave').length).toBeGreaterThan(0);
    expect([broker.started, desk.port, heard.all]).toEqual([0, null, []]);
    broker.down();
    await pass(3_000);
    expect(broker.started).toBe(1);
    broker.up();
    await pass(3_000);
    expect([heard.away, desk.port]).toEqual([null, 7070]);
    await desk.close(true);
  });
});

describe('requests', () => {
  it('fail while there is no broker, and say so', async () => {
    const { desk } = bench({ up: false });
    await expect(desk.hand('a1', 'agent', { trusted: true, secrets: [] }, never)).rejects.toMatchObject({
      code: 'E_BROKER',
      retry: true,
    });
  });

  it('name the agent, whatever is in its id', async () => {
    const { broker, desk } = bench();
    await desk.refuse('a/b?c', { reason: 'no', signalReason: 'agent_refused' }, never);
    expect(broker.posts[0]?.path).toBe('/v1/agents/a%2Fb%3Fc/refuse');
  });

  it('carry what they are for', async () => {
    const { broker, desk } = bench();
    broker.put(heldAgent('a1', { env: {} }));
    const secrets = [{ name: 'A', value: 'b' }];
    expect(await desk.hand('a1', 'agent', { trusted: true, secrets }, never)).toEqual({ token: 'once-agent', job: 'job-a1' });
    expect(await desk.door('172.18.0.1', never)).toBe(7070);
    await desk.end('a1', { reason: 'gone', signalReason: 'agent_stop' }, never);
    expect(broker.posts.map(({ body }) => body)).toEqual([
      { agent: 'agent', trusted: true, secrets },
      { address: '172.18.0.1' },
      { reason: 'gone', signalReason: 'agent_stop' },
    ]);
  });
});

describe('the end of the manager', () => {
  it('leaves the broker as it is where agents are to go on', async () => {
    const { broker, desk, pass } = bench();
    desk.listen('bk', hearing().listener);
    await pass(100);
    await desk.close(true);
    expect([broker.posted('/v1/leave'), broker.started]).toEqual([[], 0]);
  });

  it('tells the broker to leave else, waits for its end, and starts no other', async () => {
    const { broker, desk, pass } = bench({ up: false });
    const heard = hearing();
    desk.listen('bk', heard.listener);
    await pass(200);
    broker.up();
    await pass(3_000);
    const closed = desk.close(false);
    await pass(100);
    expect(broker.posted('/v1/leave')).toHaveLength(1);
    // The stream ends before the process does.
    broker.down();
    await pass(3_000);
    expect(broker.started).toBe(1);
    broker.exit('ended with exit code 0');
    await closed;
    expect(broker.started).toBe(1);
  });

  it('waits no longer than it must for a broker that does not end', async () => {
    const { broker, desk, pass } = bench({ up: false });
    desk.listen('bk', hearing().listener);
    await pass(200);
    broker.up();
    await pass(3_000);
    const closed = desk.close(false);
    await pass(5_100);
    await closed;
    expect(broker.posted('/v1/leave')).toHaveLength(1);
  });

  it('is not the manager for which a broker stays that it has told to leave, should their stream break', async () => {
    const { broker, desk, pass } = bench({ up: false });
    desk.listen('bk', hearing().listener);
    await pass(200);
    broker.up();
    await pass(3_000);
    const closed = desk.close(false);
    await pass(100);
    const told = broker.offers.length;
    broker.down();
    broker.up();
    await pass(3_000);
    expect(broker.offers).toHaveLength(told);
    broker.exit('ended with exit code 0');
    await closed;
  });

  it('takes a broker along that was only being started', async () => {
    const { broker, desk, pass } = bench({ up: false });
    desk.listen('bk', hearing().listener);
    await pass(200);
    expect(broker.started).toBe(1);
    const closed = desk.close(false);
    await pass(300);
    broker.up();
    await pass(1_000);
    expect(broker.posted('/v1/leave')).toHaveLength(1);
    broker.down();
    broker.exit('ended with exit code 0');
    await pass(1_000);
    await closed;
    expect(broker.started).toBe(1);
  });

  it('is done twice as once, and at once where there never was a broker', async () => {
    const { broker, desk } = bench();
    await desk.close(false);
    await desk.close(false);
    expect([broker.posts, broker.started]).toEqual([[], 0]);
  });
});

it('starts no broker beside one that is there, though what it says cannot be taken in', async () => {
  const { broker, desk, log, pass } = bench();
  desk.listen('bk', {
    ...hearing().listener,
    all() {
      throw new Error('a bug');
    },
  });
  await pass(30_000);
  expect(broker.started).toBe(0);
  expect(JSON.stringify(log)).toContain('a bug');
  await desk.close(true);
});
