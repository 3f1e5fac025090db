/**
 * Tokens that stand inside a sandbox for those of the service. Each is a mark of what it is for, made with the installation's
 * key: it can be made again after a restart, and one that was made for another sandbox is worth nothing.
 */
import { timingSafeEqual } from 'node:crypto';
import { OnejobError } from '../../../errors.ts';
import type { AgentBook, AgentRecord, Aliases, AliasKind } from './record.ts';
import type { Seal } from './seal.ts';

const prefixes = { once: 'ojt', session: 'ojs', job: 'ojj' } as const satisfies Record<AliasKind, string>;
const kinds = new Map<string, AliasKind>([
  ['ojt', 'once'],
  ['ojs', 'session'],
  ['ojj', 'job'],
]);
const shape = /^(oj[tsj])_([a-z0-9-]{1,64})_([A-Za-z0-9-]{43})$/;

export function createAliases(book: Pick<AgentBook, 'get'>, seal: Pick<Seal, 'mark'>): Aliases {
  /** base64url, but without `_`, which parts the words of a token. The other way round nothing is read from it. */
  const markOf = (kind: AliasKind, { shown }: AgentRecord): string | null => {
    if (shown.agent === null) return null;
    return seal.mark(kind, shown.id, shown.agent).toString('base64url').replaceAll('_', '-');
  };
  return {
    make(kind, record) {
      const mark = markOf(kind, record);
      if (mark === null) throw new OnejobError('E_BUG', `Agent ${record.shown.id} has no sandbox, so no token can be made for it.`);
      return `${prefixes[kind]}_${record.shown.id}_${mark}`;
    },
    find(token) {
      const [, prefix = '', id = '', given = ''] = shape.exec(token) ?? [];
      const kind = kinds.get(prefix);
      const record = book.get(id);
      if (kind === undefined || record === null) return null;
      const mark = markOf(kind, record);
      return mark !== null && timingSafeEqual(Buffer.from(mark), Buffer.from(given)) ? { kind, record } : null;
    },
  };
}
