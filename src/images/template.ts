/**
 * How the name of an image is put together, for each type of CI service: its agent may need another base than a plain one.
 */

/** Templates by type of CI service. A type that is not here takes the own queue's, and brings its agent itself. */
export const templates = {
  'own-queue': 'nvidia/cuda:{cuda}-{flavour}-{distribution}',
} as const satisfies Record<string, string>;

export const defaultTemplate: string = templates['own-queue'];

export function templateFor(serviceType: string): string {
  return Object.entries(templates).find(([type]) => type === serviceType)?.[1] ?? defaultTemplate;
}

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
