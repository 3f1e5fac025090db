/** What happens now: what needs a person, devices, pools, and jobs. */
import { useState } from 'react';
import { useLive, useServices, useTimed } from '../live/store.ts';
import type { World } from '../live/world.ts';
import { Icon, ToneIcon } from '../parts/icon.tsx';
import { type Concern, concerns } from '../words/attention.ts';
import { formatAge } from '../words/text.ts';
import { isBusy, isWaiting, poolCounts } from '../words/words.ts';
import { Devices } from './devices.tsx';
import { Jobs } from './jobs.tsx';
import { Pools } from './pools.tsx';

export function NowPage({ world }: { readonly world: World }) {
  return (
    <div className="now">
      <h1 className="unseen">Now</h1>
      <Summary world={world} />
      <div className="now-left">
        <Devices />
        <Pools />
      </div>
      <Jobs world={world} />
    </div>
  );
}

function Summary({ world }: { readonly world: World }) {
  const { pools, devices, jobs } = world;
  const { ticker } = useServices();
  // The text of some concerns counts seconds.
  useTimed((now) => Math.floor(now / 5_000));
  const found = concerns(world, ticker.now());
  const slots = pools.flatMap((pool) => pool.slots);
  const ready = pools.reduce((sum, pool) => sum + poolCounts(pool).ready, 0);
  const waiting = [...jobs.values()].filter(isWaiting);
  const oldest = waiting.reduce(
    (least, { submittedAt }) => Math.min(least, submittedAt ?? Number.POSITIVE_INFINITY),
    Number.POSITIVE_INFINITY,
  );
  const cards = devices.filter(({ uuid }) => !devices.some(({ parent }) => parent === uuid));
  const usable = cards.filter(({ state }) => state === 'free' || state === 'leased').length;
  return (
    <section aria-label="At a glance" className="summary">
      <dl className="tiles">
        <Tile name="Agents at work" value={`${slots.filter(isBusy).length}`} more={`of ${slots.length}`} />
        <Tile name="Ready for a job" value={`${ready}`} more={slots.length === 0 ? 'no pools' : 'at once'} />
        <Tile name="Jobs that wait" value={`${waiting.length}`} more={<Oldest at={oldest} />} />
        {cards.length > 0 && (
          <Tile
            name="Devices for jobs"
            value={`${usable}`}
            more={`of ${cards.length}`}
            tone={usable < cards.length ? 'warn' : 'ok'}
          />
        )}
      </dl>
      <Concerns found={found} />
    </section>
  );
}

function Oldest({ at }: { readonly at: number }) {
  const text = useTimed((now) => (Number.isFinite(at) ? `the longest for ${formatAge(now - at)}` : ''));
  return <>{text}</>;
}

function Tile({
  name,
  value,
  more,
  tone = 'ok',
}: {
  readonly name: string;
  readonly value: string;
  readonly more: React.ReactNode;
  readonly tone?: 'ok' | 'warn';
}) {
  return (
    <div className={`tile tile-${tone}`}>
      <dt>{name}</dt>
      <dd>
        <b>{value}</b> <span>{more}</span>
      </dd>
    </div>
  );
}

/** Shown at first. */
const concernsShown = 6;

function Concerns({ found }: { readonly found: readonly Concern[] }) {
  const [all, setAll] = useState(false);
  if (found.length === 0) {
    return (
      <p className="all-well">
        <Icon shape="check" /> Nothing needs a person.
      </p>
    );
  }
  const shown = all ? found : found.slice(0, concernsShown);
  return (
    <div className="concerns">
      <h2>{found.length === 1 ? 'One thing needs attention' : `${found.length} things need attention`}</h2>
      <ul>
        {shown.map(({ key, tone, subject, text, hint }) => (
          <li key={key} className={`concern tone-${tone}`}>
            <ToneIcon tone={tone} />
            <span>
              <b>{subject}</b> <bdi>{text.replace(/\.$/, '')}.</bdi>
              {hint !== null && <span className="hint"> {hint}</span>}
            </span>
          </li>
        ))}
      </ul>
      {found.length > shown.length && (
        <button type="button" className="quiet" onClick={() => setAll(true)}>
          Show {found.length - shown.length} more
        </button>
      )}
    </div>
  );
}

/** The world, or null before the first answer. */
export function useWorld(): World | null {
  return useLive(({ world }) => world);
}
