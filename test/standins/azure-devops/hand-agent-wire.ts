/** What an agent that is moved by hand reads: the service's answers, and its own three files. */
import { z } from 'zod';

export const RegisteredSchema = z.object({
  id: z.number(),
  name: z.string(),
  authorization: z.object({ clientId: z.string(), authorizationUrl: z.string() }),
});
export const SettingsSchema = z.object({
  agentId: z.union([z.number(), z.string()]),
  agentName: z.string(),
  poolId: z.union([z.number(), z.string()]),
  serverUrl: z.string(),
});
export const CredentialsSchema = z.object({
  scheme: z.literal('OAuth'),
  data: z.object({ clientId: z.string(), authorizationUrl: z.string(), oauthEndpointUrl: z.string().optional() }),
});
/** Standard base64 of so many bytes. */
const bytes = (count: number) =>
  z
    .string()
    .transform((value) => ({ value, read: Buffer.from(value, 'base64') }))
    .refine(({ value, read }) => read.length === count && read.toString('base64') === value, `must be ${count} bytes`)
    .transform(({ read }) => read);
/** .NET wants every part of a key, in its exact length. */
export const RsaSchema = z.strictObject({
  modulus: bytes(256),
  exponent: bytes(3),
  d: bytes(256),
  p: bytes(128),
  q: bytes(128),
  dp: bytes(128),
  dq: bytes(128),
  inverseQ: bytes(128),
});
export const SessionSchema = z.object({
  sessionId: z.string(),
  encryptionKey: z.object({ encrypted: z.boolean(), value: z.string() }),
});
export const MessageSchema = z.object({ messageId: z.number(), messageType: z.string(), iv: z.string(), body: z.string() });
export const JobSchema = z.object({
  requestId: z.number(),
  jobId: z.string(),
  plan: z.object({ scopeIdentifier: z.string(), planId: z.string() }),
  timeline: z.object({ id: z.string() }),
  resources: z.object({
    endpoints: z.array(z.object({ authorization: z.object({ parameters: z.object({ AccessToken: z.string() }) }) })),
  }),
});
