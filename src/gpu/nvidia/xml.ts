/**
 * `nvidia-smi -q -x`. An output that is not well-formed to its end is not whole, but complete `<gpu>` blocks in it are kept.
 * Elements are identified by their full path, any may be missing, and unknown ones are ignored.
 */
import { SaxesParser } from 'saxes';
import { type Block, type GpuReading, headOf, newBlock, nothingRead, type Reading, take } from './reading.ts';

const root = 'nvidia_smi_log';

/** Whether the text contains such an output, complete or not. */
export function looksLikeXml(text: string): boolean {
  return text.includes(`<${root}`) || text.includes(`</${root}>`) || /<gpu id="/.test(text);
}

/** Never throws. If there are several documents, the last complete one counts. */
export function readXml(text: string): Reading {
  const { document, rest, ended } = cutOut(calmNames(text));
  if (document === '') return { ...nothingRead, rest };
  const straight = walk(document);
  const whole = ended && straight.wellFormed;
  const { header, gpus } = whole ? straight : salvage(document);
  return { ...nothingRead, ...headOf(header), gpus, whole, rest };
}

/** The document, and what was printed around it. */
export function cutOut(text: string): { document: string; rest: string; ended: boolean } {
  const closing = `</${root}>`;
  const last = text.lastIndexOf(closing);
  const ended = last >= 0;
  const end = ended ? last + closing.length : text.length;
  let start = text.lastIndexOf(`<${root}`, end - closing.length);
  if (start < 0) start = text.indexOf('<gpu ');
  if (start < 0 || start >= end) return { document: '', rest: text, ended: false };
  // Instructions before the root do not matter, and an incomplete one must not spoil the rest.
  const before = text.slice(0, start).replace(/<\?xml[^>]*>|<!DOCTYPE[^>]*>/g, '');
  return {
    document: text.slice(start, end),
    rest: `${before}\n${text.slice(end)}`,
    ended: ended && text.startsWith(`<${root}`, start),
  };
}

/** A line with nothing but a process name, up to the last closing tag. */
const nameLine = /(?<![^\n])([^\S\n]*<process_name>)([^\n]*)(?=<\/process_name>[^\S\n]*(?![^\n]))/g;

/**
 * The text with escaped process names. A job chooses the name of its process: one called `</gpu>` must neither break the list
 * of all GPUs nor add one to it. The tool prints each name on its own line.
 */
export function calmNames(document: string): string {
  return document.replace(nameLine, (_, before: string, name: string) => before + escapeText(name));
}

function escapeText(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they may not stand in XML, but may in a name
  const legal = text.replace(/[\u0000-\u001f\ufffe\uffff]/g, '?');
  const escaped = legal.replace(/&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-f]{1,6});)/gi, '&amp;');
  return escaped.replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

/** No output is nested deeper than 7; each level costs the length of its path. */
const deepest = 32;

/** Everything up to the first error: closed blocks. `wellFormed`: no block lacks its end, or has parts of two GPUs. */
function walk(document: string) {
  const header = new Map<string, string>();
  const gpus: GpuReading[] = [];
  const paths: string[] = [];
  let block: Block | null = null;
  let spoilt = false;
  let text = '';

  const leaf = (path: string, value: string): void => {
    if (block === null) {
      if (!header.has(path)) header.set(path, value);
      return;
    }
    if (path === 'processes') {
      if (value !== '') block.processes = null;
      return;
    }
    // Two of them in one block: lines between two GPUs are missing, and this is neither.
    if (path === 'uuid' && block.facts.uuid !== undefined && block.facts.uuid !== value) spoilt = true;
    take(block, path, value);
  };

  const parser = new SaxesParser({ position: false });
  // Nothing after an error is read: it may be anything.
  const stop = (): never => {
    throw new Error('not well-formed');
  };
  parser.on('error', stop);
  parser.on('opentag', (tag) => {
    text = '';
    if (paths.length === 1 && tag.name === 'gpu') {
      const id = tag.attributes.id;
      block = newBlock(typeof id === 'string' ? { pciId: id } : {});
      paths.push('');
      return;
    }
    if (paths.length > deepest) stop();
    const parent = paths.at(-1) ?? '';
    const path = paths.length === 0 ? '' : parent === '' ? tag.name : `${parent}/${tag.name}`;
    paths.push(path);
    if (block === null) return;
    if (path === 'mig_devices/mig_device') block.instances.push({});
    else if (path === 'processes') block.processes = [];
    else if (path === 'processes/process_info') block.processes?.push({});
  });
  parser.on('text', (more) => {
    text += more;
  });
  parser.on('closetag', () => {
    const path = paths.pop() ?? '';
    if (path !== '') leaf(path, text.trim());
    else if (block !== null && paths.length === 1) {
      if (spoilt) stop();
      gpus.push({ ...block, depth: 'state' });
      block = null;
    }
    text = '';
  });
  try {
    parser.write(document).close();
    return { header, gpus, wellFormed: true };
  } catch {
    return { header, gpus, wellFormed: false };
  }
}

const mostBlocks = 1024;

/** What an incomplete document still contains: its head, and each complete block. */
function salvage(document: string) {
  const starts = [...document.matchAll(/<gpu[\s>]/g)].map((match) => match.index);
  const first = starts[0] ?? document.length;
  const { header } = walk(document.slice(0, first));
  const gpus = starts.slice(0, mostBlocks).flatMap((start, at) => {
    const block = document.slice(start, starts[at + 1]);
    const end = block.indexOf('</gpu>');
    if (end < 0) return [];
    const alone = walk(`<${root}>${block.slice(0, end)}</gpu></${root}>`);
    return alone.wellFormed ? alone.gpus : [];
  });
  return { header, gpus };
}
