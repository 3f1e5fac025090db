/** The part of the client that is about devices. Its schemas are loaded with the first such request. */
import type { z } from 'zod';
import type * as Schemas from './device-schema.ts';

export interface DeviceCalls {
  devices(): Promise<Schemas.DeviceView[]>;
  /** `name`: a UUID or its unambiguous beginning, or the index or PCI address of a GPU. */
  changeDevice(name: string, change: Schemas.DeviceChange): Promise<Schemas.DeviceAnswer>;
  /** Newest first; `device` as above, null: of all. */
  proofs(filter: { readonly device: string | null; readonly limit: number }): Promise<Schemas.ProofView[]>;
}

/** One request whose answer is of the schema that `load` gives. */
type Ask = <T extends z.ZodType>(
  load: () => Promise<T>,
  call: { readonly method: 'GET' | 'POST'; readonly path: string; readonly body?: unknown },
) => Promise<z.output<T>>;

export function deviceCalls(ask: Ask): DeviceCalls {
  return {
    devices: () => ask(async () => (await import('./device-schema.ts')).deviceList, { method: 'GET', path: '/v1/devices' }),
    changeDevice(name, { act, ...body }) {
      const path = `/v1/devices/${encodeURIComponent(name)}/${act}`;
      return ask(async () => (await import('./device-schema.ts')).deviceAnswer, { method: 'POST', path, body });
    },
    proofs({ device, limit }) {
      const query = new URLSearchParams({ limit: String(limit), ...(device === null ? {} : { device }) });
      return ask(async () => (await import('./device-schema.ts')).proofList, { method: 'GET', path: `/v1/proofs?${query}` });
    },
  };
}
