/** `onejob image choose`: the image that fits the GPUs of this host or of a recorded one, and why. Needs no daemon. */
import { resolve } from 'node:path';
import { chooseImage, type Step } from '../images/choose.ts';
import { type Arch, archOf, type Flavour, readPlatform, recordedHost } from '../images/request.ts';
import { builtInTables, readTables } from '../images/tables.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { colorWanted } from './output.ts';
import type { Session } from './session.ts';
import { type Colors, createColors, hang, printable, widthOf } from './text.ts';

export interface ImageFlags {
  readonly explain?: boolean;
  readonly from?: string;
  readonly device?: readonly string[];
  readonly flavour: Flavour;
  readonly distribution?: string;
  readonly arch?: Arch;
  readonly tables?: string;
}

/** Prints only the image on standard output, for scripts; 1 when no image fits. */
export async function showImage(session: Session, flags: ImageFlags): Promise<number> {
  const { output, context } = session;
  const tables = flags.tables === undefined ? builtInTables : await readTables(resolve(context.cwd, flags.tables));
  const { inventory, ...where } = await (flags.from === undefined
    ? thisHost(session, flags)
    : recorded(session, flags.from, flags));
  const { flavour, distribution = null, device } = flags;
  const request = { ...where, inventory, flavour, distribution };
  const { image, steps, problem } = chooseImage(device === undefined ? request : { ...request, devices: device }, tables);
  const code = image === null ? exitCodes.failed : exitCodes.ok;
  if (output.json) {
    await output.value({ image, problem, steps });
    return code;
  }
  if (flags.explain === true) await explain(session, steps);
  else if (image !== null && !inventory.complete && device === undefined) {
    output.say('not all devices could be read; the image suits those that were; see --explain');
  }
  if (image !== null) await output.print(printable(image));
  if (problem !== null) output.say(problem);
  return code;
}

async function thisHost({ context }: Session, { arch: asked }: ImageFlags) {
  const arch = asked ?? archOf(process.arch);
  if (arch === null) {
    const hint = 'Choose an image for another architecture with --arch.';
    throw wrongUsage(`No image is published for the architecture of this host, ${process.arch}.`, hint);
  }
  const { createProbe } = await import('../gpu/probe.ts');
  using probe = createProbe({ path: context.variables.PATH ?? '' });
  const [inventory, platform] = await Promise.all([probe.look(), readPlatform(arch)]);
  return { inventory, arch, archFrom: asked === undefined ? 'this host' : '--arch', platform };
}

async function recorded({ context }: Session, path: string, { arch: asked }: ImageFlags) {
  const { readRecording } = await import('../gpu/recording.ts');
  const inventory = await readRecording(resolve(context.cwd, path));
  const host = recordedHost(inventory);
  return { inventory, ...host, ...(asked === undefined ? {} : { arch: asked, archFrom: '--arch' }) };
}

async function explain({ context, output }: Session, steps: readonly Step[]): Promise<void> {
  const { stderr, environment } = context;
  const colors = createColors(colorWanted(environment) ?? stderr.isTTY === true);
  const lines = explainLines(steps, colors, stderr.isTTY === true ? (stderr.columns ?? 80) : null);
  await output.write('stderr', Buffer.from(`${lines.join('\n')}\n`));
}

/** `width`: null for a pipe, where lines are not wrapped. */
export function explainLines(steps: readonly Step[], colors: Colors, width: number | null): string[] {
  const names = Math.max(...steps.map((each) => widthOf(each.about)));
  const numbers = `${steps.length}`.length;
  return steps.flatMap(({ about, known, from, rulesOut, verified }, at) => {
    const lead = `${`${at + 1}`.padStart(numbers)}. ${colors.bold(about)}${' '.repeat(names - widthOf(about))}  `;
    const below = ' '.repeat(widthOf(lead));
    return [
      ...hang(lead, printable(verified ? known : `${known} (no source confirms this)`), width),
      ...hang(below, `from ${printable(from)}`, width).map(colors.dim),
      ...(rulesOut === null ? [] : hang(below, `rules out ${printable(rulesOut)}`, width).map(colors.yellow)),
    ];
  });
}
