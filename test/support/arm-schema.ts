/**
 * Checks a body against the JSON Schema of an ARM resource (draft 04), as `Azure/azure-resource-manager-schemas` has them. A field that
 * a schema does not name is an error, although the schemas allow it: Azure refuses it.
 */

interface Schema {
  readonly $ref?: string;
  readonly oneOf?: readonly Schema[];
  readonly allOf?: readonly Schema[];
  readonly type?: string;
  readonly enum?: readonly unknown[];
  readonly pattern?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly required?: readonly string[];
  readonly items?: Schema;
}

export interface ArmSchemas {
  readonly definitions: Readonly<Record<string, Schema>>;
  readonly resourceDefinitions: Readonly<Record<string, Schema>>;
}

const types: Readonly<Record<string, (value: unknown) => boolean>> = {
  string: (value) => typeof value === 'string',
  integer: Number.isInteger,
  number: (value) => typeof value === 'number',
  boolean: (value) => typeof value === 'boolean',
  array: Array.isArray,
  object: (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
};

/** What is wrong, each with its path; empty if nothing is. `name`: such as `virtualMachines`. */
export function armProblems(schemas: ArmSchemas, name: string, body: unknown): string[] {
  const follow = (ref: string): Schema | null => {
    const found = /^#\/definitions\/(.+)$/.exec(ref)?.[1];
    // Others are templates' expressions, which are in no request.
    return found === undefined ? null : (schemas.definitions[found] ?? null);
  };
  const look = (schema: Schema, value: unknown, path: string): string[] => {
    if (schema.$ref !== undefined) {
      const target = follow(schema.$ref);
      return target === null ? [`${path} is no expression`] : look(target, value, path);
    }
    // The list of sizes ended years ago.
    if (path.endsWith('.vmSize')) return typeof value === 'string' ? [] : [`${path} is no text`];
    if (schema.oneOf !== undefined) {
      const tried = schema.oneOf.map((one) => look(one, value, path));
      return tried.find((found) => found.length === 0) ?? tried[0] ?? [];
    }
    if (schema.enum !== undefined && !schema.enum.includes(value)) return [`${path} is not one of ${schema.enum.join(', ')}`];
    if (schema.type !== undefined && types[schema.type]?.(value) === false) return [`${path} is not ${schema.type}`];
    if (schema.pattern !== undefined && !new RegExp(schema.pattern).test(String(value)))
      return [`${path} does not fit ${schema.pattern}`];
    const all = (schema.allOf ?? []).flatMap((one) => look(one, value, path));
    if (Array.isArray(value)) return [...all, ...value.flatMap((one, index) => look(schema.items ?? {}, one, `${path}[${index}]`))];
    if (typeof value !== 'object' || value === null) return all;
    const missing = (schema.required ?? []).filter((key) => !(key in value)).map((key) => `${path}.${key} is missing`);
    const { properties = {}, additionalProperties: more } = schema;
    const inside = Object.entries(value).flatMap(([key, one]) => {
      const its = properties[key] ?? (typeof more === 'object' ? more : undefined);
      return its === undefined ? [`${path}.${key} is unknown`] : look(its, one, `${path}.${key}`);
    });
    return [...all, ...missing, ...inside];
  };
  const resource = schemas.resourceDefinitions[name];
  return resource === undefined ? [`there is no ${name}`] : look(resource, body, name);
}
