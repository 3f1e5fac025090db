/**
 * NVIDIA's cards for an agent with an engine of its own, as NVIDIA itself describes them: the host's CDI specification, which `nvidia-ctk cdi
 * generate` writes, lists the nodes of each card and the files of the driver. The container of the engine gets exactly these, one by one, and
 * no tool of NVIDIA's ever touches it: they mount into its /proc, and then the kernel lets no engine in it mount a /proc for a container.
 * So hooks of the specification are left out, and also what is neither a node nor a file: sockets of the host's services.
 *
 * https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md; NVIDIA/nvidia-container-toolkit, `pkg/nvcdi` (what is in it)
 */
import { readdir, readFile, realpath, stat } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { attempt } from '../../base/errors.ts';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { notGrantable, numbersOf } from './devices.ts';

/** Where specifications are; the first that names a card counts, as for every reader of them. */
export const specFolders: readonly string[] = ['/var/run/cdi', '/etc/cdi'];
/** What makes one. */
const generate = (file = '/etc/cdi/nvidia.yaml') => `nvidia-ctk cdi generate --output=${file}`;
/** Bytes of the largest file that is read, and how many files of a folder. */
const [mostBytes, mostFiles] = [4 * 2 ** 20, 64];

/** Also inside it is listed one a line, two in a line. */
const path = z.string().regex(/^(?!.*\/\.\.?(?:\/|$))\/[\w./+:@=,~-]+$/);
const nodeSchema = z.object({
  path: path.startsWith('/dev/'),
  hostPath: path.optional(),
  major: z.int().optional(),
  minor: z.int().optional(),
});
const editsSchema = z.object({
  env: z.array(z.string().regex(/^\w+=[^\0\n]*$/)).default([]),
  deviceNodes: z.array(nodeSchema).default([]),
  mounts: z.array(z.object({ hostPath: path, containerPath: path })).default([]),
});
const specSchema = z.object({
  kind: z.literal('nvidia.com/gpu'),
  devices: z.array(z.object({ name: z.string(), containerEdits: editsSchema })),
  containerEdits: editsSchema.prefault({}),
});
type Specification = z.infer<typeof specSchema> & { readonly file: string };

/** A path in a container, and what is there: of this host for an engine, of the engine for its containers. */
export interface Bind {
  readonly from: string;
  readonly to: string;
}

/** What an agent has of its cards. */
export interface Cards {
  /** Nodes of this host, and their paths inside: the most that anything in the engine can open. */
  readonly nodes: readonly Bind[];
  /** Paths of the nodes of each card alone, by its UUID, in the order in which NVIDIA's tools count. */
  readonly own: readonly (readonly [uuid: string, nodes: readonly string[]])[];
  /** Files of the driver. */
  readonly files: readonly Bind[];
  /** More names of such files in their folders, which this host's linker has made. */
  readonly links: readonly Bind[];
  readonly env: readonly string[];
}

export const noCards: Cards = { nodes: [], own: [], files: [], links: [], env: [] };

/** The specifications of NVIDIA's cards. What is damaged, or of others, is left out. Never throws. */
async function specifications(folders: readonly string[]): Promise<Specification[]> {
  const read = async (file: string): Promise<Specification[]> => {
    const about = await stat(file).catch(() => null);
    if (about === null || !about.isFile() || about.size > mostBytes) return [];
    const text = await readFile(file, 'utf8').catch(() => '');
    const found = specSchema.safeParse(attempt(() => parse(text))).data;
    return found === undefined ? [] : [{ ...found, file }];
  };
  const inFolder = async (folder: string): Promise<Specification[]> => {
    const names = (await readdir(folder).catch((): string[] => [])).filter((name) => /\.(ya?ml|json)$/.test(name)).sort();
    return (await Promise.all(names.slice(0, mostFiles).map((name) => read(join(folder, name))))).flat();
  };
  return (await Promise.all(folders.map(inFolder))).flat();
}

/** Why this host cannot give cards to such agents, as the end of a sentence with what to type; null if it can, or has no cards of NVIDIA's. */
export async function cardsObstacle(folders = specFolders, node = '/dev/nvidiactl'): Promise<string | null> {
  if ((await stat(node).catch(() => null)) === null || (await specifications(folders)).length > 0) return null;
  return `there is no CDI specification of NVIDIA's cards; as root, type "${generate()}"`;
}

/** Cards of the lease. @throws OnejobError E_DEVICES_REFUSED with the reason if this host cannot give exactly these */
export async function cardsOf(spec: SandboxSpec, folders = specFolders): Promise<Cards> {
  const leased = spec.devices.filter(({ vendor }) => vendor === 'nvidia');
  if (leased.length === 0) return noCards;
  const refused = (why: string, file?: string) =>
    notGrantable(spec, why, `As root, type "${generate(file)}", as after each change of the driver or of MIG instances.`);
  const known = await specifications(folders);
  const found = leased
    .toSorted((a, b) => (a.pciId ?? '').localeCompare(b.pciId ?? '') || (a.index ?? 0) - (b.index ?? 0))
    .map(({ uuid, minor }) => {
      if (minor === null) throw notGrantable(spec, `the driver names no node of ${uuid}`, 'Use a pool without "containers".');
      for (const { devices, containerEdits, file } of known) {
        const device = devices.find(({ name }) => name.toLowerCase() === uuid.toLowerCase());
        if (device !== undefined) return { uuid, own: device.containerEdits, shared: containerEdits, file };
      }
      throw refused(`no CDI specification in ${folders.join(' or ')} names ${uuid}`);
    });
  const all = [...new Set(found.map(({ shared }) => shared)), ...found.map(({ own }) => own)];
  const nodes = new Map(all.flatMap(({ deviceNodes }) => deviceNodes.map((node) => [node.path, node])));
  for (const node of nodes.values()) {
    const why = await nodeTrouble(node);
    if (why !== null) throw refused(`${node.hostPath ?? node.path}, which its CDI specification names, ${why}`, found[0]?.file);
  }
  const files: Bind[] = [];
  for (const { hostPath, containerPath } of new Map(
    all.flatMap(({ mounts }) => mounts.map((one) => [one.containerPath, one])),
  ).values()) {
    if (/^\/(proc|sys|dev)\//.test(containerPath))
      throw refused(
        `its CDI specification mounts ${containerPath}, and an engine with such a mount can start no containers`,
        found[0]?.file,
      );
    const about = await stat(hostPath).catch(() => null);
    if (about === null) throw refused(`${hostPath}, which its CDI specification names, is not there`, found[0]?.file);
    if (about.isFile()) files.push({ from: hostPath, to: containerPath });
  }
  const links = (await Promise.all(files.map(linksTo))).flat();
  return {
    nodes: [...nodes.values()].map(({ path: to, hostPath: from = to }) => ({ from, to })),
    own: found.map(({ uuid, own }) => [uuid, own.deviceNodes.map((node) => node.path)]),
    files,
    links: links.filter((link) => files.every((file) => file.to !== link.to)),
    // Which cards there are, sandboxes are told by their runtime.
    env: [...new Set(all.flatMap(({ env }) => env))].filter((one) => !one.startsWith('NVIDIA_VISIBLE_DEVICES=')),
  };
}

async function nodeTrouble({ path: name, hostPath = name, major, minor }: z.infer<typeof nodeSchema>): Promise<string | null> {
  const about = await stat(hostPath).catch(() => null);
  if (about === null) return 'is not there';
  const is = numbersOf(about.rdev);
  const isSame = about.isCharacterDevice() && is.major === (major ?? is.major) && is.minor === (minor ?? is.minor);
  return isSame ? null : 'is another device by now';
}

/** `libcuda.so` and `libcuda.so.1` for `libcuda.so.580.95.05`. */
async function linksTo({ from, to }: Bind): Promise<Bind[]> {
  const [stem = '', suffix] = basename(from).split('.so');
  if (suffix === undefined) return [];
  const real = await realpath(from);
  const entries = await readdir(dirname(from), { withFileTypes: true });
  const links = entries.filter((entry) => entry.isSymbolicLink() && entry.name.startsWith(`${stem}.so`));
  const same = async (name: string) => (await realpath(join(dirname(from), name)).catch(() => null)) === real;
  const found = await Promise.all(
    links.map(async ({ name }) => ((await same(name)) ? [{ from: to, to: join(dirname(to), name) }] : [])),
  );
  return found.flat();
}
