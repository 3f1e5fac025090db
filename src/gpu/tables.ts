/** Data about CUDA, drivers, GPUs and images: `cuda.json`, or a newer copy that the owner names, validated before use. */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { messageOf, OnejobError } from '../base/errors.ts';
import builtIn from './cuda.json' with { type: 'json' };

const cuda = z.string().regex(/^\d+\.\d+$/, 'expected a CUDA version such as "12.4"');
const release = z.string().regex(/^\d+\.\d+\.\d+$/, 'expected a point release such as "12.4.1"');
const driver = z.string().regex(/^\d+(\.\d+)*$/, 'expected a driver version such as "550.54.14"');
const word = z.string().regex(/^[a-z][a-z0-9.]*$/, 'expected a name as in a tag, such as "ubuntu24.04"');
const branch = z.int().positive();
/** Whether a source confirms it. */
const verified = z.boolean();

/** Hosts that the image's own check, `NVIDIA_REQUIRE_CUDA`, accepts although their CUDA is older than the image's. */
const gate = z.strictObject({ brands: z.string(), branches: z.array(branch) });

/** null: the check requires only the CUDA version. */
const published = z.strictObject({ distributions: z.array(word).nonempty(), gate: gate.nullable() });

const schema = z.strictObject({
  format: z.literal(1, 'this onejob reads format 1'),
  date: z.iso.date(),
  sources: z.record(z.string(), z.string()),
  /** `any`: the oldest driver that runs it at all; `own`: the one it was released with, which has all of its features. */
  toolkits: z.array(z.strictObject({ cuda, any: driver, own: driver, verified })),
  /** Newest CUDA of each branch of the driver, from the oldest branch on. */
  branches: z.array(z.strictObject({ driver: branch, cuda, verified })).nonempty(),
  /** `last`, and `lastDriver` (a branch): null while the newest still supports it. */
  generations: z.array(
    z.strictObject({
      name: z.string(),
      compute: z.array(cuda).nonempty(),
      first: cuda,
      last: cuda.nullable(),
      lastDriver: branch.nullable(),
      /** The GPU of a Jetson before Thor, which cannot use images for servers. */
      platform: z.literal('l4t').optional(),
      verified,
    }),
  ),
  brands: z.record(z.string(), z.array(z.string())),
  images: z.array(
    z.strictObject({
      cuda,
      tag: release,
      flavours: z.array(z.enum(['base', 'runtime', 'devel'])),
      amd64: published.optional(),
      arm64: published.optional(),
      source: z.string(),
      verified,
    }),
  ),
  preferred: z.tuple([word], word),
  plain: z.record(word, z.string()),
});

export type Tables = z.infer<typeof schema>;
export type PublishedImage = Tables['images'][number];
export type Generation = Tables['generations'][number];
export type Gate = z.infer<typeof gate>;

const whole = schema.superRefine((tables, context) => {
  const miss = (path: (string | number)[], message: string) => context.addIssue({ code: 'custom', path, message });
  for (const [at, image] of tables.images.entries()) {
    if (!image.tag.startsWith(`${image.cuda}.`)) miss(['images', at, 'tag'], `is not a release of CUDA ${image.cuda}`);
    if (!tables.toolkits.some((each) => each.cuda === image.cuda))
      miss(['images', at, 'cuda'], `has no row in "toolkits", so the driver it needs is unknown`);
    if (tables.sources[image.source] === undefined) miss(['images', at, 'source'], 'is not in "sources"');
    for (const arch of ['amd64', 'arm64'] as const) {
      const brands = image[arch]?.gate?.brands;
      if (brands !== undefined && tables.brands[brands] === undefined)
        miss(['images', at, arch, 'gate', 'brands'], 'is not in "brands"');
    }
  }
  const [best] = tables.preferred;
  if (tables.plain[best] === undefined) miss(['preferred', 0], 'has no image in "plain"');
});

/** @throws OnejobError E_IMAGE_TABLES with all problems at once. `where` names the tables in it. */
export function parseTables(value: unknown, where: string): Tables {
  const { data, error } = whole.safeParse(value);
  if (data !== undefined) return data;
  const shown = error.issues.slice(0, 10).map((issue) => `  ${issue.path.join('.') || '(top)'}: ${issue.message}`);
  const more = error.issues.length > shown.length ? [`  and ${error.issues.length - shown.length} more`] : [];
  const hint = 'Start from a copy of gpu/cuda.json, which is part of onejob; docs/images.md explains each part.';
  throw new OnejobError('E_IMAGE_TABLES', [`The image tables in ${where} are invalid:`, ...shown, ...more].join('\n'), { hint });
}

export const builtInTables: Tables = parseTables(builtIn, 'src/gpu/cuda.json');

/** @throws OnejobError E_IMAGE_TABLES when the file cannot be read or is invalid */
export async function readTables(path: string): Promise<Tables> {
  let value: unknown;
  try {
    value = JSON.parse(await readFile(path, 'utf8'));
  } catch (cause) {
    const hint = 'Name a JSON file like gpu/cuda.json, which is part of onejob, or omit --tables.';
    throw new OnejobError('E_IMAGE_TABLES', `Cannot read the image tables in "${path}": ${messageOf(cause)}.`, { hint, cause });
  }
  return parseTables(value, `"${path}"`);
}
