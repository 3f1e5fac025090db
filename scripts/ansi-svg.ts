/**
 * Terminal text with colours as an SVG picture of a dark window. Every run of letters is stretched to its columns, so that
 * columns line up in whatever monospace font the reader has.
 */

export interface PictureOptions {
  readonly columns: number;
  /** What stands in the window's bar, and what a screen reader says. */
  readonly title: string;
}

interface Style {
  readonly bold: boolean;
  readonly dim: boolean;
  /** SGR number of the foreground; null for the usual one. */
  readonly color: number | null;
}

const plain: Style = { bold: false, dim: false, color: null };
const [letter, line, size, margin, bar] = [8.4, 20, 14, 18, 36];
const fonts = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace";
const usual = '#d6deeb';
const palette: Readonly<Record<number, string>> = { 31: '#ff7b72', 32: '#7ee787', 33: '#f2cc60', 34: '#79c0ff', 36: '#76e3ea' };

/** @throws RangeError for an escape sequence other than colours, which would be drawn wrongly */
export function ansiToSvg(text: string, { columns, title }: PictureOptions): string {
  const lines = text.trimEnd().split('\n');
  const width = Math.round(columns * letter + 2 * margin);
  const height = bar + lines.length * line + margin;
  let style = plain;
  const drawn = lines.map((each, row) => {
    const runs: string[] = [];
    let column = 0;
    // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
    for (const [part] of each.matchAll(/\u001b\[[0-9;]*m|[^\u001b]+|\u001b/g)) {
      if (part.startsWith('\u001b')) style = restyled(style, part);
      else {
        runs.push(run(part, column, style));
        column += [...part].length;
      }
    }
    return `<text y="${bar + (row + 1) * line - 5}">${runs.join('')}</text>`;
  });
  const dots = ['#ff5f57', '#febc2e', '#28c840'].map((fill, at) => `<circle cx="${22 + at * 20}" cy="18" r="6" fill="${fill}"/>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">
<title>${xml(title)}</title>
<rect width="${width}" height="${height}" rx="10" fill="#0d1117"/>
${dots.join('')}
<g font-family="${fonts}" font-size="${size}" fill="${usual}">
<text x="${width / 2}" y="23" text-anchor="middle" fill="#8b949e" font-size="13">${xml(title)}</text>
${drawn.join('\n')}
</g>
</svg>
`;
}

/** Each piece between wide blanks is drawn by itself, as not everything that shows SVG keeps blanks apart. */
function run(text: string, column: number, { bold, dim, color }: Style): string {
  const fill = color === null ? '' : ` fill="${palette[color] ?? usual}"`;
  const look = `${fill}${bold ? ' font-weight="bold"' : ''}${dim ? ' opacity="0.65"' : ''}`;
  return [...text.matchAll(/\S+(?: \S+)*/g)]
    .map(({ 0: piece, index }) => {
      const x = margin + (column + [...text.slice(0, index)].length) * letter;
      const length = [...piece].length * letter;
      return `<tspan x="${x.toFixed(1)}" textLength="${length.toFixed(1)}"${look}>${xml(piece)}</tspan>`;
    })
    .join('');
}

function restyled(before: Style, sequence: string): Style {
  if (!sequence.endsWith('m')) throw new RangeError(`not a colour: ${JSON.stringify(sequence)}`);
  let { bold, dim, color } = before;
  for (const code of sequence.slice(2, -1).split(';').map(Number)) {
    if (code === 0) [bold, dim, color] = [false, false, null];
    else if (code === 1) bold = true;
    else if (code === 2) dim = true;
    else if (code === 22) [bold, dim] = [false, false];
    else if (code === 39) color = null;
    else if (code === 49)
      continue; // the usual background, the only one there is
    else if (code in palette || code === 37) color = code;
    else throw new RangeError(`no colour is known as ${code}`);
  }
  return { bold, dim, color };
}

function xml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
