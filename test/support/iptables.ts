/** The firewall of this host as tests change it: in the flavour of iptables that its Engine uses, which need not be the default. */
import { spawnSync } from 'node:child_process';

/** The program in whose table the Engine has its chains. */
export function engineIptables(): string {
  const flavours = ['iptables', 'iptables-legacy', 'iptables-nft'];
  const hasEngine = (flavour: string): boolean =>
    /^:DOCKER /m.test(spawnSync(`${flavour}-save`, ['-t', 'filter'], { encoding: 'utf8' }).stdout ?? '');
  return flavours.find(hasEngine) ?? 'iptables';
}
