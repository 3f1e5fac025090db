/** How the name of an image is put together. */

/** Where the type of the CI service has none of its own. */
export const defaultTemplate = 'nvidia/cuda:{cuda}-{flavour}-{distribution}';

export interface TemplateValues {
  /** Point release, such as `12.9.1`. */
  readonly cuda: string;
  readonly flavour: string;
  readonly distribution: string;
  readonly arch: string;
}

/** The image's name, or what the template asks for that there is not. */
export function fillTemplate(template: string, values: TemplateValues): { readonly image: string } | { readonly unknown: string } {
  const known = new Map<string, string>(Object.entries(values));
  const unknown = [...template.matchAll(/\{([^}]*)\}/g)].find(([, name = '']) => !known.has(name))?.[0];
  if (unknown !== undefined) return { unknown };
  return { image: template.replaceAll(/\{([^}]*)\}/g, (whole, name: string) => known.get(name) ?? whole) };
}
