/** Pools with their numbers, why they start less than they could, and every agent in its slot. */
import { memo, type ReactNode, useState } from 'react';
import { path, post } from '../api.ts';
import { useLive, useMay, useNamed, useTimed } from '../live/store.ts';
import { type Question, useAsk } from '../parts/dialog.tsx';
import { Badge, ToneIcon } from '../parts/icon.tsx';
import { Menu } from '../parts/menu.tsx';
import { Age } from '../parts/time.tsx';
import { historyHref, jobHref } from '../route.ts';
import type { Pool, Slot } from '../views.ts';
import { plain, plural } from '../words/text.ts';
import { isBusy, isClosed, jobName, poolCounts, poolProblems, slotState } from '../words/words.ts';

export function Pools() {
  const pools = useLive(({ world }) => world?.pools) ?? [];
  return (
    <section aria-labelledby="pools" className="panel">
      <h2 id="pools">
        Pools <span className="count">{pools.length}</span>
      </h2>
      {pools.length === 0 && <p className="nothing">There are no pools.</p>}
      {pools.map((pool) => (
        <PoolBox key={pool.name} pool={pool} />
      ))}
    </section>
  );
}

/** A pool with more slots shows one cell each. */
const rowsAtMost = 16;

const PoolBox = memo(function PoolBox({ pool }: { readonly pool: Pool }) {
  const [rows, setRows] = useState<boolean | null>(null);
  const asRows = rows ?? pool.slots.length <= rowsAtMost;
  const { wanted, ready, busy } = poolCounts(pool);
  const problems = useTimed((now) =>
    poolProblems(pool, now)
      .map(({ brief }) => brief)
      .join('\n'),
  );
  const may = useMay();
  const name = plain(pool.name);
  return (
    <section className="pool" aria-label={`Pool ${name}`}>
      <div className="pool-head">
        <h3>
          <bdi>{name}</bdi>
        </h3>
        <span className="pool-facts">
          {plain(pool.service)} on {plain(pool.runtime)}
          {pool.image !== undefined && (
            <>
              , <bdi className="mono">{plain(pool.image)}</bdi>
            </>
          )}
        </span>
        {may && <PoolMenu pool={pool} />}
      </div>
      <dl className="counts">
        <Count name="wanted" value={wanted} />
        <Count name="ready" value={ready} />
        <Count name="busy" value={busy} />
        <Count name="waiting" value={pool.waiting ?? '?'} />
        {pool.held !== undefined && (
          <Count name="failed and held" value={<a href={historyHref({ pool: pool.name, failed: 'true' })}>{pool.held}</a>} />
        )}
        {pool.devices !== null && <Count name="have devices" value={`${pool.devices.ready}/${pool.devices.wanted}`} />}
      </dl>
      {problems !== '' && (
        <ul className="pool-problems">
          {problems.split('\n').map((problem) => (
            <li key={problem} className={`concern tone-${pool.backoff === null ? 'warn' : 'bad'}`}>
              <ToneIcon tone={pool.backoff === null ? 'warn' : 'bad'} /> It {problem}.
            </li>
          ))}
        </ul>
      )}
      {asRows ? <Rows slots={pool.slots} closed={isClosed(pool)} /> : <Cells slots={pool.slots} closed={isClosed(pool)} />}
      {pool.slots.length > rowsAtMost && (
        <button type="button" className="quiet" onClick={() => setRows(!asRows)}>
          {asRows ? 'Show one cell for each agent' : `List all ${plural(pool.slots.length, 'agent')}`}
        </button>
      )}
    </section>
  );
});

function Count({ name, value }: { readonly name: string; readonly value: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

interface SlotsProps {
  readonly slots: readonly Slot[];
  /** Its pool takes no jobs. */
  readonly closed: boolean;
}

function Rows({ slots, closed }: SlotsProps) {
  return (
    <ul className="slots">
      {slots.map((slot) => (
        <SlotRow key={slot.key} slot={slot} closed={closed} />
      ))}
    </ul>
  );
}

const SlotRow = memo(function SlotRow({ slot, closed }: { readonly slot: Slot; readonly closed: boolean }) {
  const named = useNamed();
  const { agent, standby, note, held, leaving } = slot;
  const notes = [...new Set([held, note])].filter((text) => text !== null);
  return (
    <li className="slot">
      <span className="slot-key mono">{plain(slot.key)}</span>
      <Badge {...slotState(slot, closed)} />
      <span className="slot-since">{agent.since !== null && agent.state !== 'free' && <Age at={agent.since} />}</span>
      <span className="slot-job">
        {agent.job === null ? null : <SlotJob id={agent.job} title={agent.about?.title ?? null} />}
        {isBusy(slot) && standby.state === 'standby' && <span className="nothing">next agent is ready</span>}
        {leaving.length > 1 && <span className="nothing">clears {leaving.length} agents</span>}
      </span>
      {notes.map((text) => (
        <span key={text} className="slot-note">
          {named(text)}
        </span>
      ))}
    </li>
  );
});

function SlotJob({ id, title }: { readonly id: string; readonly title: string | null }) {
  const job = useLive(({ world }) => world?.jobs.get(id));
  const name = job === undefined ? plain(title ?? id) : jobName(job);
  return (
    <a className="job-name" href={jobHref(id)} title={name}>
      <bdi>{name}</bdi>
    </a>
  );
}

/** One small cell for each slot; the chosen one is described below. */
function Cells({ slots, closed }: SlotsProps) {
  const [chosen, setChosen] = useState<string | null>(null);
  const slot = slots.find(({ key }) => key === chosen);
  return (
    <>
      <div className="cells">
        {slots.map((each) => (
          <Cell key={each.key} slot={each} closed={closed} chosen={each.key === chosen} onChoose={setChosen} />
        ))}
      </div>
      {slot !== undefined && <Rows slots={[slot]} closed={closed} />}
    </>
  );
}

interface CellProps {
  readonly slot: Slot;
  readonly closed: boolean;
  readonly chosen: boolean;
  readonly onChoose: (key: string) => void;
}

const Cell = memo(function Cell({ slot, closed, chosen, onChoose }: CellProps) {
  const { word, tone } = slotState(slot, closed);
  const label = `${plain(slot.key)}: ${word}`;
  return (
    <button
      type="button"
      className={`cell tone-${tone}`}
      aria-label={label}
      title={label}
      aria-pressed={chosen}
      onClick={() => onChoose(slot.key)}
    >
      <ToneIcon tone={tone} />
    </button>
  );
});

function PoolMenu({ pool }: { readonly pool: Pool }) {
  const ask = useAsk();
  const stopped = pool.paused.length > 0 || pool.draining;
  const items = [
    ...(stopped ? [{ label: 'Resume', run: () => ask(resumeQuestion(pool.name)) }] : []),
    { label: 'Pause', run: () => ask(pauseQuestion(pool.name)) },
    ...(pool.draining ? [] : [{ label: 'Drain', run: () => ask(drainQuestion(pool.name)) }]),
  ];
  return <Menu label={`Change pool ${plain(pool.name)}`} items={items} />;
}

function pauseQuestion(pool: string): Question {
  return {
    title: `Pause pool ${plain(pool)}?`,
    text: 'Jobs that run are not touched. No further job starts until it is resumed, also after a restart.',
    confirm: 'Pause',
    async run() {
      await post(path`/v1/pools/${pool}/pause`);
      return `Pool ${plain(pool)} is paused.`;
    },
  };
}

function drainQuestion(pool: string): Question {
  return {
    title: `Drain pool ${plain(pool)}?`,
    text: 'Jobs that run finish. Agents that wait are removed, and nothing starts until it is resumed.',
    confirm: 'Drain',
    async run() {
      await post(path`/v1/pools/${pool}/drain`);
      return `Pool ${plain(pool)} drains.`;
    },
  };
}

function resumeQuestion(pool: string): Question {
  return {
    title: `Resume pool ${plain(pool)}?`,
    text: 'It starts jobs again. Pauses of other people, and those of onejob itself, stay.',
    confirm: 'Resume',
    async run() {
      type Held = { held: { pool: string; by: string[]; because: string[] }[] };
      const answer = await post<Held>(path`/v1/pools/${pool}/resume`);
      const held = answer?.held.find((one) => one.pool === pool);
      const why = held === undefined ? [] : [...held.by.map((by) => `a pause by ${by}`), ...held.because];
      return why.length === 0 ? `Pool ${plain(pool)} is resumed.` : `Pool ${plain(pool)} is still held: ${plain(why.join('; '))}.`;
    },
  };
}
