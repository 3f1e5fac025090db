/** One card for each device: what it is, what it does, who has it, and why nobody may. */
import { memo, useEffect, useMemo, useState } from 'react';
import { get, path, post } from '../api.ts';
import { useLive, useMay, useNames, useServices } from '../live/store.ts';
import { Chart } from '../parts/chart.tsx';
import { type Question, useAsk } from '../parts/dialog.tsx';
import { Badge } from '../parts/icon.tsx';
import { Menu } from '../parts/menu.tsx';
import { Age } from '../parts/time.tsx';
import { jobHref } from '../route.ts';
import type { Device, ProofView, Sample, Slot } from '../views.ts';
import { deviceReason, type Names } from '../words/names.ts';
import { memoryText, plain, shortUuid } from '../words/text.ts';
import { deviceState, jobName } from '../words/words.ts';

/** ms that a sparkline shows. */
const shownUse = 600_000;

export function Devices() {
  const devices = useLive(({ world }) => world?.devices);
  const pools = useLive(({ world }) => world?.pools);
  const names = useNames();
  const proofs = useLastProofs(devices);
  const slots = useMemo(() => new Map(pools?.flatMap((pool) => pool.slots.map((slot) => [slot.key, slot] as const))), [pools]);
  if (devices === undefined || devices.length === 0) return null;
  const split = new Set(devices.flatMap(({ parent }) => parent ?? []));
  return (
    <section aria-labelledby="devices" className="panel">
      <h2 id="devices">
        Devices <span className="count">{devices.length}</span>
      </h2>
      <ul className="devices">
        {devices.map((device) => (
          <DeviceCard
            key={device.uuid}
            device={device}
            name={names.get(device.uuid) ?? ''}
            names={names}
            slot={device.slot === null ? undefined : slots.get(device.slot)}
            proof={proofs.get(device.uuid)}
            split={split.has(device.uuid)}
          />
        ))}
      </ul>
    </section>
  );
}

interface CardProps {
  readonly device: Device;
  readonly name: string;
  readonly names: Names;
  readonly slot: Slot | undefined;
  readonly proof: ProofView | undefined;
  /** It has instances of its own. */
  readonly split: boolean;
}

const DeviceCard = memo(function DeviceCard({ device, name, names, slot, proof, split }: CardProps) {
  const { uuid, model, use, hint, retryAt, until, state } = device;
  const why = deviceReason(device, names);
  const said = deviceState(device);
  const may = useMay();
  const trouble = why !== null && state !== 'leased' && state !== 'free';
  return (
    <li className={`device tone-${said.tone}`} aria-label={`${name}, ${said.word}`}>
      <div className="device-head">
        <b>{name}</b>
        {split ? <span className="badge tone-off">split</span> : <Badge {...said} />}
        {may && <DeviceMenu device={device} name={name} />}
      </div>
      <div className="device-model" title={uuid}>
        {plain(model)} <span className="mono">{shortUuid(plain(uuid))}</span>
      </div>
      {!split && <Use device={device} />}
      {trouble ? (
        <p className="device-why">
          {/* What a bad device needs is above all devices. */}
          {why}. {hint !== null && said.tone !== 'bad' && <span className="hint">{plain(hint)}</span>}
          {retryAt !== null && (
            <>
              {' '}
              Tried again in <Age at={retryAt} until />.
            </>
          )}
          {until !== null && (
            <>
              {' '}
              Until it is returned, at most <Age at={until} until />.
            </>
          )}
        </p>
      ) : (
        <Holder slot={slot} device={device} />
      )}
      <div className="device-facts">
        {use !== null && use.temperature !== null && <span>{use.temperature} °C</span>}
        {use !== null && use.powerW !== null && <span>{Math.round(use.powerW)} W</span>}
        {proof !== undefined && (
          <span>
            proof: {plain(proof.verdict)}, <Age at={proof.at} /> ago
          </span>
        )}
      </div>
    </li>
  );
});

function Holder({ slot, device }: { readonly slot: Slot | undefined; readonly device: Device }) {
  if (device.slot === null) return <p className="device-holder nothing">No pool has it.</p>;
  const job = slot?.agent.job ?? null;
  return (
    <p className="device-holder">
      <span className="mono">{plain(device.slot)}</span> {job === null ? <SlotNote slot={slot} /> : <HeldBy job={job} />}
    </p>
  );
}

function SlotNote({ slot }: { readonly slot: Slot | undefined }) {
  const text =
    slot === undefined ? '' : (slot.note ?? slot.held ?? (slot.agent.state === 'proving' ? 'is being checked' : 'no job'));
  return <span className="nothing">{plain(text)}</span>;
}

function HeldBy({ job }: { readonly job: string }) {
  const view = useLive(({ world }) => world?.jobs.get(job));
  return (
    <>
      <a href={jobHref(job)} className="job-name">
        <bdi>{view === undefined ? job : jobName(view)}</bdi>
      </a>{' '}
      {view?.startedAt != null && <Age at={view.startedAt} />}
    </>
  );
}

function Use({ device }: { readonly device: Device }) {
  const { use, memoryMiB } = device;
  const samples = useSamples(device);
  const data = useMemo((): [number[], (number | null)[]] => {
    return [samples.map(({ at }) => at / 1000), samples.map(({ utilization }) => utilization)];
  }, [samples]);
  const used = use?.memoryUsedMiB ?? null;
  const memory = memoryText(used, memoryMiB);
  const utilization = use?.utilization ?? null;
  return (
    <div className="use">
      <div className="use-line">
        <span>{utilization === null ? 'utilisation unknown' : `${Math.round(utilization)} % busy`}</span>
        <span>{memory}</span>
      </div>
      {used !== null && memoryMiB !== null && memoryMiB > 0 && (
        <meter aria-label={`Memory in use: ${memory}`} min={0} max={memoryMiB} value={Math.min(used, memoryMiB)} />
      )}
      {samples.filter((one) => one.utilization !== null).length > 1 && (
        <Chart
          small
          label={`Utilisation in the last ten minutes, now ${utilization === null ? 'unknown' : `${Math.round(utilization)} percent`}`}
          lines={[{ label: 'utilisation', color: '--busy', unit: ' %' }]}
          data={data}
          height={32}
          max={100}
        />
      )}
    </div>
  );
}

/** What the daemon remembers of the device's use, and what comes while this is shown. */
function useSamples({ uuid, use }: Device): readonly Sample[] {
  const { ticker } = useServices();
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    const gone = new AbortController();
    const since = ticker.now() - shownUse;
    get<Sample[]>(`${path`/v1/devices/${uuid}/use`}?since=${Math.round(since)}`, gone.signal).then(
      (past) => setSamples((now) => [...past, ...now.filter(({ at }) => at > (past.at(-1)?.at ?? 0))]),
      // An older daemon keeps none; the line begins now.
      () => {},
    );
    return () => gone.abort();
  }, [uuid, ticker]);
  useEffect(() => {
    if (use === null) return;
    setSamples((past) => ((past.at(-1)?.at ?? 0) >= use.at ? past : [...past.filter(({ at }) => at > use.at - shownUse), use]));
  }, [use]);
  return samples;
}

/** By device; read again when a device changes hands. */
function useLastProofs(devices: readonly Device[] | undefined): ReadonlyMap<string, ProofView> {
  const [proofs, setProofs] = useState<ReadonlyMap<string, ProofView>>(new Map());
  const holders = devices?.map(({ uuid, state, agents }) => `${uuid} ${state} ${agents.join()}`).join('\n') ?? '';
  useEffect(() => {
    if (holders === '') return;
    const gone = new AbortController();
    // Many changes at once are one.
    const soon = setTimeout(() => {
      get<ProofView[]>('/v1/proofs?limit=200', gone.signal).then(
        (found) => setProofs(new Map(found.toReversed().map((proof) => [proof.device, proof]))),
        () => {},
      );
    }, 500);
    return () => {
      clearTimeout(soon);
      gone.abort();
    };
  }, [holders]);
  return proofs;
}

function DeviceMenu({ device, name }: { readonly device: Device; readonly name: string }) {
  const ask = useAsk();
  const { state } = device;
  const items: [string, () => Question][] = [
    ...(state === 'quarantined' ? [['Clear', () => clearQuestion(device, name)] as [string, () => Question]] : []),
    ...(state === 'quarantined' || state === 'missing'
      ? []
      : [['Quarantine', () => quarantineQuestion(device, name)] as [string, () => Question]]),
    ...(state === 'reserved'
      ? [['Return', () => returnQuestion(device, name)] as [string, () => Question]]
      : state === 'missing'
        ? []
        : [['Reserve', () => reserveQuestion(device, name)] as [string, () => Question]]),
  ];
  if (items.length === 0) return null;
  return <Menu label={`Change ${name}`} items={items.map(([label, question]) => ({ label, run: () => ask(question()) }))} />;
}

const busyNote = (device: Device) => (device.agents.length > 0 ? ' The job that runs on it is not touched, and may finish.' : '');

function change(device: Device, act: string, body: object = {}) {
  return post<{ readonly device: Device | null }>(path`/v1/devices/${device.uuid}/${act}`, body);
}

function quarantineQuestion(device: Device, name: string): Question {
  return {
    title: `Put ${name} in quarantine?`,
    text: `No job gets it until somebody clears it.${busyNote(device)}`,
    confirm: 'Quarantine',
    danger: true,
    fields: [{ name: 'reason', label: 'Why (others read this)', required: true }],
    async run({ reason = '' }) {
      await change(device, 'quarantine', { reason });
      return `${name} is in quarantine.`;
    },
  };
}

function clearQuestion(device: Device, name: string): Question {
  return {
    title: `Clear ${name}?`,
    text: `It leaves quarantine and is checked before a job gets it. It was there because: ${plain(device.why ?? 'nobody said why').replace(/\.$/, '')}.`,
    confirm: 'Clear',
    async run() {
      const why = (await change(device, 'clear'))?.device?.why;
      return `${name} is out of quarantine${why == null ? '.' : `; but ${plain(why)}.`}`;
    },
  };
}

function reserveQuestion(device: Device, name: string): Question {
  const hours = [1, 4, 24, 72];
  return {
    title: `Reserve ${name}?`,
    text: `Jobs leave it to you until you return it or the time is over.${busyNote(device)}`,
    confirm: 'Reserve',
    fields: [
      {
        name: 'for',
        label: 'For how long',
        value: String(4 * 3_600_000),
        choices: hours.map((each) => ({ value: String(each * 3_600_000), label: each < 24 ? `${each} h` : `${each / 24} d` })),
      },
      { name: 'by', label: 'Your login name' },
    ],
    async run({ for: ms = '', by = '' }) {
      await change(device, 'reserve', { for: Number(ms), by: by.trim() === '' ? null : by.trim() });
      return `${name} is reserved.`;
    },
  };
}

function returnQuestion(device: Device, name: string): Question {
  return {
    title: `Return ${name}?`,
    text: 'It is checked, and then jobs get it again.',
    confirm: 'Return',
    async run() {
      await change(device, 'return');
      return `${name} is returned.`;
    },
  };
}
