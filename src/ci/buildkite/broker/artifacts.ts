/**
 * Uploads of artifacts go where the service says, mostly to an object store with an address that is itself the permission. A
 * sandbox is given an address here in its place, with the true one sealed inside: nothing is kept for it, so it outlives a
 * restart of the broker, and it ends with the agent's job. Downloads are addresses of other hosts too, and stay as they are.
 *
 * Facts from the agent's `internal/artifact/bk_uploader.go`: a form's address is `url` with its path replaced by `path`; a part of
 * a multipart upload has only `url`. No `Authorization` header is sent to either.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { z } from 'zod';

/** Makes and opens addresses of uploads, with a key of its own from the installation's. */
export interface UploadAddresses {
  seal(upload: Upload): string;
  /** Null for anything that was not sealed with this key. */
  open(sealed: string): Upload | null;
}

export interface Upload {
  /** The broker's id of the agent whose job may upload there. */
  readonly agent: string;
  /** Such as `https://bucket.example`. */
  readonly origin: string;
  /** As it is sent, with its query. */
  readonly path: string;
}

const upload = z.strictObject({ agent: z.string(), origin: z.string(), path: z.string() });

const vectorBytes = 12;
const tagBytes = 16;

export function createUploadAddresses(key: Buffer): UploadAddresses {
  const own = Buffer.from(hkdfSync('sha256', key, '', 'onejob buildkite upload', 32));
  return {
    seal(target) {
      const vector = randomBytes(vectorBytes);
      const cipher = createCipheriv('aes-256-gcm', own, vector);
      const sealed = [vector, cipher.update(JSON.stringify(target)), cipher.final(), cipher.getAuthTag()];
      return Buffer.concat(sealed).toString('base64url');
    },
    open(sealed) {
      try {
        const bytes = Buffer.from(sealed, 'base64url');
        const cipher = createDecipheriv('aes-256-gcm', own, bytes.subarray(0, vectorBytes), { authTagLength: tagBytes });
        cipher.setAuthTag(bytes.subarray(-tagBytes));
        const text = Buffer.concat([cipher.update(bytes.subarray(vectorBytes, -tagBytes)), cipher.final()]).toString();
        return upload.parse(JSON.parse(text));
      } catch {
        return null;
      }
    },
  };
}

const action = z.looseObject({ url: z.string(), path: z.string().optional() });
const instructions = z.looseObject({ action: z.unknown().optional(), actions: z.array(z.unknown()).nullish() });
const created = z.looseObject({
  upload_instructions: instructions.nullish(),
  per_artifact_instructions: z.record(z.string(), instructions).nullish(),
});

export interface Rewriting {
  readonly addresses: UploadAddresses;
  readonly agent: string;
  /** What the agent calls the gateway: the `Host` header of its call, such as `172.17.0.1:4711`. */
  readonly host: string;
}

/** The answer to the creation of artifacts with every upload led through the gateway. What is not of that form stays as it is. */
export function withOwnUploads(answer: unknown, to: Rewriting): unknown {
  const parsed = created.safeParse(answer);
  if (!parsed.success) return answer;
  const { upload_instructions: forAll, per_artifact_instructions: each } = parsed.data;
  return {
    ...parsed.data,
    ...(forAll == null ? {} : { upload_instructions: led(forAll, to) }),
    ...(each == null ? {} : { per_artifact_instructions: mapValues(each, (one) => led(one, to)) }),
  };
}

function led(one: z.infer<typeof instructions>, to: Rewriting): unknown {
  return {
    ...one,
    ...(one.action == null ? {} : { action: ledAction(one.action, 'form', to) }),
    ...(one.actions == null ? {} : { actions: one.actions.map((part) => ledAction(part, 'part', to)) }),
  };
}

function ledAction(foreign: unknown, how: 'form' | 'part', { addresses, agent, host }: Rewriting): unknown {
  const parsed = action.safeParse(foreign);
  const target = parsed.success && URL.canParse(parsed.data.url) ? new URL(parsed.data.url) : null;
  if (!parsed.success || target === null || (target.protocol !== 'https:' && target.protocol !== 'http:')) return foreign;
  const path = how === 'form' ? formPath(parsed.data.path ?? '', target) : target.pathname;
  const own = `/upload/${addresses.seal({ agent, origin: target.origin, path: `${path}${target.search}` })}`;
  return { ...parsed.data, url: `http://${host}${own}`, ...(parsed.data.path === undefined ? {} : { path: own }) };
}

/** As the agent's language writes a path into an address: a `%` in it is a character like any other. */
function formPath(path: string, target: URL): string {
  if (decodedOr(target.pathname) === path) return target.pathname;
  const escaped = encodeURIComponent(path).replace(/%(2F|24|26|2B|2C|3A|3B|3D|40)/g, (one) => decodeURIComponent(one));
  const strict = escaped.replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);
  return strict.startsWith('/') ? strict : `/${strict}`;
}

function decodedOr(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

function mapValues<T, R>(values: Readonly<Record<string, T>>, change: (value: T) => R): Record<string, R> {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, change(value)]));
}
