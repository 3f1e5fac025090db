/**
 * Judges requests and answers by a discovery document of Google: unknown calls, parameters and fields, values that are not in an
 * enumeration, and wrong types, such as a number where 64 bits are text.
 */

interface Schema {
  readonly $ref?: string;
  readonly type?: string;
  readonly format?: string;
  readonly enum?: readonly string[];
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: Schema;
}

interface Method {
  readonly id: string;
  readonly httpMethod: string;
  readonly path: string;
  readonly parameters?: Readonly<Record<string, Schema & { readonly location: string; readonly pattern?: string }>>;
  readonly request?: Schema;
  readonly response?: Schema;
}

interface Resource {
  readonly methods?: Readonly<Record<string, Method>>;
  readonly resources?: Readonly<Record<string, Resource>>;
}

export interface Document extends Resource {
  readonly servicePath: string;
  readonly parameters: Readonly<Record<string, Schema>>;
  readonly schemas: Readonly<Record<string, Schema>>;
}

export interface Exchanged {
  readonly method: string;
  readonly url: URL;
  readonly body: unknown;
  readonly answer: { readonly status: number; readonly json: unknown };
}

/** What is wrong with a call, each with its place; empty: nothing. */
export function judge(
  document: Document,
  { method, url, body, answer }: Exchanged,
): { readonly id: string; readonly wrong: string[] } {
  const known = methodsOf(document).find((one) => one.httpMethod === method && patternOf(document, one).test(url.pathname));
  if (known === undefined) return { id: '', wrong: [`${method} ${url.pathname} is no call`] };
  const wrong: string[] = [];
  for (const [name, value] of url.searchParams) {
    const parameter = known.parameters?.[name] ?? document.parameters[name];
    if (parameter === undefined) wrong.push(`query ${name} is not known`);
    else if (parameter.type === 'boolean' && !/^(true|false)$/.test(value)) wrong.push(`query ${name} is not a boolean`);
    else if (parameter.type === 'integer' && !/^\d+$/.test(value)) wrong.push(`query ${name} is not an integer`);
  }
  if (known.request !== undefined) wrong.push(...check(document, known.request, body, 'request'));
  else if (body !== '') wrong.push('there is a body, but the call has none');
  if (answer.status < 300 && known.response !== undefined) wrong.push(...check(document, known.response, answer.json, 'answer'));
  return { id: known.id, wrong };
}

function methodsOf({ methods = {}, resources = {} }: Resource): Method[] {
  return [...Object.values(methods), ...Object.values(resources).flatMap(methodsOf)];
}

/** `{name}` is one segment, `{+name}` what its own pattern says. */
function patternOf({ servicePath }: Document, { path, parameters }: Method): RegExp {
  const whole = `/${servicePath}${path}`
    .replace(/[.]/g, '\\.')
    .replace(/\{\+([^}]+)\}/g, (_, name: string) => (parameters?.[name]?.pattern ?? '.+').replace(/^\^|\$$/g, ''))
    .replace(/\{[^}]+\}/g, '[^/:]+');
  return new RegExp(`^${whole}$`);
}

/** How 64 bits, and other types that JSON has not, are written. */
const formats: Readonly<Record<string, RegExp>> = { int64: /^-?\d+$/, uint64: /^\d+$/, byte: /^[A-Za-z0-9+/_-]*=*$/ };

function check(document: Document, schema: Schema, value: unknown, at: string): string[] {
  const found = schema.$ref === undefined ? schema : document.schemas[schema.$ref];
  if (found === undefined) return [`${at}: no schema ${schema.$ref}`];
  const { type = 'object', format = '', enum: words, items, properties = {}, additionalProperties } = found;
  const kind = Array.isArray(value) ? 'array' : value === null ? 'null' : typeof value;
  const expected = type === 'integer' ? 'number' : type;
  if (type === 'any') return [];
  if (kind !== expected) return [`${at}: ${kind} instead of ${type}${format === '' ? '' : ` (${format})`}`];
  if (type === 'integer' && !Number.isInteger(value)) return [`${at}: not an integer`];
  if (words !== undefined && !words.includes(String(value))) return [`${at}: ${JSON.stringify(value)} is not in the enumeration`];
  if (typeof value === 'string' && formats[format]?.test(value) === false)
    return [`${at}: ${JSON.stringify(value)} is no ${format}`];
  if (Array.isArray(value)) return value.flatMap((one, index) => check(document, items ?? {}, one, `${at}[${index}]`));
  if (kind !== 'object') return [];
  return Object.entries(value as object).flatMap(([name, one]) => {
    const field = properties[name] ?? additionalProperties;
    return field === undefined ? [`${at}.${name} is not known`] : check(document, field, one, `${at}.${name}`);
  });
}
