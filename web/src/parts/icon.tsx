/** Signs that differ by their shape, not only by their colour. */
import type { Tone } from '../words/words.ts';

const shapes = {
  check: 'M3 8.5 6.5 12 13 4.5',
  cross: 'M4 4l8 8M12 4l-8 8',
  play: 'M5 3.5v9l7.5-4.5z',
  ring: 'M8 3.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9z',
  alert: 'M8 2.5 14.5 13.5h-13zM8 6.5v3.2M8 11.6v.2',
  dash: 'M3.5 8h9',
  dots: 'M3.5 8h.01M8 8h.01M12.5 8h.01',
  chevron: 'M4 6l4 4 4-4',
  search: 'M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.5 10.5 14 14',
  theme: 'M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11',
  help: 'M5.8 6a2.3 2.3 0 1 1 3.4 2c-.8.5-1.2.9-1.2 1.8M8 12.3v.1',
} as const;

export function Icon({ shape }: { readonly shape: keyof typeof shapes }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={shapes[shape]} />
    </svg>
  );
}

const toneShapes: Readonly<Record<Tone, keyof typeof shapes>> = {
  ok: 'check',
  busy: 'play',
  calm: 'ring',
  warn: 'alert',
  bad: 'cross',
  off: 'dash',
};

export function ToneIcon({ tone }: { readonly tone: Tone }) {
  return <Icon shape={toneShapes[tone]} />;
}

/** A state as a word with its sign. */
export function Badge({ word, tone }: { readonly word: string; readonly tone: Tone }) {
  return (
    <span className={`badge tone-${tone}`}>
      <ToneIcon tone={tone} />
      {word}
    </span>
  );
}
