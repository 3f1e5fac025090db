/** What kind of thing a value is, in the words of a YAML file. */
export function describeKind(found: unknown): string {
  if (found === null || found === undefined) return 'nothing';
  if (Array.isArray(found)) return 'a list';
  switch (typeof found) {
    case 'object':
      return 'a map';
    case 'string':
      return 'a text';
    case 'number':
      return 'a number';
    case 'boolean':
      return 'true or false';
    default:
      return 'something else';
  }
}
