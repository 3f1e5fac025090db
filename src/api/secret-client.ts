/** The part of the client that is about encrypted values. Its schemas are loaded with the first such request. */
import type { z } from 'zod';
import type { SecretDesk } from './secret-desk.ts';

export interface SecretCalls {
  readonly secrets: SecretDesk;
}

/** One request whose answer is of the schema that `load` gives. */
type Ask = <T extends z.ZodType>(
  load: () => Promise<T>,
  call: { readonly method: 'GET' | 'POST'; readonly path: string; readonly body?: unknown },
) => Promise<z.output<T>>;

export function secretCalls(ask: Ask): SecretCalls {
  const schemas = () => import('./secret-schema.ts');
  const path = (fingerprint: string, act: string) => `/v1/secret-pins/${encodeURIComponent(fingerprint)}/${act}`;
  return {
    secrets: {
      pins: () => ask(async () => (await schemas()).pinnedList, { method: 'GET', path: '/v1/secret-pins' }),
      allow: (fingerprint, pipelines) =>
        ask(async () => (await schemas()).pinnedView, {
          method: 'POST',
          path: path(fingerprint, 'allow'),
          body: { pipelines: [...pipelines] },
        }),
      forget: (fingerprint, pipeline) =>
        ask(async () => (await schemas()).forgetAnswer, { method: 'POST', path: path(fingerprint, 'forget'), body: { pipeline } }),
    },
  };
}
