/** One call of an AWS service: signed, sent once, read, and its error named. */
import { AwsV4Signer } from 'aws4fetch';
import { z } from 'zod';
import type { Answer, Outgoing } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';
import type { CloudError } from '../cloud.ts';
import type { Caller } from '../kit/caller.ts';
import type { AwsConfig } from './config.ts';
import type { Credentials } from './credentials.ts';
import { type Asked, type AwsProblem, isAboutTime, toCloudError } from './errors.ts';
import { itemsAt, readXml, textAt, type Xml } from './xml.ts';

const titles = { ec2: 'EC2', ssm: 'SSM', scheduler: 'EventBridge Scheduler', sts: 'STS', servicequotas: 'Service Quotas' } as const;
type Service = keyof typeof titles;

/** Values of a query, nested as the API reference writes them: `{ Tag: [{ Key: 'a' }] }` is `Tag.1.Key=a`. undefined: left out. */
export type Params = { readonly [name: string]: string | number | boolean | undefined | Params | readonly (string | Params)[] };

/** What a call says of itself. `region` is that of the endpoint. */
export type Call = Omit<Asked, 'place'> & { readonly region: string };

export type Calls = ReturnType<typeof createCalls>;

export function createCalls({ endpoint }: Pick<AwsConfig, 'endpoint'>, caller: Caller, credentials: Credentials) {
  const baseOf = (service: Service, region: string): string =>
    endpoint ?? `https://${service}.${region}.amazonaws.com${region.startsWith('cn-') ? '.cn' : ''}`;

  async function signed(request: Outgoing, service: Service, region: string, signal: AbortSignal): Promise<Outgoing> {
    const { id, secret, session } = await credentials.get(signal);
    const { method, url, body, headers } = request;
    // By the cloud's clock, which refuses a signature that is minutes off.
    const datetime = new Date(caller.now()).toISOString().replace(/[:-]|\.\d{3}/g, '');
    const signer = new AwsV4Signer({
      ...{ method, url: String(url), headers, service, region, datetime, accessKeyId: id, secretAccessKey: secret },
      ...(body !== undefined && { body: String(body) }),
      ...(session !== null && { sessionToken: session }),
    });
    const { headers: all } = await signer.sign();
    return { ...request, url: signer.url, headers: Object.fromEntries(all) };
  }

  async function send(service: Service, request: Outgoing, call: Call, signal: AbortSignal): Promise<Answer> {
    const { doing, changes, region } = call;
    const asked = { ...call, place: `${titles[service]} in ${region}` };
    const before = caller.skew();
    const once = async () => caller.send(await signed(request, service, region, signal), asked, signal);
    let answer = await once();
    let problem = problemOf(answer);
    // AWS did nothing, and its answer says what time it is there.
    if (problem !== null && isAboutTime(problem) && caller.skew() !== before) {
      answer = await once();
      problem = problemOf(answer);
    }
    if (problem === null) return answer;
    const error = toCloudError(problem, { ...asked, doing, changes });
    if (error.code === 'E_CLOUD_CREDENTIAL') credentials.forget();
    throw error;
  }

  const unreadable = (service: Service, { status }: Answer, call: Call): CloudError =>
    toCloudError(
      { status, code: '', message: 'its answer could not be read' },
      { ...call, place: `${titles[service]} in ${call.region}` },
    );

  async function query(service: 'ec2' | 'sts', version: string, action: string, params: Params, call: Call, signal: AbortSignal) {
    const body = new URLSearchParams({ Action: action, Version: version, ...flat(params) }).toString();
    const headers = { 'Content-Type': 'application/x-www-form-urlencoded; charset=utf-8' };
    const request = { method: 'POST', url: `${baseOf(service, call.region)}/`, headers, body } as const;
    const answer = await send(service, request, call, signal);
    const xml = readXml(answer.text);
    if (xml?.name === `${action}Response`) return xml;
    throw unreadable(service, answer, call);
  }

  const calls = {
    ec2: (action: string, params: Params, call: Call, signal: AbortSignal): Promise<Xml> =>
      query('ec2', '2016-11-15', action, params, call, signal),

    /** All items of a list in pages. A page that fails fails the whole, since half a list proves nothing. */
    async ec2List(action: string, set: string, params: Params, call: Call, signal: AbortSignal): Promise<Xml[]> {
      const found: Xml[] = [];
      let token: string | undefined;
      do {
        const page = await calls.ec2(action, { ...params, NextToken: token }, call, signal);
        found.push(...itemsAt(page, set));
        token = textAt(page, 'nextToken') ?? undefined;
      } while (token !== undefined);
      return found;
    },

    sts: (action: string, call: Call, signal: AbortSignal): Promise<Xml> => query('sts', '2011-06-15', action, {}, call, signal),

    /** SSM and Service Quotas. `target`: with its prefix. */
    async json(
      service: 'ssm' | 'servicequotas',
      target: string,
      input: unknown,
      call: Call,
      signal: AbortSignal,
    ): Promise<unknown> {
      const headers = { 'Content-Type': 'application/x-amz-json-1.1', 'X-Amz-Target': target };
      const request = { method: 'POST', url: `${baseOf(service, call.region)}/`, headers, body: JSON.stringify(input) } as const;
      const answer = await send(service, request, call, signal);
      const found = jsonOf(answer.text);
      if (found !== undefined) return found;
      throw unreadable(service, answer, call);
    },

    /** `path`: with its query. */
    async scheduler(
      method: 'GET' | 'POST' | 'DELETE',
      path: string,
      input: unknown,
      call: Call,
      signal: AbortSignal,
    ): Promise<unknown> {
      const body = input === undefined ? {} : { body: JSON.stringify(input) };
      const headers = input === undefined ? {} : { 'Content-Type': 'application/json' };
      const request = { method, url: `${baseOf('scheduler', call.region)}${path}`, headers, ...body };
      const answer = await send('scheduler', request, call, signal);
      if (method === 'DELETE') return null;
      const found = jsonOf(answer.text);
      if (found !== undefined) return found;
      throw unreadable('scheduler', answer, call);
    },
  };
  return calls;
}

/** Names and values as the Query API wants them: lists count from 1. */
export function flat(params: Params, prefix = ''): Record<string, string> {
  const pairs = Object.entries(params).flatMap(([name, value]): [string, string][] => {
    const path = `${prefix}${name}`;
    if (value === undefined) return [];
    if (Array.isArray(value)) {
      const items = Object.fromEntries(value.map((item: string | Params, index) => [String(index + 1), item]));
      return Object.entries(flat(items, `${path}.`));
    }
    if (typeof value === 'object') return Object.entries(flat(value as Params, `${path}.`));
    return [[path, String(value)]];
  });
  return Object.fromEntries(pairs);
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
