/**
 * Notices that a cloud takes a machine back, from its metadata service: spot and preemptible machines get 30 s to 2 minutes. The
 * addresses are fixed, and answer only on the machine itself.
 *
 * AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
 * GCP: https://cloud.google.com/compute/docs/instances/spot#detecting_if_a_vm_was_preempted
 * Azure: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
 */
import { z } from 'zod';
import { jsonOf } from '../../system/json.ts';
import { awsHeaders, awsToken, azureHeaders, gcpHeaders, type MetadataParts, metadataOf } from './metadata.ts';
import type { MachineFile } from './protocol.ts';

/** Where a machine learns that its cloud takes it back. */
export interface Interruptions {
  /** ms from one look to the next. */
  readonly every: number;
  /** When the machine is taken back (wall clock, ms since the epoch); null: nothing is known. @throws Error if the service gives no answer */
  look(signal: AbortSignal): Promise<number | null>;
}

/** ms: of GCP and Azure, which say no time or a time not before which it happens. */
const shortNotice = 30_000;

const action = z.object({ action: z.string(), time: z.iso.datetime({ offset: true }) });
const events = z.object({ Events: z.array(z.object({ EventType: z.string(), EventStatus: z.string(), NotBefore: z.string() })) });

/** null: the machine is of no cloud. */
export function interruptionsOf(cloud: MachineFile['cloud'], parts: MetadataParts): Interruptions | null {
  const { clock } = parts;
  const ask = metadataOf(parts);
  switch (cloud) {
    case 'command':
    case 'none':
      return null;
    case 'aws': {
      let token: string | null = null;
      return {
        every: 5_000,
        async look(signal) {
          token ??= await awsToken(ask, 21_600, signal);
          const { status, text } = await ask('/latest/meta-data/spot/instance-action', awsHeaders(token), signal);
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
          const { status, text } = await ask('/computeMetadata/v1/instance/preempted', gcpHeaders, signal);
          return status === 200 && text.trim() === 'TRUE' ? clock.wall() + shortNotice : null;
        },
      };
    case 'azure':
      return {
        every: 1_000,
        async look(signal) {
          // The first call starts the service, which may take two minutes.
          const path = '/metadata/scheduledevents?api-version=2020-07-01';
          const { status, text } = await ask(path, azureHeaders, signal, { timeout: 150_000 });
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
