/** What Compute Engine answers, as far as onejob reads it (API v1, discovery document 20261106). */
import { z } from 'zod';
import { serviceId } from '../../http/service-id.ts';

/** The last part of the address of a resource: `…/zones/us-central1-a` is `us-central1-a`. */
export const lastOf = (address: string): string => address.slice(address.lastIndexOf('/') + 1);

/** Details of an error, as operations have them. */
const detail = z.object({
  errorInfo: z.object({ reason: z.string().optional(), metadatas: z.record(z.string(), z.string()).optional() }).optional(),
  quotaInfo: z
    .object({
      limitName: z.string().optional(),
      metricName: z.string().optional(),
      limit: z.number().optional(),
      dimensions: z.record(z.string(), z.string()).optional(),
    })
    .optional(),
});

export const operationError = z.object({
  code: z.string().default(''),
  message: z.string().default(''),
  // Whatever they look like, the code decides.
  errorDetails: z.array(detail.catch({})).default([]),
});
export type OperationError = z.infer<typeof operationError>;

export const operation = z.object({
  name: serviceId,
  status: z.string(),
  error: z.object({ errors: z.array(operationError).default([]) }).optional(),
});
export type Operation = z.infer<typeof operation>;

/** The body of an answer that is an error. */
export const gcpRefusal = z.object({
  error: z.object({
    message: z.string().default(''),
    errors: z.array(z.object({ reason: z.string().default(''), message: z.string().default('') })).default([]),
    details: z.array(z.object({ reason: z.string().optional() })).default([]),
  }),
});

const labels = z.record(z.string(), z.string()).default({});

export const instance = z.object({
  name: serviceId,
  status: z.string(),
  labels,
  machineType: z.string().transform(lastOf).optional(),
  guestAccelerators: z
    .array(z.object({ acceleratorType: z.string().transform(lastOf), acceleratorCount: z.number().default(1) }))
    .default([]),
  scheduling: z.object({ provisioningModel: z.string().optional(), instanceTerminationAction: z.string().optional() }).default({}),
  resourceStatus: z.object({ scheduling: z.object({ terminationTimestamp: z.string().optional() }).optional() }).optional(),
});
export type Instance = z.infer<typeof instance>;

const items = z.array(z.object({ key: z.string(), value: z.string().default('') })).default([]);
export const withMetadata = z.object({ metadata: z.object({ fingerprint: z.string(), items }) });

export const leftover = z.object({ name: serviceId, status: z.string().default(''), labels });
export type Leftover = z.infer<typeof leftover>;

const warning = z.object({ code: z.string().default(''), message: z.string().default('') });

/** One page of a list over all scopes; the resources of a scope are at a key that is named after their kind. */
export const page = z.object({
  items: z.record(z.string(), z.looseObject({ warning: warning.optional() })).default({}),
  nextPageToken: z.string().optional(),
  unreachables: z.array(z.string()).default([]),
  warning: warning.optional(),
});
export type Page = z.infer<typeof page>;

export const named = z.object({ name: serviceId });

const quotas = z.array(z.object({ metric: z.string().default(''), limit: z.number(), usage: z.number().default(0) })).default([]);
export type Quotas = z.infer<typeof quotas>;
export const withQuotas = z.object({ quotas });

export const image = z.object({
  name: z.string(),
  selfLink: z.string().default(''),
  architecture: z.string().optional(),
  diskSizeGb: z.string().optional(),
  deprecated: z.object({ state: z.string().default('') }).optional(),
});

export const subnetwork = z.object({ name: z.string(), network: z.string().transform(lastOf) });
export const serialPort = z.object({ contents: z.string().default('') });
export const granted = z.object({ permissions: z.array(z.string()).default([]) });
/** RFC 6749, 5.1; the metadata server answers the same. `expires_in`: seconds. */
export const token = z.object({ access_token: z.string().min(1), expires_in: z.number() });
