/** The metadata services, acted out as the clouds' documents say. */
import { describe, expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { interruptionsOf } from './interruptions.ts';
import type { MachineFile } from './protocol.ts';

const never = new AbortController().signal;
const missing = () => new Response('', { status: 404 });

/** `answer`: by method and path, and the headers. */
function service(cloud: MachineFile['cloud'], answer: (call: string, headers: Headers) => Response) {
  const clock = handClock();
  const calls: string[] = [];
  const fetch = async (url: string | URL | Request, { method, headers }: RequestInit = {}) => {
    const call = `${method} ${url}`;
    calls.push(call);
    return answer(call.replace('http://169.254.169.254', ''), new Headers(headers));
  };
  const interruptions = interruptionsOf(cloud, { clock, fetch });
  return { clock, calls, look: () => interruptions?.look(never) };
}

describe('a notice', () => {
  it('of AWS comes with a time, and is asked for with a token that is renewed', async () => {
    let [token, action] = ['one', ''];
    const { look, calls } = service('aws', (call, headers) => {
      if (call === 'PUT /latest/api/token')
        return headers.get('X-aws-ec2-metadata-token-ttl-seconds') === '21600' ? new Response(token) : missing();
      if (headers.get('X-aws-ec2-metadata-token') !== token) return new Response('', { status: 401 });
      return call === 'GET /latest/meta-data/spot/instance-action' && action !== '' ? new Response(action) : missing();
    });
    expect([await look(), await look()]).toEqual([null, null]);
    expect(calls.filter((call) => call.startsWith('PUT'))).toHaveLength(1);
    [token, action] = ['two', '{"action": "terminate", "time": "2027-09-18T08:22:00Z"}'];
    expect([await look(), await look()]).toEqual([null, Date.UTC(2027, 8, 18, 8, 22)]);
  });

  it('of GCP leaves 30 s', async () => {
    let preempted = 'FALSE';
    const { look, clock } = service('gcp', (call, headers) =>
      call === 'GET /computeMetadata/v1/instance/preempted' && headers.get('Metadata-Flavor') === 'Google'
        ? new Response(preempted)
        : missing(),
    );
    expect(await look()).toBeNull();
    preempted = 'TRUE';
    expect(await look()).toBe(clock.wall() + 30_000);
  });

  it('of Azure is a Preempt event; other events of the machine are not', async () => {
    const event = (EventType: string, NotBefore: string) => ({
      EventId: 'A1',
      EventType,
      EventStatus: 'Scheduled',
      ResourceType: 'VirtualMachine',
      Resources: ['x'],
      NotBefore,
    });
    let events: object[] = [];
    const { look, clock } = service('azure', (call, headers) =>
      call === 'GET /metadata/scheduledevents?api-version=2020-07-01' && headers.get('Metadata') === 'true'
        ? Response.json({ DocumentIncarnation: 1, Events: events })
        : missing(),
    );
    expect(await look()).toBeNull();
    events = [event('Freeze', 'Mon, 19 Sep 2027 18:29:47 GMT')];
    expect(await look()).toBeNull();
    events.push(event('Preempt', 'Sun, 19 Sep 2027 18:29:47 GMT'));
    expect(await look()).toBe(Date.UTC(2027, 8, 19, 18, 29, 47));
    events = [event('Preempt', '')];
    expect(await look()).toBe(clock.wall());
  });

  it('that cannot be read counts as absent', async () => {
    for (const cloud of ['aws', 'gcp', 'azure'] as const) {
      const { look } = service(cloud, () => new Response('<html>'));
      expect(await look()).toBeNull();
    }
    expect(interruptionsOf('none', { clock: handClock(), fetch })).toBeNull();
  });
});
