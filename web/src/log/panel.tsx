/** The output of a job: a window of lines that are all there for the browser, so that selecting, copying and its own search work. */
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';
import { ask, query } from '../api.ts';
import { problemText } from '../parts/dialog.tsx';
import { Icon } from '../parts/icon.tsx';
import { bytesText } from '../words/text.ts';
import { type Look, piecesOf, textOf } from './ansi.ts';
import { looksLikeError } from './errors.ts';
import type { Block, Line } from './lines.ts';
import { type Found, type LogSession, type LogState, type Match, openLog } from './session.ts';

interface PanelProps {
  readonly job: string;
  readonly ended: boolean;
  readonly waits: boolean;
}

/** ms that a tab may be out of sight before its connection is given up: browsers have six for all tabs of a daemon. */
const patience = 2_000;

const noLines: LogState = {
  window: 0,
  blocks: [],
  open: [],
  first: null,
  before: { stdout: 0, stderr: 0 },
  atEnd: false,
  state: 'loading',
  problem: null,
};

export function LogPanel({ job, waits }: PanelProps) {
  const [state, setState] = useState<LogState>(noLines);
  const session = useRef<LogSession | null>(null);
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(() => window.innerWidth < 640);
  const [search, setSearch] = useState<Search>(noSearch);
  /** Number of the line that was jumped to. */
  const [target, setTarget] = useState<number | null>(null);
  /** Whether it has yet to be brought into view. */
  const jumping = useRef(false);
  const scroller = useRef<HTMLElement>(null);

  useEffect(() => {
    const opened = openLog({
      read: async (asked, signal) => {
        const { body } = await ask(`/v1/logs${query({ job, ...asked })}`, { signal });
        return body ?? new ReadableStream();
      },
      onState: setState,
      nextFrame: (draw) => void (document.hidden ? setTimeout(draw, 500) : requestAnimationFrame(draw)),
      after(ms, call) {
        const timer = setTimeout(call, ms);
        return () => clearTimeout(timer);
      },
    });
    session.current = opened;
    let hiding: number | undefined;
    const look = () => {
      window.clearTimeout(hiding);
      if (document.hidden) hiding = window.setTimeout(() => opened.sleep(true), patience);
      else opened.sleep(false);
    };
    look();
    document.addEventListener('visibilitychange', look);
    void opened.showEnd();
    return () => {
      document.removeEventListener('visibilitychange', look);
      window.clearTimeout(hiding);
      opened.close();
    };
  }, [job]);

  const toEnd = useCallback(() => {
    setTarget(null);
    setFollow(true);
    session.current?.hold(false);
    if (!stateRef.current.atEnd) void session.current?.showEnd();
    const element = scroller.current;
    if (element === null) return;
    element.scrollTop = element.scrollHeight;
    bringIntoView(element);
  }, []);
  const stateRef = useRef(state);
  stateRef.current = state;

  const toStart = () => {
    unfollow();
    bringIntoView(scroller.current);
    if (stateRef.current.first === 0) scroller.current?.scrollTo({ top: 0 });
    else void session.current?.showAt();
  };
  const unfollow = () => {
    setFollow(false);
    session.current?.hold(true);
  };

  const earlier = () => {
    unfollow();
    void session.current?.earlier();
  };

  /** Brings a found line into the window, and into view. */
  const show = useCallback((match: Match) => {
    setFollow(false);
    session.current?.hold(true);
    setTarget(match.number);
    jumping.current = true;
    bringIntoView(scroller.current);
    const { first, blocks } = stateRef.current;
    const count = blocks.reduce((sum, { lines }) => sum + lines.length, 0);
    if (first === null || match.number < first || match.number >= first + count) void session.current?.showAt(match.from);
  }, []);

  const find = useFind(session, setSearch, show);
  const step = useCallback(
    (by: number) => {
      const { found, at } = search;
      if (found === null || found.matches.length === 0) return;
      const next = (at + by + found.matches.length) % found.matches.length;
      setSearch({ ...search, at: next });
      const match = found.matches[next];
      if (match !== undefined) show(match);
    },
    [search, show],
  );

  useKeys({ step, toEnd, toStart, firstError: () => find.firstError() });
  useScroll(scroller, follow, target, jumping);

  const onScroll = () => {
    const element = scroller.current;
    if (element === null) return;
    const fromEnd = element.scrollHeight - element.scrollTop - element.clientHeight;
    if (follow && fromEnd > 60) unfollow();
    else if (!follow && fromEnd < 4 && state.atEnd && !jumping.current) {
      setFollow(true);
      session.current?.hold(false);
    }
  };

  const pattern = useMemo(() => (search.text === '' ? null : new RegExp(escaped(search.text), 'gi')), [search.text]);
  const before = state.before.stdout + state.before.stderr;
  const isEmpty = state.blocks.length === 0 && state.open.length === 0;
  return (
    <section aria-labelledby="output" className="panel log-panel">
      <div className="log-bar">
        <h2 id="output">Output</h2>
        <span className="log-state">— {stateText(state, waits)}</span>
        <search>
          <form
            className="log-search"
            onSubmit={(event) => {
              event.preventDefault();
              const text = String(new FormData(event.currentTarget).get('text') ?? '');
              if (text === search.text && search.found !== null) step(1);
              else void find.all(text);
            }}
          >
            <input
              name="text"
              type="search"
              aria-label="Search the output"
              placeholder="Search"
              autoComplete="off"
              id="log-search"
            />
            <button type="submit">
              <Icon shape="search" />
              <span className="unseen">Search</span>
            </button>
          </form>
        </search>
        <SearchState search={search} step={step} cancel={find.cancel} />
        <button type="button" onClick={() => void find.firstError()}>
          First error
        </button>
        <button type="button" onClick={toStart}>
          Start
        </button>
        <button type="button" aria-pressed={follow} onClick={() => (follow ? unfollow() : toEnd())}>
          {state.state === 'ended' ? 'End' : 'Follow'}
        </button>
        <button type="button" aria-pressed={wrap} onClick={() => setWrap(!wrap)}>
          Wrap
        </button>
      </div>
      <section
        className={`log${wrap ? ' wrap' : ''}${isEmpty ? ' empty' : ''}`}
        ref={scroller}
        onScroll={onScroll}
        aria-label="Lines of output"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by the keyboard
        tabIndex={0}
      >
        {before > 0 && (
          <button type="button" className="log-more" onClick={earlier}>
            Show earlier lines ({bytesText(before)} before these)
          </button>
        )}
        {state.blocks.map((block, at) => (
          <BlockView key={block.key} block={block} first={numberOf(state, at)} pattern={pattern} target={target} />
        ))}
        {state.open.length > 0 && (
          <div className="block">
            {state.open.map((line) => (
              <LineView key={line.key} line={line} number={null} pattern={pattern} current={false} />
            ))}
          </div>
        )}
        {!state.atEnd && (state.state === 'stopped' || state.state === 'ended') && state.blocks.length > 0 && (
          <button type="button" className="log-more" onClick={() => void session.current?.later()}>
            Show later lines
          </button>
        )}
        {state.problem !== null && <p className="log-problem">{state.problem}</p>}
      </section>
    </section>
  );
}

/** Where a window is too small for the whole page, the page is scrolled as far as is needed to see all of the output's panel. */
function bringIntoView(log: HTMLElement | null): void {
  log?.closest('.log-panel')?.scrollIntoView({ block: 'nearest' });
}

function stateText({ state, blocks }: LogState, waits: boolean): string {
  if (state === 'following') return blocks.length === 0 ? (waits ? 'the job has not begun' : 'no output yet') : 'live';
  if (state === 'ended') return blocks.length > 0 ? 'ended' : waits ? 'the job has not begun' : 'there is no output';
  return { loading: 'reading …', stopped: 'does not follow', waiting: 'connection lost', failed: 'not available' }[state];
}

interface Search {
  readonly text: string;
  readonly found: Found | null;
  /** Which match is shown. */
  readonly at: number;
  /** Bytes that were searched so far; null: it is over. */
  readonly read: number | null;
  /** What it says if nothing was found. */
  readonly nothing: string;
}

const noSearch: Search = { text: '', found: null, at: 0, read: null, nothing: '' };

function useFind(session: React.RefObject<LogSession | null>, setSearch: (search: Search) => void, show: (match: Match) => void) {
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  const run = async (text: string, test: (line: string) => boolean, onlyFirst: boolean, nothing: string) => {
    running.current?.abort();
    const here = new AbortController();
    running.current = here;
    const begun = { ...noSearch, text, nothing };
    setSearch({ ...begun, read: 0 });
    let said = 0;
    const onRead = (bytes: number) => {
      if (bytes - said < 8 << 20 || here.signal.aborted) return;
      said = bytes;
      setSearch({ ...begun, read: bytes });
    };
    try {
      const found = await session.current?.find(test, { onlyFirst, onRead }, here.signal);
      if (here.signal.aborted || found === undefined) return;
      setSearch({ ...begun, found });
      const [match] = found.matches;
      if (match !== undefined) show(match);
    } catch (error) {
      if (!here.signal.aborted) setSearch({ ...begun, found: { matches: [], count: 0 }, nothing: problemText(error) });
    }
  };
  return {
    all(text: string) {
      if (text === '') return setSearch(noSearch);
      const wanted = text.toLowerCase();
      return run(text, (line) => textOf(line).toLowerCase().includes(wanted), false, 'not found');
    },
    firstError: () => run('', (line) => looksLikeError(textOf(line)), true, 'no line looks like an error'),
    cancel() {
      running.current?.abort();
      setSearch(noSearch);
    },
  };
}

function SearchState({
  search,
  step,
  cancel,
}: {
  readonly search: Search;
  readonly step: (by: number) => void;
  readonly cancel: () => void;
}) {
  const { found, at, read, text, nothing } = search;
  if (read !== null) {
    return (
      <span className="search-state">
        {read === 0 ? 'searching …' : `searched ${bytesText(read)}`}{' '}
        <button type="button" onClick={cancel}>
          Stop
        </button>
      </span>
    );
  }
  if (found === null) return null;
  if (found.count === 0) return <output className="search-state">{nothing}</output>;
  if (text === '') return null;
  const more = found.count > found.matches.length ? ` (${found.count.toLocaleString('en-US')} in all)` : '';
  return (
    <span className="search-state">
      <output>
        {at + 1} of {found.matches.length.toLocaleString('en-US')}
        {more}
      </output>
      <button type="button" aria-label="Previous match" onClick={() => step(-1)}>
        ↑
      </button>
      <button type="button" aria-label="Next match" onClick={() => step(1)}>
        ↓
      </button>
    </span>
  );
}

/** Keeps the end in view while following, the wanted line after a jump, and otherwise what was in view where it is. */
function useScroll(
  scroller: React.RefObject<HTMLElement | null>,
  follow: boolean,
  target: number | null,
  jumping: React.RefObject<boolean>,
): void {
  const shown = useRef<{ readonly key: string; readonly top: number } | null>(null);
  // After every change of what is drawn.
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    const wanted = jumping.current && target !== null ? element.querySelector(`[data-n="${target + 1}"]`) : null;
    if (wanted !== null) {
      const middle = (element.clientHeight - wanted.clientHeight) / 2;
      element.scrollTop += wanted.getBoundingClientRect().top - element.getBoundingClientRect().top - middle;
      jumping.current = false;
    } else if (follow) element.scrollTop = element.scrollHeight;
    else if (shown.current !== null) {
      const block = element.querySelector<HTMLElement>(`[data-block="${shown.current.key}"]`);
      if (block !== null) element.scrollTop += block.getBoundingClientRect().top - shown.current.top;
    }
  });
  // What is above the output comes and goes, and leaves it more or less of the window.
  useEffect(() => {
    const element = scroller.current;
    if (element === null || !follow) return;
    const resized = new ResizeObserver(() => {
      element.scrollTop = element.scrollHeight;
    });
    resized.observe(element);
    return () => resized.disconnect();
  }, [scroller, follow]);
  useEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    const remember = () => {
      const { top, bottom } = element.getBoundingClientRect();
      const block = [...element.querySelectorAll<HTMLElement>('[data-block]')].find((one) => {
        const box = one.getBoundingClientRect();
        return box.bottom > top && box.top < bottom;
      });
      shown.current = block === undefined ? null : { key: block.dataset.block ?? '', top: block.getBoundingClientRect().top };
    };
    remember();
    element.addEventListener('scroll', remember, { passive: true });
    return () => element.removeEventListener('scroll', remember);
  });
}

interface Keys {
  readonly step: (by: number) => void;
  readonly toEnd: () => void;
  readonly toStart: () => void;
  readonly firstError: () => void;
}

/** Named by the shell's list of shortcuts; it sends them as events, after it has looked whether somebody types. */
function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const act = (event: Event) => {
      const key = event instanceof CustomEvent ? event.detail : null;
      if (key === 'e') latest.current.firstError();
      else if (key === 'f') latest.current.toEnd();
      else if (key === 's') latest.current.toStart();
      else if (key === 'n') latest.current.step(1);
      else if (key === 'p') latest.current.step(-1);
      else if (key === 'l') document.getElementById('log-search')?.focus();
    };
    window.addEventListener('onejob-key', act);
    return () => window.removeEventListener('onejob-key', act);
  }, []);
}

/** Number of a block's first line; null if unknown. */
function numberOf({ first, blocks }: LogState, at: number): number | null {
  if (first === null) return null;
  return blocks.slice(0, at).reduce((sum, { lines }) => sum + lines.length, first);
}

interface BlockProps {
  readonly block: Block;
  readonly first: number | null;
  readonly pattern: RegExp | null;
  readonly target: number | null;
}

const BlockView = memo(
  function BlockView({ block, first, pattern, target }: BlockProps) {
    return (
      <div className="block" data-block={block.key} data-lines={block.lines.length}>
        {block.lines.map((line, at) => {
          const number = first === null ? null : first + at;
          return (
            <LineView key={line.key} line={line} number={number} pattern={pattern} current={number !== null && number === target} />
          );
        })}
      </div>
    );
  },
  (a, b) => a.block === b.block && a.first === b.first && a.pattern === b.pattern && isIn(a) === isIn(b),
);

function isIn({ block, first, target }: BlockProps): number | null {
  return first !== null && target !== null && target >= first && target < first + block.lines.length ? target : null;
}

interface LineProps {
  readonly line: Line;
  readonly number: number | null;
  readonly pattern: RegExp | null;
  readonly current: boolean;
}

const LineView = memo(function LineView({ line, number, pattern, current }: LineProps) {
  const name = `line ${line.stream}${current ? ' current' : ''}`;
  const { pieces } = piecesOf(line.text, line.look);
  return (
    <div className={name} data-n={number === null ? undefined : number + 1}>
      <span className="line-text">
        {pieces.map((piece, at) => {
          const text = pattern === null ? piece.text : marked(piece.text, pattern);
          // biome-ignore lint/suspicious/noArrayIndexKey: pieces of a line keep their order
          return piece.look === line.look && isUsual(piece.look) ? text : <Styled key={at} look={piece.look} text={text} />;
        })}
      </span>
    </div>
  );
});

function isUsual({ color, background, bold, dim, italic, underline, inverse }: Look): boolean {
  return color === null && background === null && !bold && !dim && !italic && !underline && !inverse;
}

function Styled({ look, text }: { readonly look: Look; readonly text: React.ReactNode }) {
  const [front, back] = look.inverse ? [look.background ?? 'back', look.color ?? 'front'] : [look.color, look.background];
  const words = ['bold', 'dim', 'italic', 'underline'] as const;
  const classes: string[] = words.filter((word) => look[word]);
  const style: React.CSSProperties = {};
  if (front !== null && /^(c\d+|back)$/.test(front)) classes.push(`fg-${front}`);
  else if (front !== null) style.color = front;
  if (back !== null && /^(c\d+|front)$/.test(back)) classes.push(`bg-${back}`);
  else if (back !== null) style.background = back;
  return (
    <span className={classes.join(' ')} style={style}>
      {text}
    </span>
  );
}

function marked(text: string, pattern: RegExp): React.ReactNode {
  const parts: React.ReactNode[] = [];
  let at = 0;
  for (const { 0: found, index } of text.matchAll(pattern)) {
    parts.push(text.slice(at, index), <mark key={index}>{found}</mark>);
    at = index + found.length;
  }
  return parts.length === 0 ? text : [...parts, text.slice(at)];
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
