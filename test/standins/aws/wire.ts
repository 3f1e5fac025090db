/** How requests to AWS look, and its answers: Signature Version 4, the Query API, JSON, and XML. Written without the code under test. */
import { createHash, createHmac } from 'node:crypto';

export interface Asked {
  readonly method: string;
  readonly url: URL;
  readonly headers: Headers;
  readonly body: string;
}

export interface Said {
  readonly status: number;
  readonly type: string;
  readonly text: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** An error that AWS answers with. */
export class Refused extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export interface Key {
  readonly id: string;
  readonly secret: string;
  readonly session?: string;
  /** ms since the epoch. */
  readonly until?: number;
}

export interface Signed {
  readonly region: string;
  readonly service: string;
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest();
const escaped = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`);

/** What the `Authorization` header says of itself; null: there is no such header. */
export function scopeOf(
  headers: Headers,
): (Signed & { readonly id: string; readonly day: string; readonly signed: string; readonly signature: string }) | null {
  const form =
    /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d{8})\/([^/]+)\/([^/]+)\/aws4_request,\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})$/;
  const [, id, day, region, service, signed, signature] = form.exec(headers.get('authorization') ?? '') ?? [];
  if (id === undefined || day === undefined || region === undefined || service === undefined) return null;
  return { id, day, region, service, signed: signed ?? '', signature: signature ?? '' };
}

/** Minutes that a signature may be off. */
const tolerance = 5 * 60_000;

/** @throws Refused, as EC2 or the JSON services say it */
export function checkSignature({ method, url, headers, body }: Asked, keys: readonly Key[], now: number): Signed {
  const scope = scopeOf(headers);
  if (scope === null) throw new Refused(400, 'MissingAuthenticationToken', 'Request is missing Authentication Token');
  const isEc2 = scope.service === 'ec2';
  const key = keys.find(({ id }) => id === scope.id);
  const stranger = () =>
    isEc2
      ? new Refused(401, 'AuthFailure', 'AWS was not able to validate the provided access credentials')
      : new Refused(
          scope.service === 'sts' ? 403 : 400,
          scope.service === 'sts' ? 'InvalidClientTokenId' : 'UnrecognizedClientException',
          'The security token included in the request is invalid.',
        );
  if (key === undefined || (key.session ?? null) !== headers.get('x-amz-security-token')) throw stranger();
  const names = scope.signed.split(';');
  if (!names.includes('host') || !names.includes('x-amz-date'))
    throw new Refused(403, 'SignatureDoesNotMatch', 'Headers are not signed');
  const canonical = [
    method,
    url.pathname
      .split('/')
      .map((part) => escaped(escaped(decodeURIComponent(part))))
      .join('/'),
    [...url.searchParams]
      .map(([name, value]) => `${escaped(name)}=${escaped(value)}`)
      .sort()
      .join('&'),
    ...names.map(
      (name) =>
        `${name}:${(name === 'host' ? (headers.get('host') ?? url.host) : (headers.get(name) ?? '')).trim().replace(/\s+/g, ' ')}`,
    ),
    '',
    scope.signed,
    headers.get('x-amz-content-sha256') ?? sha256(body),
  ].join('\n');
  const stamp = headers.get('x-amz-date') ?? '';
  const text = ['AWS4-HMAC-SHA256', stamp, `${scope.day}/${scope.region}/${scope.service}/aws4_request`, sha256(canonical)].join(
    '\n',
  );
  const derived = [scope.region, scope.service, 'aws4_request'].reduce<Buffer>(
    (one, part) => hmac(one, part),
    hmac(`AWS4${key.secret}`, scope.day),
  );
  if (hmac(derived, text).toString('hex') !== scope.signature) {
    const why = 'The request signature we calculated does not match the signature you provided.';
    throw isEc2
      ? stranger()
      : new Refused(403, scope.service === 'sts' ? 'SignatureDoesNotMatch' : 'InvalidSignatureException', why);
  }
  const at = Date.parse(stamp.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, '$1-$2-$3T$4:$5:$6Z'));
  if (!(Math.abs(now - at) <= tolerance)) {
    if (isEc2) throw new Refused(400, 'RequestExpired', 'Request has expired.');
    throw new Refused(
      403,
      scope.service === 'sts' ? 'SignatureDoesNotMatch' : 'InvalidSignatureException',
      at < now
        ? `Signature expired: ${stamp} is now earlier than the tolerated time.`
        : `Signature not yet current: ${stamp} is still later than the tolerated time.`,
    );
  }
  if (key.until !== undefined && key.until <= now)
    throw isEc2
      ? new Refused(400, 'RequestExpired', 'Request has expired.')
      : new Refused(
          scope.service === 'sts' ? 403 : 400,
          scope.service === 'sts' ? 'ExpiredToken' : 'ExpiredTokenException',
          'The security token included in the request is expired',
        );
  return scope;
}

export type Tree = string | Tree[] | { [name: string]: Tree };

/** `Tag.1.Key=a` as `{ Tag: [{ Key: 'a' }] }`. */
export function treeOf(pairs: Iterable<readonly [string, string]>): Record<string, Tree> {
  const root: Record<string, Tree> = {};
  for (const [name, value] of pairs) {
    const path = name.split('.');
    let at = root;
    for (const part of path.slice(0, -1)) {
      at[part] ??= {};
      at = at[part] as Record<string, Tree>;
    }
    at[path.at(-1) ?? ''] = value;
  }
  const listed = (tree: Tree): Tree => {
    if (typeof tree === 'string' || Array.isArray(tree)) return tree;
    const names = Object.keys(tree);
    if (names.length > 0 && names.every((name) => /^\d+$/.test(name)))
      return names.toSorted((a, b) => Number(a) - Number(b)).map((name) => listed(tree[name] ?? ''));
    return Object.fromEntries(names.map((name) => [name, listed(tree[name] ?? '')]));
  };
  return listed(root) as Record<string, Tree>;
}

/** null and undefined: no element. A list has items. */
export type Node = string | number | boolean | null | undefined | readonly Node[] | { readonly [name: string]: Node };

export function xmlOf(node: Node): string {
  if (node === null || node === undefined) return '';
  if (Array.isArray(node)) return node.map((one: Node) => `<item>${xmlOf(one)}</item>`).join('');
  if (typeof node !== 'object')
    return String(node).replace(/[&<>]/g, (one) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[one] ?? one);
  return Object.entries(node)
    .map(([name, inner]) => (inner === null || inner === undefined ? '' : `<${name}>${xmlOf(inner)}</${name}>`))
    .join('');
}

/** How an error looks at a service. */
export function errorOf({ status, code, message }: Refused, service: string, request: string): Said {
  if (service === 'ec2')
    return {
      status,
      type: 'text/xml;charset=UTF-8',
      text: `<?xml version="1.0" encoding="UTF-8"?>\n<Response>${xmlOf({ Errors: { Error: { Code: code, Message: message } }, RequestID: request })}</Response>`,
    };
  if (service === 'sts')
    return {
      status,
      type: 'text/xml',
      text: `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">${xmlOf({ Error: { Type: 'Sender', Code: code, Message: message }, RequestId: request })}</ErrorResponse>`,
    };
  if (service === 'scheduler')
    return {
      status,
      type: 'application/json',
      text: JSON.stringify({ Message: message }),
      headers: { 'x-amzn-ErrorType': `${code}:http://internal.amazon.com/` },
    };
  return { status, type: 'application/x-amz-json-1.1', text: JSON.stringify({ __type: code, message }) };
}
