/**
 * Texts for strangers: what stays in them is published already. A text is cut at spaces, quotes and brackets, and a piece of it stays only
 * if each of its words stands in onejob's own source, or is a small number. Any other piece, such as a path with a name, an address or a
 * token, becomes a mark, the same one for the same piece. Must never happen: that a piece stays because no rule has thought of it.
 */
import { globSync, readdirSync, readFileSync } from 'node:fs';
import { hostname, userInfo } from 'node:os';
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { attempt } from '../../base/errors.ts';
import { masked } from '../../ci/kit/masked.ts';
import { printable } from '../text.ts';

export interface PublicWords {
  /** A line or several, of anybody. */
  text(text: string): string;
  /** From now on a person's name never stays, in any spelling. */
  hide(name: string): void;
  /** Pieces that became marks, each counted once. */
  hidden(): number;
}

/** What a piece ends at, and is kept. */
const between = /([\s"'`()[\]{}<>,;|]+)/;
/** Letters, digits, and what joins them: the parts of `correct-horse` alone would say nothing. */
const joined = /[\p{L}\p{N}_-]+/gu;
/** Exit codes, sizes, ports and versions. Addresses and longer numbers may identify somebody. */
const number = /^\d{1,5}$/;
const ofPublic = /^[\p{L}\p{N}_./:=*+#%~!?&$^\\-]+$/u;
/** Addresses, home folders, and what is named a secret: whatever words they are made of. */
const personal = /\d+\.\d+\.\d+\.\d+|:\/\/|::|\/(home|users)\/|(pass\w*|pwd|secret|token|key|credential)\w*[=:]./i;
/** As random tokens are: also those of examples. */
const token = /^(?=.*\d)(?=.*\p{L}).{16,}$/u;
/** Digits in groups, as phone and card numbers are written. */
const grouped = /(?<![\d.])(?!\d{4}-\d\d-\d\d(?:[T ]|$))\d+(?:[ -]\d+)+(?![\d.])/g;
/** How tools say that there is nothing. */
const nothing = /^N\/A$/;
const time = /^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z?)?$/;
const version = /^v?\d{1,4}\.\d{1,4}(\.\d{1,5})?([+~-](alpha|beta|ce|dfsg|rc|ubuntu)\.?\d{0,2})?$/;
/** The next piece is a secret, whatever words it is made of. */
const announces = /(pass\w*|pwd|secret|token|key)[:=]$/i;
/** The rest of the line is a person, as in the log of Git. */
const introduces = /^(author|committer|[a-z-]+-by|user|username|login|logname|owner|sender)[:=]$/i;
/** Characters of a text that are looked at: the rest is its beginning, which matters less. */
const longest = 64 * 1024;

/** `people`: words that never stay, in any spelling. */
export function createPublicWords(people: readonly string[] = peopleOf(), known: ReadonlySet<string> = sourceWords()): PublicWords {
  const marks = new Map<string, string>();
  const never = new Set<string>();
  const hide = (name: string): void => {
    // Initials would take words such as "a" out of every text.
    const parts = [name, ...name.split(/[^\p{L}\p{N}]+/u)].filter((part) => part.length > 1);
    for (const part of parts) never.add(part.toLowerCase());
  };
  people.forEach(hide);
  const mark = (piece: string): string => {
    const made = marks.get(piece) ?? `<hidden-${marks.size + 1}>`;
    marks.set(piece, made);
    return made;
  };
  const isKnown = (word: string): boolean => {
    if (never.has(word.toLowerCase()) || word.split(/[_-]/).some((part) => never.has(part.toLowerCase()))) return false;
    if (number.test(word)) return true;
    if (/^\p{Lu}/u.test(word) && givenNames.has(word.toLowerCase())) return false;
    if (token.test(word)) return false;
    // Letters one by one spell anything.
    if (word.length < 2) return /^[aA]$/.test(word) || !/[\p{L}\p{N}]/u.test(word);
    return known.has(word) || (/^\p{Lu}?(\p{Ll}+|\p{Lu}+)$/u.test(word) && known.has(word.toLowerCase()));
  };
  const isPublic = (piece: string): boolean => {
    // No word of a message is so long, and the patterns below may take long for one.
    if (piece.length > 200) return false;
    if (time.test(piece) || nothing.test(piece)) return true;
    if (!ofPublic.test(piece)) return !/[\p{L}\p{N}@]/u.test(piece);
    const bare = piece.replace(/[.:!?]+$/, '');
    if (version.test(bare)) return true;
    return !personal.test(piece) && (piece.match(joined) ?? []).every(isKnown);
  };
  const line = (text: string): string => {
    const grouping = masked(text).replace(grouped, (digits) => (digits.replaceAll(/\D/g, '').length > 6 ? mark(digits) : digits));
    const pieces = grouping.split(between);
    // As in "the host's".
    const isEnding = (piece: string, at: number) => /^[st][.:]?$/.test(piece) && pieces[at - 1] === "'";
    const person = pieces.findIndex((piece) => introduces.test(piece));
    const isTold = (at: number) => announces.test(pieces[at - 2] ?? '') || (person >= 0 && at > person);
    const stays = (piece: string, at: number) => !isTold(at) && (isPublic(piece) || isEnding(piece, at));
    const isText = (piece: string, at: number) => at % 2 === 0 && piece !== '' && !/^hidden-\d+$/.test(piece);
    return pieces.map((piece, at) => (!isText(piece, at) || stays(piece, at) ? piece : mark(piece))).join('');
  };
  return {
    text: (text) =>
      stripVTControlCharacters(text)
        .slice(-longest)
        .split('\n')
        .map((each, at) => line(printable(at === 0 && text.length > longest ? each.replace(/^\S*/, '') : each)))
        .join('\n'),
    hide,
    hidden: () => marks.size,
  };
}

/** People of this host, its name and the names in its home folders: words of the source may be names, too. */
export function peopleOf(accounts = attempt(() => readFileSync('/etc/passwd', 'utf8')) ?? ''): string[] {
  const ofPeople = accounts.split('\n').flatMap((line) => {
    const [name = '', , uid, , comment = ''] = line.split(':');
    return Number(uid) >= 1000 && Number(uid) < 65_534 ? [name, ...comment.split(/[\s,]+/)] : [];
  });
  const own = attempt(() => userInfo());
  const self = own === null || own.uid < 1000 ? [] : [own.username];
  const homes = attempt(() => readdirSync('/home')) ?? [];
  return [...ofPeople, ...self, ...homes, ...hostname().split('.'), ...examples].filter(
    (name) => name !== '' && name !== 'localhost',
  );
}

/** People in the examples of the source. */
const examples = ['ada', 'alice', 'bob', 'carol', 'dave', 'eve', 'grace', 'mallory'];

/** Given names that are words of the source, too. With a capital they are taken for names. */
const givenNames = new Set(
  'art april basil bill carol chase chip clay cliff dean drew frank grace grant guy hope iris jack jade joy june mark max may miles norm pat penny peg ray rich rob rose ruby sandy sky sue victor will'.split(
    ' ',
  ),
);

let words: ReadonlySet<string> | null = null;

/** Every word of onejob's published source. */
function sourceWords(): ReadonlySet<string> {
  if (words !== null) return words;
  const root = join(import.meta.dirname, '..', '..');
  const files = globSync('**/*.{ts,js,json}', { cwd: root, exclude: (name) => /\.test\.ts$|^(web|share)$/.test(name) });
  const found = new Set<string>();
  for (const file of files) for (const word of readFileSync(join(root, file), 'utf8').match(joined) ?? []) found.add(word);
  for (const word of [...found]) found.add(word.toLowerCase());
  words = found;
  return words;
}
