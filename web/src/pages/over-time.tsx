/** How many jobs ended how, and how long they took, by day or hour: as two charts, and as a table. */
import { useMemo } from 'react';
import uPlot from 'uplot';
import { query } from '../api.ts';
import { useNamed, useServices } from '../live/store.ts';
import { type Look, Plot } from '../parts/chart.tsx';
import { useRead } from '../parts/read.ts';
import { TableScroll } from '../parts/scroll.tsx';
import type { HistoryView } from '../views.ts';
import { type Bucket, bucketName, bucketsOf, type Kind, kinds, roundTime, type Step, startOf, stepMs } from '../words/over-time.ts';
import { formatAge, plain, plural } from '../words/text.ts';
import { otherImages, verdictLabels } from '../words/words.ts';

export interface OverTimeProps {
  readonly filter: Readonly<Record<string, string>>;
  /** Start of the time that is shown, wall clock, ms. */
  readonly since: number;
  readonly step: Step;
}

export function OverTime({ filter, since, step }: OverTimeProps) {
  const { ticker } = useServices();
  const named = useNamed();
  const { pool } = filter;
  const only = (['service', 'image', 'device'] as const).filter((axis) => (filter[axis] ?? '') !== '');
  const from = startOf(since, step);
  const narrowed = Object.fromEntries(only.map((axis) => [axis, filter[axis]]));
  // The daemon keeps no finer sums.
  const address = only.length > 1 ? null : `/v1/history${query({ by: step, since: from, pool, ...narrowed })}`;
  const { data, problem } = useRead<HistoryView[]>(address);
  const buckets = useMemo(() => bucketsOf(data ?? [], step, from, ticker.now()), [data, step, from, ticker]);
  const shown = kinds.filter((kind) => fits(kind, filter));
  const isPart = shown.length < kinds.length;
  const counts = shown.map((kind) => `${total(buckets, kind)} ${verdictLabels[kind]}`).join(', ');
  const of = [
    pool === undefined || pool === '' ? '' : `in pool ${plain(pool)}`,
    ...only.map((axis) => `${axis} ${named(filter[axis] ?? '')}`),
  ];
  return (
    <section className="panel over-time" aria-labelledby="over-time">
      <h2 id="over-time">
        Jobs by {step} <span className="count">{of.filter((text) => text !== '').join(', ')}</span>
      </h2>
      {problem !== null && <p className="problem">{problem}</p>}
      {address === null && (
        <p className="nothing">
          Jobs by {step} are counted for one of {only.join(', ')} at a time. The list below has all these filters.
        </p>
      )}
      {data !== null && buckets.length === 0 && (
        <p className="nothing">
          Nothing ended in this time{only.includes('image') && `, unless it is counted as "${otherImages}"`}.
        </p>
      )}
      {buckets.length > 0 && (
        <>
          <div className="over-time-charts">
            <figure>
              <figcaption>How they ended</figcaption>
              <Ends
                buckets={buckets}
                shown={shown}
                step={step}
                label={`Ended jobs by ${step}: ${counts}. The table below has the numbers.`}
              />
            </figure>
            <figure>
              <figcaption>How long {isPart ? 'all of them' : 'they'} waited and ran, on average</figcaption>
              <Durations buckets={buckets} step={step} label={`Mean waits and runs by ${step}. The table below has the numbers.`} />
            </figure>
          </div>
          <details>
            <summary>As a table</summary>
            <Numbers buckets={buckets} shown={shown} step={step} />
          </details>
        </>
      )}
    </section>
  );
}

function total(buckets: readonly Bucket[], kind: Kind): number {
  return buckets.reduce((sum, bucket) => sum + bucket[kind], 0);
}

function fits(kind: Kind, { failed, verdict = '' }: OverTimeProps['filter']): boolean {
  if (failed === 'true') return kind !== 'passed' && kind !== 'cancelled';
  return verdict === '' || kind === verdict;
}

interface BucketsProps {
  readonly buckets: readonly Bucket[];
  readonly step: Step;
  readonly label: string;
}

/** Bars from the ground, each drawn before those below it. */
function Ends({ buckets, shown, step, label }: BucketsProps & { readonly shown: readonly Kind[] }) {
  const data = useMemo((): uPlot.AlignedData => {
    const heights = shown.map((_, at) =>
      buckets.map((bucket) => shown.slice(0, at + 1).reduce((sum, kind) => sum + bucket[kind], 0)),
    );
    return [buckets.map(({ at }) => at / 1000), ...heights.toReversed()];
  }, [buckets, shown]);
  const options = ({ color, axis }: Look): Omit<uPlot.Options, 'width' | 'height'> => ({
    ...frame,
    scales: { x: { range: widened(step) }, y: { range: (_plot, _low, high) => [0, Math.max(4, high * 1.05)] } },
    axes: [
      timeAxis(buckets, step, axis),
      { ...axis, size: 52, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 1e4, 2e4, 5e4, 1e5, 1e6] },
    ],
    series: [
      timeSeries(step),
      ...shown.toReversed().map((kind): uPlot.Series => {
        const fill = color(`--share-${kind}`);
        return {
          label: verdictLabels[kind],
          fill,
          stroke: fill,
          width: 0,
          points: { show: false },
          ...(uPlot.paths.bars && { paths: uPlot.paths.bars({ size: [0.75, 56] }) }),
          value: (_plot, _value, _series, at) => String(at === null ? total(buckets, kind) : (buckets[at]?.[kind] ?? '–')),
        };
      }),
    ],
  });
  return <Plot label={label} data={data} height={200} shape={JSON.stringify([buckets, shown, step])} options={options} />;
}

const lines = [
  { label: 'run', color: '--busy', pick: ({ runMs }: Bucket) => runMs },
  { label: 'wait', color: '--warn', pick: ({ waitMs }: Bucket) => waitMs },
] as const;

function Durations({ buckets, step, label }: BucketsProps) {
  const data = useMemo(
    (): uPlot.AlignedData => [buckets.map(({ at }) => at / 1000), ...lines.map(({ pick }) => buckets.map(pick))],
    [buckets],
  );
  const options = ({ color, axis }: Look): Omit<uPlot.Options, 'width' | 'height'> => ({
    ...frame,
    scales: { x: { range: widened(step) }, y: { range: (_plot, _low, high) => [0, Math.max(10_000, high * 1.1)] } },
    axes: [timeAxis(buckets, step, axis), { ...axis, size: 52, incrs: roundTimes, values: (_plot, times) => times.map(roundTime) }],
    series: [
      timeSeries(step),
      ...lines.map(
        (line, at): uPlot.Series => ({
          label: line.label,
          stroke: color(line.color),
          width: 2,
          // They differ also without colours.
          ...(at > 0 && { dash: [6, 4] }),
          // A day between two without jobs has no line to either.
          points: { show: true, size: 5, fill: color(line.color) },
          value: (_plot, value, _series, index) => (index === null ? '' : value == null ? '–' : formatAge(value)),
        }),
      ),
    ],
  });
  return (
    <Plot label={label} data={data} height={200} shape={JSON.stringify([buckets.length, buckets[0]?.at, step])} options={options} />
  );
}

const [second, minute, hour, day] = [1_000, 60_000, 3_600_000, 86_400_000] as const;
const roundTimes = [
  ...[1, 2, 5, 10, 15, 30].flatMap((n) => [n * second, n * minute]),
  ...[1, 2, 3, 6, 12].map((n) => n * hour),
  ...[1, 2, 5, 10].map((n) => n * day),
].sort((a, b) => a - b);

const frame = { padding: [8, 8, 0, 0], cursor: { y: false, drag: { x: false, y: false } } } satisfies Partial<uPlot.Options>;

/** Room for half a bar at both ends. */
function widened(step: Step) {
  const half = stepMs[step] / 2_000;
  return (_plot: uPlot, low: number, high: number): [number, number] => [low - half, high + half];
}

/** As many of the days or hours as there is room for, the last among them. */
function timeAxis(buckets: readonly Bucket[], step: Step, axis: uPlot.Axis): uPlot.Axis {
  return {
    ...axis,
    size: 28,
    grid: { show: false },
    splits(plot) {
      const every = Math.max(1, Math.ceil((buckets.length * 64) / Math.max(1, plot.width - 60)));
      return buckets.filter((_, at) => (buckets.length - 1 - at) % every === 0).map(({ at }) => at / 1000);
    },
    values: (_plot, times) => times.map((time) => bucketName(time * 1000, step)),
  };
}

function timeSeries(step: Step): uPlot.Series {
  return { label: '', value: (_plot, value) => (value == null ? `all ${step}s` : bucketName(value * 1000, step)) };
}

function heading(text: string): string {
  return `${text[0]?.toUpperCase()}${text.slice(1)}`;
}

function Numbers({ buckets, shown, step }: Omit<BucketsProps, 'label'> & { readonly shown: readonly Kind[] }) {
  const time = (ms: number | null) => (ms === null ? '–' : formatAge(ms));
  return (
    <TableScroll label={`Jobs by ${step}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">{step === 'day' ? 'Day (UTC)' : 'Hour'}</th>
            {['All jobs', ...shown.map((kind) => heading(verdictLabels[kind])), 'Mean wait', 'Mean run', 'Longest run'].map(
              (name) => (
                <th key={name} scope="col" className="number">
                  {name}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {buckets.toReversed().map(({ at, jobs, waitMs, runMs, longestMs, ...counts }) => (
            <tr key={at}>
              <th scope="row">{bucketName(at, step)}</th>
              <td className="number">{jobs}</td>
              {shown.map((kind) => (
                <td key={kind} className="number">
                  {counts[kind]}
                </td>
              ))}
              <td className="number">{time(waitMs)}</td>
              <td className="number">{time(runMs)}</td>
              <td className="number">{jobs === 0 ? '–' : time(longestMs)}</td>
            </tr>
          ))}
        </tbody>
        <caption className="unseen">{plural(buckets.length, step)}, the newest first</caption>
      </table>
    </TableScroll>
  );
}
