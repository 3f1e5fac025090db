/** Lines and bars over time, by uPlot. */
import { useEffect, useRef } from 'react';
import uPlot from 'uplot';

export interface Line {
  readonly label: string;
  /** Custom property of the style sheet, such as `--busy`. */
  readonly color: string;
  readonly unit: string;
}

export interface ChartProps {
  /** What it shows, for a screen reader. */
  readonly label: string;
  readonly lines: readonly Line[];
  /** Times in s, then values of each line. */
  readonly data: uPlot.AlignedData;
  readonly height: number;
  /** Upper end of the scale; null: the largest value. */
  readonly max: number | null;
  /** Without axes, cursor and legend. */
  readonly small?: boolean;
}

export function Chart({ label, lines, data, height, max, small = false }: ChartProps) {
  const options = (look: Look) => lineOptions(look, { lines, max, small });
  const shape = JSON.stringify([lines, max, small]);
  return <Plot label={label} data={data} height={height} small={small} shape={shape} options={options} />;
}

/** Colours of the page, and an axis in them. */
export interface Look {
  readonly color: (name: string) => string;
  readonly axis: uPlot.Axis;
}

export interface PlotProps {
  readonly label: string;
  readonly data: uPlot.AlignedData;
  readonly height: number;
  readonly small?: boolean;
  /** Everything that `options` depends on: it is drawn anew when this changes. */
  readonly shape: string;
  readonly options: (look: Look) => Omit<uPlot.Options, 'width' | 'height'>;
}

export function Plot({ label, data, height, small = false, shape, options }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef({ data, options });
  latest.current = { data, options };

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for the options
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const size = () => ({ width: Math.max(40, element.clientWidth), height });
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot({ ...size(), ...latest.current.options(lookOf(element)) }, latest.current.data, element);
    };
    const sized = new ResizeObserver(() => plot.current?.setSize(size()));
    draw();
    sized.observe(element);
    // Colours are read when it is made.
    const themed = new MutationObserver(draw);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    return () => {
      sized.disconnect();
      themed.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, height]);

  useEffect(() => plot.current?.setData(data), [data]);

  return <div ref={place} className={small ? 'chart small' : 'chart'} role="img" aria-label={label} />;
}

function lookOf(element: HTMLElement): Look {
  const style = getComputedStyle(element);
  const color = (name: string) => style.getPropertyValue(name).trim();
  const grid = { stroke: color('--border'), width: 1 };
  return { color, axis: { stroke: color('--muted'), grid, ticks: { show: false }, font: '11px system-ui' } };
}

/** Times of the day at an axis. */
function clocks(_plot: uPlot, times: readonly number[]): string[] {
  return times.map((time) => new Date(time * 1000).toLocaleTimeString('en-GB'));
}

function lineOptions({ color, axis }: Look, { lines, max, small }: Required<Pick<ChartProps, 'lines' | 'max' | 'small'>>) {
  return {
    padding: small ? [2, 0, 2, 0] : [8, 28, 0, 0],
    cursor: small ? { show: false } : { y: false, drag: { x: false, y: false } },
    legend: { show: !small },
    scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, max ?? Math.max(1, high * 1.1)] } },
    axes: small
      ? [{ show: false }, { show: false }]
      : [
          { ...axis, space: 90, values: clocks },
          { ...axis, size: 44 },
        ],
    series: [
      { value: (_plot, value) => (value == null ? '–' : new Date(value * 1000).toLocaleTimeString('en-GB')) },
      ...lines.map(
        (line, at): uPlot.Series => ({
          label: line.label,
          stroke: color(line.color),
          width: small ? 1.5 : 2,
          // Two lines differ also without colours.
          ...(at > 0 && { dash: [6, 4] }),
          ...(small && { fill: color('--shade') }),
          points: { show: false },
          value: (_plot, value) => (value == null ? '–' : `${Math.round(value)}${line.unit}`),
        }),
      ),
    ],
  } satisfies Omit<uPlot.Options, 'width' | 'height'>;
}
