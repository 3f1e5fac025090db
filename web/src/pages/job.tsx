/** One job: how it stands or ended, its times, its devices, and its output. */
import { type ReactNode, useEffect, useMemo, useState } from 'react';
import type uPlot from 'uplot';
import { commandText } from '../../../src/cli/job-title.ts';
import { newEvidence } from '../../../src/verdict/shown.ts';
import { get, Problem, path } from '../api.ts';
import { useLive, useMay, useNamed, useNames, useServices, useTimed } from '../live/store.ts';
import { LogPanel } from '../log/panel.tsx';
import { Chart } from '../parts/chart.tsx';
import { explained, useAsk } from '../parts/dialog.tsx';
import { HeldFiles } from '../parts/held.tsx';
import { Badge } from '../parts/icon.tsx';
import { cancelQuestion } from '../parts/job.tsx';
import { Age, Clock } from '../parts/time.tsx';
import { historyHref, jobHref } from '../route.ts';
import type { Device, Job, ProofView, Sample } from '../views.ts';
import { formatAge, memoryText, pageAddress, plain, shortUuid } from '../words/text.ts';
import { type Moment, timeLine } from '../words/time-line.ts';
import {
  endDetail,
  isWaiting,
  jobName,
  jobOrigin,
  jobState,
  limitsText,
  poolsFor,
  verdictSentence,
  whenStarts,
  whyWaits,
} from '../words/words.ts';

export function JobPage({ id }: { readonly id: string }) {
  const { job, problem } = useJob(id);
  if (problem !== null) {
    return (
      <div className="page">
        <h1>Job {id}</h1>
        <p role="alert" className="problem">
          {problem}
        </p>
      </div>
    );
  }
  if (job === null) return <p className="page nothing">Reading the job …</p>;
  return (
    <div className="page job-page">
      <div className="job-top">
        <Head job={job} />
        <Outcome job={job} />
        <HeldFiles job={job} />
        <Times job={job} />
        <LogPanel key={job.id} job={job.id} ended={job.state === 'done'} waits={isWaiting(job)} />
      </div>
      <JobDevices job={job} />
    </div>
  );
}

/** From events as long as it is among the live jobs, else as the daemon answers. */
function useJob(id: string): { readonly job: Job | null; readonly problem: ReactNode } {
  const live = useLive(({ world }) => world?.jobs.get(id) ?? null);
  const [read, setRead] = useState<Job | null>(null);
  const [problem, setProblem] = useState<ReactNode>(null);
  const [mayPass, setMayPass] = useState(false);
  // A waiting job's place changes with others, so it is read again now and then; so is one that could not be read.
  const turn = useTimed((now) => (mayPass || (live !== null && isWaiting(live)) ? Math.floor(now / 5_000) : 0));
  const state = live?.state;
  const isLive = useLive(({ link }) => link.kind === 'live');
  // biome-ignore lint/correctness/useExhaustiveDependencies: its turn, its state and the link are reasons to read it again
  useEffect(() => {
    const gone = new AbortController();
    get<Job>(path`/v1/jobs/${id}`, gone.signal).then(
      (found) => {
        setRead(found);
        setProblem(null);
        setMayPass(false);
      },
      (error: unknown) => {
        if (gone.signal.aborted) return;
        if (error instanceof Problem && !error.mayPass) setProblem(explained(error));
        else setMayPass(true);
      },
    );
    return () => gone.abort();
  }, [id, turn, state, isLive]);
  if (live === null) return { job: read?.id === id ? read : null, problem };
  if (read?.id !== id || read.state !== live.state) return { job: live, problem: null };
  // A hold that has ended is left out of what is live.
  return { job: { ...read, ...live, held: live.held ?? null, ...placeOf(read) }, problem: null };
}

/** What only the answer about one job has. */
function placeOf({ ahead, startsIn }: Job): Pick<Job, 'ahead' | 'startsIn'> {
  return { ...(ahead !== undefined && { ahead }), ...(startsIn !== undefined && { startsIn }) };
}

function Head({ job }: { readonly job: Job }) {
  const ask = useAsk();
  const may = useMay();
  const origin = jobOrigin(job);
  const link = pageAddress(job.about?.link);
  const detail = endDetail(job);
  const facts: [string, React.ReactNode][] = [
    [
      'Job',
      <span key="id" className="mono">
        {job.id}
      </span>,
    ],
    ['Pool', job.pool === '' ? 'not chosen yet' : plain(job.pool)],
    ...(job.service === 'own' ? [] : [['Service', plain(job.service)] as [string, string]]),
    ...(origin === '' ? [] : [['From', origin] as [string, string]]),
    ...(job.agent === null
      ? []
      : [
          [
            'Agent',
            <span key="agent" className="mono">
              {plain(job.agent)}
            </span>,
          ] as [string, React.ReactNode],
        ]),
    ...(job.image
      ? [
          [
            'Image',
            <a key="image" className="mono" href={historyHref({ image: job.image })} title="How jobs in this image ended">
              {plain(job.image)}
            </a>,
          ] as [string, React.ReactNode],
        ]
      : []),
    ...(job.array === undefined
      ? []
      : [
          [
            'Array',
            <span key="array" className="mono">
              {plain(job.array.id)}
            </span>,
          ] as [string, React.ReactNode],
        ]),
    ...(job.needs === undefined || job.needs.length === 0
      ? []
      : [['Needs', <Needs key="needs" ids={job.needs} />] as [string, React.ReactNode]]),
    ...(limitsText(job) === '' ? [] : [['Limits', limitsText(job)] as [string, string]]),
    ...(job.attempt > 1 ? [['Attempt', job.attempt] as [string, number]] : []),
    ...(commandText(job) !== ''
      ? [['Command', <Command key="command" text={plain(commandText(job))} />] as [string, React.ReactNode]]
      : []),
  ];
  return (
    <header className="job-header">
      <div className="job-title">
        <h1>
          <bdi>{jobName(job)}</bdi>
        </h1>
        <Badge {...jobState(job)} />
        {detail !== '' && <span className="nothing">{detail}</span>}
        {may && job.state !== 'done' && job.service === 'own' && (
          <button type="button" className="danger" onClick={() => ask(cancelQuestion(job))}>
            Cancel the job
          </button>
        )}
      </div>
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
        {link !== null && (
          <div>
            <dt>Page</dt>
            <dd>
              <a href={link} rel="noopener noreferrer" target="_blank">
                {new URL(link).host}
              </a>
            </dd>
          </div>
        )}
      </dl>
    </header>
  );
}

/** In one line until somebody wants to see all of a long one. */
function Command({ text }: { readonly text: string }) {
  if (text.length < 80) return <code>{text}</code>;
  return (
    <details>
      <summary>
        <code>{text}</code>
      </summary>
    </details>
  );
}

function Needs({ ids }: { readonly ids: readonly string[] }) {
  return ids.map((id) => (
    <a key={id} className="mono needs" href={jobHref(id)}>
      {plain(id)}
    </a>
  ));
}

/** Why it waits, or how it ended and what shows it. */
function Outcome({ job }: { readonly job: Job }) {
  const named = useNamed();
  const pools = useLive(({ world }) => world?.pools) ?? [];
  const why = useTimed((now) => (isWaiting(job) ? whyWaits(job, poolsFor(job, pools), now) : ''));
  if (isWaiting(job)) {
    const when = whenStarts(job, poolsFor(job, pools));
    return (
      <section aria-label="Why it waits" className="outcome tone-calm">
        <p>
          <b>{named(why.startsWith('waits for ') ? `W${why.slice(1)}` : `Waits: ${why}`)}.</b>
        </p>
        {when !== '' && <p>{when}</p>}
      </section>
    );
  }
  if (job.state !== 'done') return job.reason === null ? null : <p className="outcome tone-calm">{plain(job.reason)}</p>;
  const { tone } = jobState(job);
  const { verdict = null } = job;
  const evidence = verdict === null ? [] : newEvidence(verdict);
  return (
    <section aria-label="How it ended" className={`outcome tone-${tone}`}>
      <p>
        <b>{named(verdictSentence(job))}</b>
      </p>
      {evidence.length > 0 && (
        <ul>
          {evidence.map((each) => (
            <li key={each}>{named(each)}</li>
          ))}
        </ul>
      )}
      {job.reason !== null && <p className="hint">{named(job.reason)}</p>}
    </section>
  );
}

function Times({ job }: { readonly job: Job }) {
  const proofs = useProofs(job);
  const moments = timeLine(job, proofs);
  return (
    <section aria-label="Time line">
      <ol className="time-line">
        {moments.map((moment) => (
          <MomentItem key={moment.name} moment={moment} />
        ))}
      </ol>
    </section>
  );
}

function MomentItem({ moment: { name, at, after, note, since } }: { readonly moment: Moment }) {
  return (
    <li className={at === null ? 'moment open' : 'moment'}>
      <b>{name}</b>
      <span>{at === null ? '–' : <Clock at={at} />}</span>
      <span className="moment-after">
        {after !== null && `after ${after < 10_000 ? `${(after / 1000).toFixed(1)}s` : formatAge(after)}`}
        {since !== null && (
          <>
            <Age at={since} /> so far
          </>
        )}
      </span>
      {note !== null && <span className="moment-note">{note}</span>}
    </li>
  );
}

/** Proofs of the devices after its agent. */
function useProofs({ agent, state, endedAt }: Job): readonly ProofView[] {
  const [proofs, setProofs] = useState<readonly ProofView[]>([]);
  // They come some seconds after the end.
  const turn = useTimed((now) => (endedAt !== null && now - endedAt < 120_000 ? Math.floor(now / 5_000) : 0));
  const over = state === 'done' || state === 'settling';
  // biome-ignore lint/correctness/useExhaustiveDependencies: its turn is a reason to read again
  useEffect(() => {
    if (!over || agent === null) return;
    const gone = new AbortController();
    get<ProofView[]>('/v1/proofs?limit=1000', gone.signal).then(
      (found) => setProofs(found.filter((proof) => proof.agent === agent)),
      () => {},
    );
    return () => gone.abort();
  }, [agent, over, turn]);
  return proofs;
}

function JobDevices({ job }: { readonly job: Job }) {
  const known = useLive(({ world }) => world?.devices);
  const slots = useLive(({ world }) => world?.pools);
  const uuids = useMemo(() => {
    if (job.devices !== undefined) return job.devices;
    // An older daemon says it only while the job runs.
    return slots?.flatMap((pool) => pool.slots).find(({ agent }) => agent.job === job.id)?.devices ?? [];
  }, [job, slots]);
  if (uuids.length === 0) return null;
  return (
    <section aria-labelledby="job-devices" className="panel">
      <h2 id="job-devices">Devices</h2>
      <ul className="job-devices">
        {uuids.map((uuid) => (
          <DeviceUse key={uuid} uuid={uuid} device={known?.find((one) => one.uuid === uuid)} job={job} />
        ))}
      </ul>
    </section>
  );
}

interface DeviceUseProps {
  readonly uuid: string;
  readonly device: Device | undefined;
  readonly job: Job;
}

function DeviceUse({ uuid, device, job }: DeviceUseProps) {
  const name = useNames().get(uuid);
  const { startedAt, endedAt } = job;
  const samples = useUseDuring(uuid, startedAt, endedAt);
  const total = device?.memoryMiB ?? null;
  const data = useMemo((): uPlot.AlignedData => {
    const share = ({ memoryUsedMiB }: Sample) => (memoryUsedMiB === null || total === null ? null : (100 * memoryUsedMiB) / total);
    return [samples.map(({ at }) => at / 1000), samples.map(({ utilization }) => utilization), samples.map(share)];
  }, [samples, total]);
  const most = samples.reduce<number | null>(
    (max, { memoryUsedMiB }) => (memoryUsedMiB === null ? max : Math.max(max ?? 0, memoryUsedMiB)),
    null,
  );
  return (
    <li>
      <p>
        <b>{name ?? shortUuid(plain(uuid))}</b>{' '}
        <span className="nothing">
          {plain(device?.model ?? '')} <span className="mono">{plain(uuid)}</span>
        </span>
        {most !== null && <span> most memory in use: {memoryText(most, total)}</span>}
      </p>
      {samples.length > 1 ? (
        <Chart
          label="Utilisation and memory in use during the job, in percent"
          lines={[
            { label: 'utilisation', color: '--busy', unit: ' %' },
            { label: 'memory', color: '--ok', unit: ' %' },
          ]}
          data={data}
          height={140}
          max={100}
        />
      ) : (
        <p className="nothing">Its use during this job is not known (any more).</p>
      )}
    </li>
  );
}

/** Read again while the job runs. */
function useUseDuring(uuid: string, from: number | null, to: number | null): readonly Sample[] {
  const { ticker } = useServices();
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  const turn = useTimed((now) => (to === null ? Math.floor(now / 5_000) : 0));
  // biome-ignore lint/correctness/useExhaustiveDependencies: its turn is a reason to read again
  useEffect(() => {
    if (from === null) return;
    const gone = new AbortController();
    get<Sample[]>(`${path`/v1/devices/${uuid}/use`}?since=${Math.round(from)}`, gone.signal).then(
      (found) => setSamples(found.filter(({ at }) => at >= from && at <= (to ?? ticker.now()))),
      () => {},
    );
    return () => gone.abort();
  }, [uuid, from, to, turn, ticker]);
  return samples;
}
