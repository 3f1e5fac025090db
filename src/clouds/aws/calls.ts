/** One call of an AWS service: signed, sent once, read, and its error named. */
import { AwsV4Signer } from 'aws4fetch';
import { z } from 'zod';
import type { Answer, Outgoing } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';
import type { Caller } from '../kit/caller.ts';
import type { AwsConfig } from './config.ts';
import type { AwsCredential, AwsCredentials } from './credentials.ts';
import { type AwsCall, type AwsProblem, isAboutTime, toCloudError } from './errors.ts';
import { itemsAt, readXml, textAt, type Xml } from './xml.ts';

const titles = { ec2: 'EC2', ssm: 'SSM', scheduler: 'EventBridge Scheduler', sts: 'STS', servicequotas: 'Service Quotas' } as const;
type Service = keyof typeof titles;

/** Values of a query, nested as the API reference writes them: `{ Tag: [{ Key: 'a' }] }` is `Tag.1.Key=a`. undefined: left out. */
export type Params = { readonly [name: string]: string | number | boolean | undefined | Params | readonly (string | Params)[] };

/** What a call says of itself. `region`: that of the endpoint. `needs`: by default the permission named after the action. */
export type AwsApiCall = Pick<AwsCall, 'doing' | 'region' | 'offer'> & Partial<Pick<AwsCall, 'changes' | 'needs'>>;

export class AwsCalls {
  readonly #parts: Pick<AwsConfig, 'endpoint'>;
  readonly #caller: Caller;
  readonly #credentials: AwsCredentials;

  constructor(parts: Pick<AwsConfig, 'endpoint'>, caller: Caller, credentials: AwsCredentials) {
    this.#parts = parts;
    this.#caller = caller;
    this.#credentials = credentials;
  }

  ec2(action: string, params: Params, call: AwsApiCall, signal: AbortSignal): Promise<Xml> {
    return this.#query('ec2', '2016-11-15', action, params, call, signal);
  }

  /** All items of a list in pages. A page that fails fails the whole, since half a list proves nothing. */
  async ec2List(action: string, set: string, params: Params, call: AwsApiCall, signal: AbortSignal): Promise<Xml[]> {
    const found: Xml[] = [];
    let token: string | undefined;
    do {
      const page = await this.ec2(action, { ...params, NextToken: token }, call, signal);
      found.push(...itemsAt(page, set));
      token = textAt(page, 'nextToken') ?? undefined;
    } while (token !== undefined);
    return found;
  }

  sts(action: string, call: AwsApiCall, signal: AbortSignal): Promise<Xml> {
    return this.#query('sts', '2011-06-15', action, {}, call, signal);
  }

  /** SSM and Service Quotas. `target`: with its prefix. */
  json(service: 'ssm' | 'servicequotas', target: string, input: unknown, call: AwsApiCall, signal: AbortSignal): Promise<unknown> {
    const headers = { 'Content-Type': 'application/x-amz-json-1.1', 'X-Amz-Target': target };
    const action = target.split('.')[1] ?? '';
    return this.#send(service, action, { method: 'POST', headers, body: JSON.stringify(input) }, call, jsonOf, signal);
  }

  /** `path`: with its query. */
  scheduler(
    [action, method, path]: readonly [action: string, method: 'GET' | 'POST' | 'DELETE', path: string],
    input: unknown,
    call: AwsApiCall,
    signal: AbortSignal,
  ): Promise<unknown> {
    const json = input !== undefined && { headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(input) };
    const read = method === 'DELETE' ? () => true : jsonOf;
    return this.#send('scheduler', action, { method, path, headers: {}, ...json }, call, read, signal);
  }

  #baseOf(service: Service, region: string): string {
    return this.#parts.endpoint ?? `https://${service}.${region}.amazonaws.com${region.startsWith('cn-') ? '.cn' : ''}`;
  }

  async #signed(request: Outgoing, { id, secret, session }: AwsCredential, service: Service, region: string): Promise<Outgoing> {
    const { method, url, body, headers } = request;
    // By the cloud's clock, which refuses a signature that is minutes off.
    const datetime = new Date(this.#caller.now()).toISOString().replace(/[:-]|\.\d{3}/g, '');
    const signer = new AwsV4Signer({
      method,
      url: String(url),
      headers,
      service,
      region,
      datetime,
      accessKeyId: id,
      secretAccessKey: secret,
      ...(body !== undefined && { body: String(body) }),
      ...(session !== null && { sessionToken: session }),
    });
    const { headers: all } = await signer.sign();
    return { ...request, url: signer.url, headers: Object.fromEntries(all) };
  }

  /** `read`: what a body says; null or undefined: it cannot be read. @throws CloudError */
  async #send<T>(
    service: Service,
    action: string,
    { path = '/', ...request }: Omit<Outgoing, 'url'> & { readonly path?: string },
    call: AwsApiCall,
    read: (text: string) => T | null | undefined,
    signal: AbortSignal,
  ): Promise<T> {
    const { region } = call;
    const place = `${titles[service]} in ${region}`;
    const asked: AwsCall = { changes: false, needs: [`${service}:${action}`], ...call, place };
    const whole = { ...request, url: `${this.#baseOf(service, region)}${path}` };
    const before = this.#caller.skew();
    let used: AwsCredential | undefined;
    const once = async (): Promise<Answer> => {
      used = await this.#credentials.get(signal);
      return this.#caller.send(await this.#signed(whole, used, service, region), asked, signal);
    };
    let answer = await once();
    let problem = problemOf(answer);
    // AWS did nothing, and its answer says what time it is there.
    if (problem !== null && isAboutTime(problem) && this.#caller.skew() !== before) {
      answer = await once();
      problem = problemOf(answer);
    }
    const found = problem === null ? read(answer.text) : null;
    if (found !== null && found !== undefined) return found;
    const error = toCloudError(problem ?? { status: answer.status, code: '', message: 'its answer could not be read' }, asked);
    if (error.code === 'E_CLOUD_CREDENTIAL' && used !== undefined) this.#credentials.forget(used);
    throw error;
  }

  #query(service: 'ec2' | 'sts', version: string, action: string, params: Params, call: AwsApiCall, signal: AbortSignal) {
    const body = new URLSearchParams([['Action', action], ['Version', version], ...flat(params)]).toString();
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded; charset=utf-8' };
    const read = (text: string): Xml | null => {
      const xml = readXml(text);
      return xml?.name === `${action}Response` ? xml : null;
    };
    return this.#send(service, action, { method: 'POST', headers, body }, call, read, signal);
  }
}

/** Names and values as the Query API wants them: lists count from 1. */
function flat(params: Params, prefix = ''): [name: string, value: string][] {
  return Object.entries(params).flatMap(([name, value]): [string, string][] => {
    if (value === undefined) return [];
    if (typeof value !== 'object') return [[`${prefix}${name}`, String(value)]];
    const items = Array.isArray(value) ? Object.fromEntries(value.map((item, index) => [String(index + 1), item])) : value;
    return flat(items as Params, `${prefix}${name}.`);
  });
}

const jsonProblem = z.object({
  __type: z.string().optional(),
  message: z.string().optional(),
  Message: z.string().optional(),
});

/** null: it succeeded. */
function problemOf({ status, headers, text }: Answer): AwsProblem | null {
  if (status >= 200 && status < 300) return null;
  const json = jsonProblem.safeParse(jsonOf(text));
  if (json.success) {
    // `com.amazon.coral.service#AccessDeniedException`, or `ValidationException:http://…` in the header.
    const type = headers.get('x-amzn-ErrorType')?.split(':')[0] ?? json.data.__type ?? '';
    return { status, code: type.split('#').at(-1) ?? '', message: json.data.message ?? json.data.Message ?? '' };
  }
  const xml = readXml(text);
  const error = xml?.children
    .flatMap((child) => (child.name === 'Errors' ? child.children : [child]))
    .find((one) => one.name === 'Error');
  return { status, code: textAt(error, 'Code') ?? '', message: textAt(error, 'Message') ?? '' };
}
