/** The OpenAPI document of a table of calls, made from their schemas. */
import { z } from 'zod';
import type { Call } from '../contract/calls.ts';
import * as schemas from '../contract/schema.ts';

type Json = Record<string, unknown>;

const title = 'onejob';
const description =
  'The API of a onejob daemon. See api.md for how to reach it and what is promised, and json.md for what the keys mean.';

/** An OpenAPI 3.1 document. `schema.ts` has the named schemas. */
export function openApi(calls: Readonly<Record<string, Call>>): { openapi: string } & Json {
  const named = z.registry<{ id: string }>();
  for (const [name, schema] of Object.entries(schemas).toSorted(([a], [b]) => (a < b ? -1 : 1)))
    if (schema instanceof z.ZodObject && /(View|Answer|Line)$/.test(name)) named.add(schema, { id: name });
  const paths: Record<string, Json> = {};
  for (const [name, call] of Object.entries(calls)) {
    const [method = '', path = ''] = name.split(' ');
    const at = path.replaceAll(/:([a-z]+)/g, '{$1}');
    paths[at] = { ...paths[at], [method.toLowerCase()]: operation(call, at, named) };
  }
  const { schemas: components } = z.toJSONSchema(named, { ...outgoing, uri: (id) => `#/components/schemas/${id}` });
  const { __shared: shared, ...rest } = components as Record<string, Json>;
  const all = { ...rest, ...(shared?.$defs as Record<string, Json> | undefined) };
  const text = JSON.stringify({
    openapi: '3.1.0',
    info: { title, description, version: '1' },
    security: [{ token: [] }],
    paths,
    components: {
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
      schemas: Object.fromEntries(Object.entries(all).map(([id, schema]) => [id, inline(schema)])),
    },
  });
  return JSON.parse(text.replaceAll('#/components/schemas/__shared#/$defs/', '#/components/schemas/'));
}

/** Checks in code, such as those across keys, are not in the document. */
const incoming = { io: 'input', unrepresentable: 'any' } as const;
/** An answer may get more keys at any time. */
const outgoing = {
  unrepresentable: 'any',
  override: ({ jsonSchema }: { jsonSchema: { additionalProperties?: unknown } }) => {
    if (jsonSchema.additionalProperties === false) delete jsonSchema.additionalProperties;
  },
} as const;

type Named = z.core.$ZodRegistry<{ id: string }>;

function operation({ summary, role, params, query, body, answer, status = 200 }: Call, at: string, named: Named): Json {
  const error = {
    description: 'An error',
    content: { 'application/json': { schema: { $ref: '#/components/schemas/errorView' } } },
  };
  const success =
    answer === undefined
      ? { [status === 200 ? 204 : status]: { description: 'Done' } }
      : { [status]: { description: 'Done', content: content(answer, (schema) => output(schema, named)) } };
  const none = answer !== undefined && 'media' in answer && answer.optional === true ? { 204: { description: 'No content' } } : {};
  return {
    summary,
    'x-role': role,
    ...(role === 'anyone' && { security: [] }),
    parameters: [...parameters(params ?? pathOf(at), 'path'), ...parameters(query, 'query')],
    ...(body && {
      requestBody: { required: isNeeded(body), content: content(body, (schema) => inline(z.toJSONSchema(schema, incoming))) },
    }),
    responses: { ...success, ...none, default: error },
  };
}

/** Nothing is read as an object without keys. */
function isNeeded(body: NonNullable<Call['body']>): boolean {
  return !(body instanceof z.ZodType && body.safeParse({}).success);
}

function content(body: NonNullable<Call['answer']>, of: (schema: z.ZodType) => unknown): Json {
  if (body instanceof z.ZodType) return { 'application/json': { schema: of(body) } };
  const events = Object.entries(body.events ?? {}).map(([name, schema]) => [name, of(schema)]);
  return { [body.media]: { schema: {}, ...(events.length > 0 && { 'x-events': Object.fromEntries(events) }) } };
}

function output(schema: z.ZodType, named: Named): Json {
  const id = named.get(schema)?.id;
  if (id !== undefined) return { $ref: `#/components/schemas/${id}` };
  if (schema instanceof z.ZodArray) return { type: 'array', items: output(schema.element as z.ZodType, named) };
  return inline(z.toJSONSchema(schema, outgoing));
}

/** Any text for each part of the path. */
function pathOf(at: string): z.ZodType {
  return z.object(Object.fromEntries([...at.matchAll(/\{([a-z]+)\}/g)].map(([, name = '']) => [name, z.string()])));
}

function parameters(schema: z.ZodType | undefined, where: 'path' | 'query'): { name: string }[] {
  if (schema === undefined) return [];
  const { properties = {}, required = [] } = z.toJSONSchema(schema, incoming);
  return Object.entries(properties).map(([name, one]) => {
    return { name, in: where, required: where === 'path' || required.includes(name), schema: one };
  });
}

function inline({ $schema: _, $id: __, ...rest }: Json): Json {
  return rest;
}
