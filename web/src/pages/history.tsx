/** Jobs that ended: which pool, image or device fails, and each job by pages. */
import type { ReactNode } from 'react';
import { query } from '../api.ts';
import { useLive, useNames, useServices } from '../live/store.ts';
import { HeldMark } from '../parts/held.tsx';
import { Badge, Icon } from '../parts/icon.tsx';
import { JobLink } from '../parts/job.tsx';
import { type Read, useRead } from '../parts/read.ts';
import { TableScroll } from '../parts/scroll.tsx';
import { Clock } from '../parts/time.tsx';
import { historyHref } from '../route.ts';
import type { HistoryView, Job } from '../views.ts';
import type { Names } from '../words/names.ts';
import { kinds } from '../words/over-time.ts';
import { failuresText, standsOut, worstFirst } from '../words/stands-out.ts';
import { formatAge, plain, plural } from '../words/text.ts';
import { endReason, jobOrigin, jobState, otherImages, verdictLabels } from '../words/words.ts';
import { OverTime } from './over-time.tsx';

type Filter = Readonly<Record<string, string>>;

const spans: readonly (readonly [value: string, label: string, ms: number])[] = [
  ['1d', 'last day', 86_400_000],
  ['7d', 'last 7 days', 7 * 86_400_000],
  ['30d', 'last 30 days', 30 * 86_400_000],
  ['all', 'everything', 0],
];
const usualSpan = '7d';
const pageSize = 50;

/** Start of the time that is shown, wall clock, ms. To the minute, so that pages stay the same. */
function sinceOf(filter: Filter, now: number): number {
  const ms = spans.find(([value]) => value === (filter.since ?? usualSpan))?.[2] ?? 7 * 86_400_000;
  return ms === 0 ? 0 : Math.floor((now - ms) / 60_000) * 60_000;
}

export function HistoryPage({ filter }: { readonly filter: Filter }) {
  const { ticker } = useServices();
  const since = sinceOf(filter, ticker.now());
  const { pool } = filter;
  const devices = useRead<HistoryView[]>(`/v1/history${query({ by: 'device', since, pool })}`);
  const pools = useRead<HistoryView[]>(`/v1/history${query({ by: 'pool', since })}`);
  const images = useRead<HistoryView[]>(`/v1/history${query({ by: 'image', since, pool })}`);
  const ended = (pools.data ?? []).some(({ value }) => (pool ?? '') === '' || value === pool);
  return (
    <div className="page">
      <h1>History</h1>
      <Filters filter={filter} images={images.data ?? []} />
      <div className="bars-row">
        <Bars by="device" title="Devices" filter={filter} read={devices} nothing={ended ? 'No job had a device.' : nothingEnded} />
        <Bars by="pool" title="Pools" filter={filter} read={pools} nothing={nothingEnded} />
        <Bars by="image" title="Images" filter={filter} read={images} nothing={nothingEnded} />
      </div>
      <Legend />
      <OverTime filter={filter} since={since} step={filter.since === '1d' ? 'hour' : 'day'} />
      <JobPages filter={filter} since={since} />
    </div>
  );
}

const verdicts = ['passed', 'code', 'infrastructure', 'configuration', 'unknown', 'cancelled'] as const;

/** Images to choose from: the ones with most jobs. Others are behind their bars, or in an address. */
const imagesOffered = 50;

function Filters({ filter, images }: { readonly filter: Filter; readonly images: readonly HistoryView[] }) {
  const pools = useLive(({ world }) => world?.pools) ?? [];
  const names = useNames();
  const go = (more: Filter) => {
    const { before: _, ...kept } = filter;
    window.location.hash = historyHref({ ...kept, ...more });
  };
  const services = [...new Set(pools.map(({ service }) => service))];
  const offered = images
    .filter(({ value }) => value !== otherImages)
    .toSorted((a, b) => b.jobs - a.jobs)
    .slice(0, imagesOffered);
  const named = (values: readonly string[]) => values.map((value) => [value, plain(value)] as const);
  return (
    <form
      className="filters"
      aria-label="Filter"
      onSubmit={(event) => {
        event.preventDefault();
        go({ text: String(new FormData(event.currentTarget).get('text') ?? '').trim() });
      }}
    >
      <label>
        Job
        <input
          key={filter.text ?? ''}
          name="text"
          type="search"
          placeholder="Name, user, branch, command"
          defaultValue={filter.text ?? ''}
          maxLength={200}
          autoComplete="off"
        />
      </label>
      <Choice name="Time" value={filter.since ?? usualSpan} options={spans} onChange={(since) => go({ since })} />
      <Choice
        name="Pool"
        value={filter.pool ?? ''}
        options={[['', 'all'], ...named(pools.map(({ name }) => name))]}
        onChange={(pool) => go({ pool })}
      />
      {services.length > 1 && (
        <Choice
          name="Service"
          value={filter.service ?? ''}
          options={[['', 'all'], ...named(services)]}
          onChange={(service) => go({ service })}
        />
      )}
      <Choice
        name="Outcome"
        value={filter.failed === 'true' ? 'failed' : (filter.verdict ?? '')}
        options={[['', 'all'], ['failed', 'all failures'], ...verdicts.map((kind) => [kind, verdictLabels[kind]] as const)]}
        onChange={(kind) => go(kind === 'failed' ? { failed: 'true', verdict: '' } : { failed: '', verdict: kind })}
      />
      {names.size > 0 && (
        <Choice name="Device" value={filter.device ?? ''} options={[['', 'all'], ...names]} onChange={(device) => go({ device })} />
      )}
      {(offered.length > 0 || filter.image !== undefined) && (
        <Choice
          name="Image"
          value={filter.image ?? ''}
          options={[['', 'all'], ...named(offered.map(({ value }) => value).toSorted())]}
          onChange={(image) => go({ image })}
        />
      )}
    </form>
  );
}

interface ChoiceProps {
  readonly name: string;
  readonly value: string;
  readonly options: readonly (readonly [value: string, label: string, ...unknown[]])[];
  readonly onChange: (value: string) => void;
}

function Choice({ name, value, options, onChange }: ChoiceProps) {
  const known = options.some(([each]) => each === value);
  return (
    <label>
      {name}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {!known && <option value={value}>{plain(value)}</option>}
        {options.map(([each, label]) => (
          <option key={each} value={each}>
            {label}
          </option>
        ))}
      </select>
    </label>
  );
}

const nothingEnded = 'Nothing ended in this time.';

interface BarsProps {
  readonly by: 'device' | 'pool' | 'image';
  readonly title: string;
  readonly filter: Filter;
  readonly read: Read<HistoryView[]>;
  /** What it says without any line. */
  readonly nothing: string;
}

/** Failure shares, the worst first, so that a bad card is seen at once. */
function Bars({ by, title, filter, nothing, read: { data, problem } }: BarsProps) {
  const names = useNames();
  const lines = (data ?? []).toSorted(worstFirst(by));
  // Pools and images differ in what they do, so only devices are compared.
  const odd = by === 'device' ? standsOut(lines) : new Set<string>();
  const id = `bars-${by}`;
  return (
    <section className="panel bars" aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {problem !== null && <p className="problem">{problem}</p>}
      {data !== null && lines.length === 0 && <p className="nothing">{nothing}</p>}
      <ul>
        {lines.slice(0, 12).map((line) => (
          <Bar
            key={line.value}
            line={line}
            texts={failuresText(line, by)}
            name={barName(line.value, by, names)}
            odd={odd.has(line.value)}
            href={line.value === otherImages ? null : historyHref({ ...filter, before: '', [by]: line.value })}
          />
        ))}
      </ul>
      {lines.length > 12 && <p className="nothing">{plural(lines.length - 12, 'more')} with fewer failures</p>}
    </section>
  );
}

function barName(value: string, by: BarsProps['by'], names: Names): string {
  return (by === 'device' ? names.get(value) : undefined) ?? (value === '' ? 'none' : plain(value));
}

interface BarProps {
  readonly line: HistoryView;
  /** Its failures, the main number first. */
  readonly texts: readonly string[];
  readonly name: string;
  readonly odd: boolean;
  /** null: it has no jobs of its own to list. */
  readonly href: string | null;
}

function Bar({ line, texts: [main, ...others], name, odd, href }: BarProps) {
  const { runMs, waitMs } = line;
  const times = [
    waitMs === null ? '' : `mean wait ${formatAge(waitMs)}`,
    runMs === null ? '' : `mean run ${formatAge(runMs)}`,
  ].filter((text) => text !== '');
  return (
    <li className={odd ? 'bar odd' : 'bar'}>
      <div className="bar-head">
        {href === null ? (
          <b>{name}</b>
        ) : (
          <a href={href} title={plain(line.value)}>
            <bdi>{name}</bdi>
          </a>
        )}
        {odd && (
          <span className="badge tone-bad">
            <Icon shape="alert" /> stands out
          </span>
        )}
        <span className="bar-number">{main}</span>
      </div>
      <Share line={line} />
      <div className="bar-facts">{[...others, ...times].join(', ')}</div>
    </li>
  );
}

function Legend() {
  return (
    <ul className="legend" aria-label="Parts of a bar">
      {kinds.map((kind) => (
        <li key={kind}>
          <svg viewBox="0 0 10 10" aria-hidden="true">
            <rect className={`share-${kind}`} width="10" height="10" />
          </svg>
          {verdictLabels[kind]}
        </li>
      ))}
    </ul>
  );
}

/** Drawn as SVG, whose widths are attributes and not styles. */
function Share({ line }: { readonly line: HistoryView }) {
  let x = 0;
  const shapes: ReactNode[] = [];
  for (const kind of kinds) {
    const count = line[kind];
    const width = (100 * count) / Math.max(1, line.jobs);
    if (count > 0) shapes.push(<rect key={kind} className={`share-${kind}`} x={x} y={0} width={width} height={10} />);
    x += width;
  }
  return (
    <svg className="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      {shapes}
    </svg>
  );
}

function JobPages({ filter, since }: { readonly filter: Filter; readonly since: number }) {
  const { pool, service, failed, verdict, image, device, text, before } = filter;
  const narrowed = { pool, service, failed, verdict, image, device, text };
  const address = `/v1/jobs${query({ all: true, since, ...narrowed, limit: pageSize, before })}`;
  const { data, problem } = useRead<{ jobs: Job[]; next: string | null }>(address, async (response) => ({
    jobs: ((await response.json()) as Job[]).toReversed(),
    next: response.headers.get('onejob-next'),
  }));
  const ended = data?.jobs ?? [];
  return (
    <section className="panel" aria-labelledby="ended">
      <h2 id="ended">Jobs</h2>
      {problem !== null && (
        <p role="alert" className="problem">
          {problem}
        </p>
      )}
      {data !== null && ended.length === 0 && (
        <p className="nothing">{data.next === null ? 'No job fits.' : 'No job of these fits; older ones may.'}</p>
      )}
      {ended.length > 0 && (
        <TableScroll label="Jobs">
          <table className="job-table">
            <thead>
              <tr>
                <th scope="col">Job</th>
                <th scope="col">Outcome</th>
                <th scope="col">Pool</th>
                <th scope="col">Ended</th>
                <th scope="col" className="number">
                  Waited
                </th>
                <th scope="col" className="number">
                  Ran
                </th>
              </tr>
            </thead>
            <tbody>
              {ended.map((job) => (
                <JobLine key={job.id} job={job} />
              ))}
            </tbody>
          </table>
        </TableScroll>
      )}
      <nav aria-label="Pages" className="pages">
        {before !== undefined && before !== '' && <a href={historyHref({ ...filter, before: '' })}>Newest</a>}
        {data?.next != null && <a href={historyHref({ ...filter, before: data.next })}>Older</a>}
      </nav>
    </section>
  );
}

function JobLine({ job }: { readonly job: Job }) {
  const { submittedAt, startedAt, endedAt } = job;
  const span = (from: number | null, to: number | null) => (from === null || to === null ? '–' : formatAge(to - from));
  const why = endReason(job);
  const origin = jobOrigin(job);
  return (
    <tr>
      <td>
        <JobLink job={job} />
        <span className="mono nothing">{job.id.slice(0, 12)}</span>
        {origin !== '' && <bdi className="nothing"> {origin}</bdi>}
      </td>
      <td>
        <Badge {...jobState(job)} /> <span className="nothing">{plain(why)}</span> <HeldMark job={job} />
      </td>
      <td data-name="pool">{plain(job.pool)}</td>
      <td className="nowrap">{endedAt === null ? '–' : <Clock at={endedAt} />}</td>
      <td className="number" data-name="waited">
        {span(submittedAt, startedAt)}
      </td>
      <td className="number" data-name="ran">
        {span(startedAt, endedAt)}
      </td>
    </tr>
  );
}
