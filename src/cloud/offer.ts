/** An offer for people. */
import type { Offer } from './cloud.ts';

/** As `g6.xlarge (spot) in us-west-2a`. */
export function offerText({ type, spot, zone }: Offer): string {
  return `${type}${spot ? ' (spot)' : ''}${zone === null ? '' : ` in ${zone}`}`;
}
