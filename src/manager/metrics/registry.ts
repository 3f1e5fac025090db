/** The metrics as prom-client keeps them. Loaded with the first scrape: most daemons are never scraped. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import { definitions, type LabelsOf, type MetricName, type NameOf } from './definitions.ts';

export interface MetricRegistry {
  /** Forgets the values of all gauges, so that what is gone has no series. */
  clear(): void;
  set<N extends NameOf<'gauge'>>(name: N, labels: LabelsOf<N>, value: number): void;
  /** `by`: 0 makes the series exist. */
  count<N extends NameOf<'counter'>>(name: N, labels: LabelsOf<N>, by?: number): void;
  /** `seconds`: null makes the series exist. */
  observe<N extends NameOf<'histogram'>>(name: N, labels: LabelsOf<N>, seconds: number | null): void;
  /** In the text format of Prometheus, version 0.0.4. */
  text(): Promise<string>;
}

export function createRegistry(): MetricRegistry {
  const registry = new Registry();
  const registers = [registry];
  const gauges = new Map<MetricName, Gauge>();
  const counters = new Map<MetricName, Counter>();
  const histograms = new Map<MetricName, Histogram>();
  for (const [key, definition] of Object.entries(definitions)) {
    const name = key as MetricName;
    const { type, help } = definition;
    const about = { name, help, labelNames: [...definition.labels], registers };
    if (type === 'gauge') gauges.set(name, new Gauge(about));
    else if (type === 'counter') counters.set(name, new Counter(about));
    else histograms.set(name, new Histogram({ ...about, buckets: [...definition.buckets] }));
  }
  return {
    clear() {
      for (const gauge of gauges.values()) gauge.reset();
    },
    set: (name, labels, value) => gauges.get(name)?.set(printable(labels), value),
    count: (name, labels, by = 1) => counters.get(name)?.inc(printable(labels), by),
    observe(name, labels, seconds) {
      const histogram = histograms.get(name);
      if (seconds === null) histogram?.zero(printable(labels));
      else histogram?.observe(printable(labels), seconds);
    },
    text: () => registry.metrics(),
  };
}

/** Longest value of a label, in characters. */
const longest = 200;

/**
 * Jobs get their names elsewhere. prom-client escapes what would end a value; nothing escapes the other control characters, which
 * no name needs.
 */
function printable(labels: Readonly<Record<string, string>>): Record<string, string> {
  const shown: Record<string, string> = {};
  for (const name in labels) {
    const value = labels[name] ?? '';
    shown[name] = /[\p{Cc}\p{Cs}]/u.test(value) || value.length > longest ? cut(value) : value;
  }
  return shown;
}

function cut(value: string): string {
  return value
    .slice(0, longest)
    .toWellFormed()
    .replace(/\p{Cc}/gu, ' ');
}
