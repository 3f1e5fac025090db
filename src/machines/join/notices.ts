/**
 * Notices that a cloud takes a machine back, from its metadata service: spot and preemptible machines get 30 s to 2 minutes. The
 * addresses are fixed, and answer only on the machine itself.
 *
 * AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
 * GCP: https://cloud.google.com/compute/docs/instances/spot#detecting_if_a_vm_was_preempted
 * Azure: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
 */
import { z } from 'zod';
import type { Clock } from '../../core/clock.ts';
import { exchange, type Outgoing } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';
import type { MachineFile } from './protocol.ts';

export interface Notices {
  /** ms from one look to the next. */
  readonly every: number;
  /** When the machine is taken back (wall clock, ms since the epoch); null: nothing is known. @throws Error if the service gives no answer */
  look(signal: AbortSignal): Promise<number | null>;
}

export interface NoticesParts {
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  /** For tests. */
  readonly base?: string;
}

/** ms: of GCP and Azure, which say no time or a time not before which it happens. */
const shortNotice = 30_000;
/** Bytes of an answer. */
const most = 256 * 1024;

const action = z.object({ action: z.string(), time: z.iso.datetime({ offset: true }) });
const events = z.object({ Events: z.array(z.object({ EventType: z.string(), EventStatus: z.string(), NotBefore: z.string() })) });

/** null: the machine is of no cloud. */
export function noticesOf(
  cloud: MachineFile['cloud'],
  { clock, fetch, base = 'http://169.254.169.254' }: NoticesParts,
): Notices | null {
  const ask = (
    path: string,
    headers: Outgoing['headers'],
    signal: AbortSignal,
    { method = 'GET' as Outgoing['method'], timeout = 5_000 } = {},
  ) => exchange({ method, url: `${base}${path}`, headers }, { clock, fetch, timeout, most }, signal);

  switch (cloud) {
    case 'none':
      return null;
    case 'aws': {
      let token: string | null = null;
      return {
        every: 5_000,
        async look(signal) {
          if (token === null) {
            const ttl = { 'X-aws-ec2-metadata-token-ttl-seconds': '21600' };
            const made = await ask('/latest/api/token', ttl, signal, { method: 'PUT' });
            if (made.status !== 200) throw new Error(`the metadata service gave no token (${made.status})`);
            token = made.text.trim();
          }
          const { status, text } = await ask(
            '/latest/meta-data/spot/instance-action',
            { 'X-aws-ec2-metadata-token': token },
            signal,
          );
          if (status === 401) token = null;
          const found = action.safeParse(jsonOf(text));
          return status === 200 && found.success ? Date.parse(found.data.time) : null;
        },
      };
    }
    case 'gcp':
      return {
        every: 2_000,
        async look(signal) {
          const { status, text } = await ask('/computeMetadata/v1/instance/preempted', { 'Metadata-Flavor': 'Google' }, signal);
          return status === 200 && text.trim() === 'TRUE' ? clock.wall() + shortNotice : null;
        },
      };
    case 'azure':
      return {
        every: 1_000,
        async look(signal) {
          // The first call starts the service, which may take two minutes.
          const path = '/metadata/scheduledevents?api-version=2020-07-01';
          const { status, text } = await ask(path, { Metadata: 'true' }, signal, { timeout: 150_000 });
          const found = events.safeParse(jsonOf(text));
          if (status !== 200 || !found.success) return null;
          const preempt = found.data.Events.find(({ EventType }) => EventType === 'Preempt');
          if (preempt === undefined) return null;
          const at = Date.parse(preempt.NotBefore);
          return Number.isNaN(at) ? clock.wall() : at;
        },
      };
  }
}
