/** The frame around every page: where one is, whether what is shown is current, and the keyboard. */
import { type ReactNode, useEffect, useRef, useState } from 'react';
import type { Link } from './live/connection.ts';
import { useLive } from './live/store.ts';
import { forgetLogin } from './login.ts';
import { HealthPage } from './pages/health.tsx';
import { HistoryPage } from './pages/history.tsx';
import { JobPage } from './pages/job.tsx';
import { LoginHelp } from './pages/login.tsx';
import { NowPage, useWorld } from './pages/now.tsx';
import { Boundary } from './parts/boundary.tsx';
import { Dialog, Questions } from './parts/dialog.tsx';
import { Find } from './parts/find.tsx';
import { Icon } from './parts/icon.tsx';
import { parseRoute, type Route, useHash } from './route.ts';
import { keyOf, shortcuts, usesKeys } from './shortcuts.ts';
import { nextTheme, readTheme, setTheme } from './theme.ts';
import { clockText, plain } from './words/text.ts';

export function App() {
  const link = useLive((live) => live.link);
  const known = useLive(({ world }) => world !== null);
  const route = parseRoute(useHash());
  const [open, setOpen] = useState<'help' | 'find' | null>(null);
  const hostName = useHostName();
  // Tabs of several hosts are told apart by their beginning.
  const title = hostName === null ? `${pageTitle(route)} · onejob` : `${hostName} · ${pageTitle(route)}`;
  useEffect(() => {
    document.title = title;
  }, [title]);
  useKeyboard(setOpen);
  const main = useRef<HTMLElement>(null);
  // A new page begins at its top, and a screen reader reads from there.
  const place = JSON.stringify(route.page === 'history' ? { page: 'history' } : route);
  const placed = useRef(place);
  useEffect(() => {
    if (placed.current === place) return;
    placed.current = place;
    main.current?.focus();
    window.scrollTo({ top: 0 });
  }, [place]);

  if (link.kind === 'login') {
    return (
      <main className="login">
        <h1>onejob</h1>
        <p role="alert">This browser is not logged in, or no longer.</p>
        <LoginHelp />
      </main>
    );
  }
  const current = link.kind === 'live';
  return (
    <Questions>
      <button type="button" className="skip" onClick={() => main.current?.focus()}>
        Skip to the content
      </button>
      <Header route={route} onOpen={setOpen} />
      <Banner link={link} known={known} />
      {/* What may be stale can neither be read as current nor acted on. */}
      <main id="main" ref={main} tabIndex={-1} className={current || !known ? '' : 'stale'} inert={!current && known}>
        <Boundary key={place}>
          <Page route={route} />
        </Boundary>
      </main>
      {open === 'help' && <Help onClose={() => setOpen(null)} />}
      {open === 'find' && <Find onClose={() => setOpen(null)} />}
    </Questions>
  );
}

/** Of the daemon's host; null before the first answer. */
function useHostName(): string | null {
  return useLive(({ world }) => (world?.host.hostName === undefined ? null : plain(world.host.hostName)));
}

function pageTitle(route: Route): string {
  if (route.page === 'job') return `Job ${plain(route.id)}`;
  return { now: 'Now', history: 'History', health: 'Health' }[route.page];
}

function Page({ route }: { readonly route: Route }) {
  const world = useWorld();
  if (world === null) return <p className="page nothing">Reading …</p>;
  switch (route.page) {
    case 'job':
      return <JobPage key={route.id} id={route.id} />;
    case 'history':
      return <HistoryPage filter={route.query} />;
    case 'health':
      return <HealthPage />;
    case 'now':
      return <NowPage world={world} />;
  }
}

function Header({ route, onOpen }: { readonly route: Route; readonly onOpen: (open: 'help' | 'find') => void }) {
  const pages = [
    ['now', '#/', 'Now'],
    ['history', '#/history', 'History'],
    ['health', '#/health', 'Health'],
  ] as const;
  const hostName = useHostName();
  return (
    <header className="bar">
      <a className="brand" href="#/">
        <img src="/favicon.svg" alt="" width="20" height="20" />
        <bdi title={hostName === null ? undefined : `onejob on ${hostName}`}>{hostName ?? 'onejob'}</bdi>
      </a>
      <nav aria-label="Pages">
        {pages.map(([page, href, name]) => (
          <a key={page} href={href} aria-current={route.page === page ? 'page' : undefined}>
            {name}
          </a>
        ))}
      </nav>
      <span className="bar-end">
        <button type="button" className="quiet find" onClick={() => onOpen('find')}>
          <Icon shape="search" /> <span className="wide">Find a job</span>
        </button>
        <Role />
        <LinkState />
        <Theme />
        <button type="button" className="quiet" aria-label="Help and shortcuts" title="Help (?)" onClick={() => onOpen('help')}>
          <Icon shape="help" />
        </button>
      </span>
    </header>
  );
}

function Role() {
  const me = useLive((live) => live.me);
  if (me === null || me.role === 'operator') return null;
  return (
    <span
      className="role"
      title={me.role === 'read' ? 'You may look, and change nothing.' : 'Run and cancel your jobs with onejob in a terminal.'}
    >
      read-only
    </span>
  );
}

function LinkState() {
  const kind = useLive(({ link }) => link.kind);
  const words = { reading: 'reading', live: 'live', login: 'logged out', asleep: 'asleep', lost: 'not current' };
  return <span className={`link-state link-${kind}`}>{words[kind]}</span>;
}

function Theme() {
  const [theme, choose] = useState(readTheme);
  const names = { auto: 'as the system', light: 'light', dark: 'dark' };
  const next = nextTheme(theme);
  const change = () => {
    setTheme(next);
    choose(next);
  };
  return (
    <button
      type="button"
      className="quiet"
      aria-label={`Colours: ${names[theme]}. Change to ${names[next]}`}
      title={`Colours: ${names[theme]}`}
      onClick={change}
    >
      <Icon shape="theme" />
    </button>
  );
}

function Banner({ link, known }: { readonly link: Link; readonly known: boolean }) {
  const left = useSecondsUntil(link.kind === 'lost' ? link.retryAt : null);
  let text: ReactNode = null;
  if (link.kind === 'lost') {
    const since = clockText(link.since, Date.now());
    text = known
      ? `Connection lost since ${since}. What is greyed out may be stale.`
      : `The daemon cannot be reached since ${since}.`;
  } else if (link.kind === 'asleep') text = 'This tab was out of sight. Reading everything again …';
  else if (link.kind === 'reading' && known) text = 'Connected again. Reading everything …';
  return (
    <div className={text === null ? 'banner' : 'banner shown'}>
      <span role="status">{text}</span>
      {link.kind === 'lost' && (
        <span className="nothing">
          {plain(link.why)} {left <= 0 ? 'Trying now.' : `Next try in ${left} s.`}
        </span>
      )}
    </div>
  );
}

function useSecondsUntil(at: number | null): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (at === null) return;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [at]);
  return at === null ? 0 : Math.max(0, Math.ceil((at - now) / 1_000));
}

/** Keys of pages and dialogs are handled here; those of a log are passed on. */
function useKeyboard(open: (open: 'help' | 'find') => void): void {
  useEffect(() => {
    const act = (event: KeyboardEvent) => {
      const key = keyOf(event);
      if (key === null) return;
      const { action } = key;
      if (action.startsWith('#')) window.location.hash = action;
      else if (action === 'help' || action === 'find') open(action);
      else if (action === 'theme') document.querySelector<HTMLButtonElement>('[aria-label^="Colours"]')?.click();
      else window.dispatchEvent(new CustomEvent('onejob-key', { detail: action }));
      event.preventDefault();
    };
    document.addEventListener('keydown', act);
    return () => document.removeEventListener('keydown', act);
  }, [open]);
}

function Help({ onClose }: { readonly onClose: () => void }) {
  const [on, setOn] = useState(usesKeys.get);
  const version = useLive(({ world }) => world?.host.version ?? '');
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="keys">
        {shortcuts.map(({ key, what }) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <label className="check">
        <input
          type="checkbox"
          checked={on}
          onChange={(event) => {
            usesKeys.set(event.currentTarget.checked);
            setOn(event.currentTarget.checked);
          }}
        />
        Use these keys
      </label>
      <p className="nothing">
        <a href="/docs/" target="_blank" rel="noopener">
          Documentation
        </a>{' '}
        of onejob {version}
      </p>
      <div className="buttons">
        <button
          type="button"
          onClick={() => {
            void forgetLogin().finally(() => window.location.reload());
          }}
        >
          Log out
        </button>
        <button type="button" onClick={(event) => event.currentTarget.closest('dialog')?.close()}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
