/** What GitHub says of its own REST answers: checks an answer of the stand-in, and fills in what no test asks about. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

interface Schema {
  readonly type?: string;
  readonly $ref?: string;
  readonly format?: string;
  readonly enum?: readonly unknown[];
  readonly nullable?: boolean;
  readonly required?: readonly string[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly items?: Schema;
  readonly additionalProperties?: boolean | Schema;
  readonly oneOf?: readonly Schema[];
  readonly anyOf?: readonly Schema[];
  readonly allOf?: readonly Schema[];
}

interface Description {
  readonly operations: Readonly<Record<string, Readonly<Record<string, Schema | null>>>>;
  readonly schemas: Readonly<Record<string, Schema>>;
}

const fixture = join(import.meta.dirname, '..', 'fixtures', 'github', 'openapi.json');
const { operations, schemas } = JSON.parse(readFileSync(fixture, 'utf8')) as Description;

/** GitHub documents few refusals of each call; any other one looks like this. */
const anyRefusal: Schema = { $ref: 'basic-error' };

/** @throws Error when GitHub's description of `call`, as `GET /orgs/{org}/repos`, has no such answer */
export function checkAnswer(call: string, status: number, body: unknown): void {
  const answers = operations[call];
  if (answers === undefined) throw new Error(`The stand-in has no description of ${call}.`);
  const told = answers[status];
  const schema = told === undefined && status >= 400 ? anyRefusal : told;
  if (schema === undefined && status !== 304) throw new Error(`GitHub never answers ${status} to ${call}.`);
  const wrong = schema ? faultOf(schema, body, '$') : body === undefined ? null : '$ should be empty';
  if (wrong !== null) throw new Error(`The stand-in's answer ${status} to ${call} is not like GitHub's: ${wrong}.`);
}

/** @throws Error when GitHub sends no such webhook about a job */
export function checkJobEvent(action: string, body: unknown): void {
  const wrong = faultOf({ $ref: `webhook-workflow-job-${action.replace('_', '-')}` }, body, '$');
  if (wrong !== null) throw new Error(`The stand-in's webhook "${action}" is not like GitHub's: ${wrong}.`);
}

const resolved = (schema: Schema): Schema => (schema.$ref === undefined ? schema : resolved(schemas[schema.$ref] ?? {}));

/** All of `allOf` as one. */
function merged(schema: Schema): Schema {
  const own = resolved(schema);
  if (own.allOf === undefined) return own;
  const parts = own.allOf.map(merged);
  return {
    ...parts[0],
    ...own,
    properties: Object.assign({}, ...parts.map(({ properties }) => properties), own.properties),
    required: [...parts.flatMap(({ required }) => required ?? []), ...(own.required ?? [])],
  };
}

/** Where `value` differs first; null where it fits. A key that GitHub does not describe is a difference too. */
function faultOf(schema: Schema, value: unknown, at: string): string | null {
  const of = merged(schema);
  if (value === null) return of.nullable === true || of.type === undefined ? null : `${at} is null`;
  const choices = of.oneOf ?? of.anyOf;
  if (choices !== undefined && of.properties === undefined) {
    const faults = choices.map((one) => faultOf(one, value, at));
    return faults.includes(null) ? null : (faults[0] ?? null);
  }
  if (of.enum !== undefined && !of.enum.includes(value))
    return `${at} is ${JSON.stringify(value)}, not one of ${of.enum.join(', ')}`;
  if (of.type === 'array') {
    if (!Array.isArray(value)) return `${at} is not an array`;
    return first(value.map((one, index) => faultOf(of.items ?? {}, one, `${at}[${index}]`)));
  }
  if (of.type === 'object' || of.properties !== undefined) return faultOfObject(of, value, at);
  if (of.type === 'integer') return Number.isSafeInteger(value) ? null : `${at} is not an integer`;
  if (of.type !== undefined && typeof value !== of.type) return `${at} is not a ${of.type}`;
  if (of.format === 'date-time' && !/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(String(value))) return `${at} is not a time`;
  if (of.format === 'uri' && !URL.canParse(String(value))) return `${at} is not an address`;
  return null;
}

function faultOfObject(
  { properties = {}, required = [], additionalProperties }: Schema,
  value: unknown,
  at: string,
): string | null {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return `${at} is not an object`;
  const missing = required.find((key) => !(key in value));
  if (missing !== undefined) return `${at}.${missing} is missing`;
  return first(
    Object.entries(value).map(([key, one]) => {
      const known = properties[key];
      if (known !== undefined) return faultOf(known, one, `${at}.${key}`);
      if (typeof additionalProperties === 'object') return faultOf(additionalProperties, one, `${at}.${key}`);
      const isFree = additionalProperties === true || Object.keys(properties).length === 0;
      return isFree ? null : `${at}.${key} is nothing that GitHub answers`;
    }),
  );
}

const first = (faults: readonly (string | null)[]): string | null => faults.find((one) => one !== null) ?? null;

/** An object of the schema `name`: `known`, and a harmless value for every other key that GitHub always sends. */
export function filled(name: string, known: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const { required = [], properties = {} } = merged({ $ref: name });
  const rest = required.filter((key) => !(key in known)).map((key) => [key, harmless(properties[key] ?? {}, key)] as const);
  return { ...Object.fromEntries(rest), ...known };
}

function harmless(schema: Schema, key: string): unknown {
  const of = merged(schema);
  if (of.nullable === true || of.type === undefined) return null;
  if (of.enum !== undefined) return of.enum[0];
  if (of.type === 'array') return [];
  if (of.type === 'boolean') return false;
  if (of.type === 'integer' || of.type === 'number') return 0;
  if (of.type === 'object') return schema.$ref === undefined ? fill(of) : filled(schema.$ref, {});
  if (of.format === 'date-time') return '2026-01-01T00:00:00Z';
  return of.format === 'uri' || key.endsWith('url') ? 'https://github.test/unused' : '';
}

const fill = ({ required = [], properties = {} }: Schema): unknown =>
  Object.fromEntries(required.map((key) => [key, harmless(properties[key] ?? {}, key)]));
