/** The XML that EC2 and STS answer with, as a tree. Attributes and namespaces are ignored. */
import { SaxesParser } from 'saxes';

export interface Xml {
  readonly name: string;
  /** Its own text, without that of its children. */
  readonly text: string;
  readonly children: readonly Xml[];
}

/** Nothing that AWS sends is nested deeper than about 12. */
const deepest = 64;

/** null: not well-formed. */
export function readXml(document: string): Xml | null {
  type Open = { name: string; text: string; children: Xml[] };
  const root: Open = { name: '', text: '', children: [] };
  const open: Open[] = [root];
  const parser = new SaxesParser({ position: false });
  parser.on('error', (error) => {
    throw error;
  });
  parser.on('opentag', ({ name }) => {
    if (open.length > deepest) throw new Error('nested too deep');
    const one: Open = { name, text: '', children: [] };
    open.at(-1)?.children.push(one);
    open.push(one);
  });
  parser.on('text', (text) => {
    const one = open.at(-1);
    if (one !== undefined) one.text += text;
  });
  parser.on('closetag', () => void open.pop());
  try {
    parser.write(document).close();
  } catch {
    return null;
  }
  return root.children[0] ?? null;
}

/** The element at a path such as `placement/availabilityZone`. */
export function at(xml: Xml | undefined, path: string): Xml | undefined {
  return path.split('/').reduce<Xml | undefined>((one, name) => one?.children.find((child) => child.name === name), xml);
}

/** The text of the element at a path; null if it is absent or empty. */
export function textAt(xml: Xml | undefined, path: string): string | null {
  return at(xml, path)?.text.trim() || null;
}

/** The items of the list at a path. */
export function itemsAt(xml: Xml | undefined, path: string): readonly Xml[] {
  return at(xml, path)?.children.filter(({ name }) => name === 'item') ?? [];
}
