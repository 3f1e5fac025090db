/** Lines over time, by uPlot. */
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
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(data);
  latest.current = data;
  const shape = JSON.stringify([lines, height, max, small]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for all of them
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsOf(element, { lines, height, max, small }), latest.current, element);
    };
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(40, element.clientWidth), height }));
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
  }, [shape]);

  useEffect(() => plot.current?.setData(data), [data]);

  return <div ref={place} className={small ? 'chart small' : 'chart'} role="img" aria-label={label} />;
}

/** Times of the day at an axis. */
function clocks(_plot: uPlot, times: readonly number[]): string[] {
  return times.map((time) => new Date(time * 1000).toLocaleTimeString('en-GB'));
}

function optionsOf(element: HTMLElement, { lines, height, max, small }: Omit<ChartProps, 'label' | 'data'>): uPlot.Options {
  const style = getComputedStyle(element);
  const color = (name: string) => style.getPropertyValue(name).trim();
  const [muted, border] = [color('--muted'), color('--border')];
  const axis: uPlot.Axis = { stroke: muted, grid: { stroke: border, width: 1 }, ticks: { show: false }, font: '11px system-ui' };
  return {
    width: Math.max(40, element.clientWidth),
    height,
    padding: small ? [2, 0, 2, 0] : [8, 8, 0, 0],
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
  };
}
