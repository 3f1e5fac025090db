/** A way from the containers of a private Engine, which has a network namespace of its own, to a listener of this host. */
import { execFileSync } from 'node:child_process';
import type { PrivateEngine } from './dockerd.ts';

/**
 * Address of this host that the Engine's containers reach; needs root, and the Engine to run. It is gone with the Engine's
 * network namespace. Each Engine has a network of its own, out of the range for tests (RFC 2544).
 */
export function wayOutOf({ pid }: Pick<PrivateEngine, 'pid'>): string {
  const turn = (pid ?? 0) % 32_768;
  const at = (last: number) => `198.${18 + (turn >> 14)}.${(turn >> 6) & 255}.${((turn & 63) << 2) + last}`;
  const [out, into] = [`ojo${pid}`, `oji${pid}`];
  const ip = (...words: readonly string[]) => execFileSync('ip', words);
  const inside = (...words: readonly string[]) => execFileSync('nsenter', [`--net=/proc/${pid}/ns/net`, 'ip', ...words]);
  ip('link', 'add', out, 'type', 'veth', 'peer', 'name', into, 'netns', String(pid));
  ip('address', 'add', `${at(1)}/30`, 'dev', out);
  ip('link', 'set', out, 'up');
  inside('address', 'add', `${at(2)}/30`, 'dev', into);
  inside('link', 'set', into, 'up');
  return at(1);
}
