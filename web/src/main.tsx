/** Puts the dashboard together: the store, the connection that keeps it current, and the pages. */
import { createRoot } from 'react-dom/client';
import { get } from './api.ts';
import { App } from './app.tsx';
import { keepCurrent } from './live/connection.ts';
import { createStore, createTicker, ServicesContext } from './live/store.ts';
import { watchVersion } from './live/version.ts';
import { onLoginChange } from './login.ts';
import { LoginPage } from './pages/login.tsx';
import { Boundary } from './parts/boundary.tsx';
import { startTheme } from './theme.ts';
import type { Me } from './views.ts';

/** ms that a tab may be out of sight before it costs the daemon nothing more. */
const patience = 60_000;

startTheme();
dismissWorkers();
const place = document.getElementById('root');
if (place === null) throw new Error('index.html has no place for the dashboard.');
const root = createRoot(place);
if (/^\/login(\/|$)/.test(window.location.pathname)) root.render(<LoginPage />);
else start();

function start(): void {
  const store = createStore({ link: { kind: 'reading' }, world: null, me: null });
  const ticker = createTicker(Date.now);
  let offset = 0;
  let running: AbortController | null = null;
  const sawVersion = watchVersion({ storage: window.sessionStorage, reload: () => window.location.reload() });

  const connect = () => {
    running = new AbortController();
    void keepCurrent(
      {
        onLink(link) {
          ticker.set(offset, link.kind === 'live');
          store.set({ link });
          if (link.kind === 'live') readMe();
        },
        onWorld(world, ahead) {
          offset = ahead;
          store.set({ world });
          sawVersion(world.host.version);
        },
        nextFrame: (draw) => void (document.hidden ? setTimeout(draw, 500) : requestAnimationFrame(draw)),
        now: Date.now,
        after(ms, call) {
          const timer = setTimeout(call, ms);
          return () => clearTimeout(timer);
        },
      },
      running.signal,
    );
  };

  /** Who one is may have changed with the daemon. Without an answer one may only look. */
  const readMe = () => {
    get<Me>('/v1/me').then(
      (me) => store.set({ me }),
      () => store.set({ me: { role: 'read', user: null } }),
    );
  };

  let hiding: number | undefined;
  document.addEventListener('visibilitychange', () => {
    window.clearTimeout(hiding);
    if (document.hidden) {
      hiding = window.setTimeout(() => {
        running?.abort();
        running = null;
        ticker.set(offset, false);
        store.set({ link: { kind: 'asleep' } });
      }, patience);
    } else if (running === null && store.get().link.kind !== 'login') connect();
  });
  onLoginChange(() => window.location.reload());
  connect();
  root.render(
    <ServicesContext value={{ store, ticker }}>
      <Boundary>
        <App />
      </Boundary>
    </ServicesContext>,
  );
}

/** This page has none: it may be of another program that had this port. */
function dismissWorkers(): void {
  const found = navigator.serviceWorker?.getRegistrations().then((all) => Promise.all(all.map((one) => one.unregister())));
  found?.catch(() => {});
}
