/** What caches give up when the disk they lie on is too full: what was not used for longest, and no more than is needed. */
import type { Known } from './cache-known.ts';

export interface RoomParts {
  /** Bytes that are missing on the disk; 0 or less when nothing is. */
  readonly lacking: () => Promise<number>;
  /** Those that no agent works in, counted. */
  readonly idle: () => Promise<readonly Known[]>;
  /** As it is known now. */
  readonly look: (path: string) => Known | undefined;
  /** Moves aside what was not used for longest until at most `target` bytes are left. */
  readonly cutDown: (path: string, target: number) => Promise<void>;
  /** Removes what was moved aside: only then the disk has it back. */
  readonly emptyTrash: () => Promise<void>;
}

/** Ends when enough is free, or nothing more may be taken. */
export async function giveRoom({ lacking, idle, look, cutDown, emptyTrash }: RoomParts): Promise<void> {
  if ((await lacking()) <= 0) return;
  // Perhaps it was on its way already.
  await emptyTrash();
  const oldest = [...(await idle())].sort((a, b) => a.size.used - b.size.used);
  for (const { place } of oldest) {
    for (;;) {
      const bytes = await lacking();
      if (bytes <= 0) return;
      const before = look(place.path);
      if (before === undefined || before.size.entries.length === 0) break;
      await cutDown(place.path, Math.max(0, before.size.bytes - bytes));
      // An agent came, or nothing can be moved.
      if ((look(place.path)?.size.entries.length ?? 0) === before.size.entries.length) break;
      await emptyTrash();
    }
  }
}
