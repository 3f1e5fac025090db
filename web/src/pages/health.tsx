/** What `onejob doctor` says, and what happened while this page was open. */
import { type ReactNode, useCallback, useEffect, useState } from 'react';
import { get } from '../api.ts';
import { useLive } from '../live/store.ts';
import { CodeLink, explained } from '../parts/dialog.tsx';
import { Icon, ToneIcon } from '../parts/icon.tsx';
import { TableScroll } from '../parts/scroll.tsx';
import { Age, Clock } from '../parts/time.tsx';
import { jobHref } from '../route.ts';
import type { FindingView, ProofView } from '../views.ts';
import { plain } from '../words/text.ts';

export function HealthPage() {
  return (
    <div className="page health">
      <h1>Health</h1>
      <Daemon />
      <Doctor />
      <Changes />
      <Proofs />
    </div>
  );
}

function Daemon() {
  const host = useLive(({ world }) => world?.host);
  if (host === undefined) return null;
  const facts: [string, string | null][] = [
    ['Version', host.version],
    ['Process', String(host.pid)],
    ['Config', host.config ?? 'none (defaults)'],
    ['State', host.stateDir],
    ['Runtime', host.runtimeReason],
    ['Isolation', host.weaker],
  ];
  return (
    <dl className="facts">
      {facts.map(
        ([name, value]) =>
          value !== null && (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{plain(value)}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

const tones = { ok: 'ok', warning: 'warn', error: 'bad' } as const;
const words = { ok: 'in order', warning: 'warning', error: 'error' } as const;
const order = { error: 0, warning: 1, ok: 2 } as const;

function Doctor() {
  const [findings, setFindings] = useState<readonly FindingView[] | null>(null);
  const [problem, setProblem] = useState<ReactNode>(null);
  const [readAt, setReadAt] = useState<number | null>(null);
  const read = useCallback(() => {
    const gone = new AbortController();
    setFindings(null);
    get<FindingView[]>('/v1/doctor', gone.signal).then(
      (found) => {
        setFindings(found.toSorted((a, b) => order[a.level] - order[b.level]));
        setProblem(null);
        setReadAt(Date.now());
      },
      (error: unknown) => {
        if (!gone.signal.aborted) setProblem(explained(error));
      },
    );
    return () => gone.abort();
  }, []);
  useEffect(read, [read]);
  return (
    <section className="panel" aria-labelledby="doctor">
      <h2 id="doctor">
        What <code>onejob doctor</code> says
        <button type="button" className="quiet" onClick={() => void read()}>
          Look again
        </button>
      </h2>
      {problem !== null && (
        <p role="alert" className="problem">
          {problem}
        </p>
      )}
      {findings === null && problem === null && <p className="nothing">Looking at the host …</p>}
      <ul className="findings">
        {findings?.map(({ level, subject, message, hint, code }) => (
          <li key={`${subject} ${message}`} className={`finding tone-${tones[level]}`}>
            <ToneIcon tone={tones[level]} />
            <span className="unseen">{words[level]}: </span>
            <b>{plain(subject)}</b>
            <span>
              <bdi>{plain(message)}</bdi>
              {hint !== null && <span className="hint"> {plain(hint)}</span>}
              {code !== undefined && level !== 'ok' && (
                <>
                  {' '}
                  <CodeLink code={code} />
                </>
              )}
            </span>
          </li>
        ))}
      </ul>
      {readAt !== null && findings !== null && (
        <p className="nothing">
          Looked at <Clock at={readAt} />.
        </p>
      )}
    </section>
  );
}

function Changes() {
  const changes = useLive(({ world }) => world?.changes) ?? [];
  return (
    <section className="panel" aria-labelledby="changes">
      <h2 id="changes">Since this page was opened</h2>
      {changes.length === 0 && <p className="nothing">Nothing has changed yet.</p>}
      <ul className="changes">
        {changes.map(({ key, at, what, job, bad }) => (
          <li key={key} className={bad ? 'tone-bad' : ''}>
            <Clock at={at} /> {bad && <Icon shape="alert" />} {job === null ? <bdi>{what}</bdi> : <a href={jobHref(job)}>{what}</a>}
          </li>
        ))}
      </ul>
    </section>
  );
}

const proofTones: Readonly<Record<string, string>> = { clean: 'ok', dirty: 'bad', host: 'bad' };

function Proofs() {
  const [proofs, setProofs] = useState<readonly ProofView[]>([]);
  useEffect(() => {
    const gone = new AbortController();
    get<ProofView[]>('/v1/proofs?limit=30', gone.signal).then(setProofs, () => {});
    return () => gone.abort();
  }, []);
  if (proofs.length === 0) return null;
  return (
    <section className="panel" aria-labelledby="proofs">
      <h2 id="proofs">Proofs of devices between two jobs</h2>
      <TableScroll label="Proofs">
        <table>
          <thead>
            <tr>
              <th scope="col">When</th>
              <th scope="col">Device</th>
              <th scope="col">Verdict</th>
              <th scope="col" className="number">
                Took
              </th>
              <th scope="col">Slot</th>
            </tr>
          </thead>
          <tbody>
            {proofs.map(({ device, agent, at, verdict, took, slot }) => (
              <tr key={`${device} ${agent} ${at}`}>
                <td className="nowrap">
                  <Age at={at} /> ago
                </td>
                <td className="mono">{plain(device)}</td>
                <td className={`tone-${proofTones[verdict] ?? 'warn'}`}>{plain(verdict)}</td>
                <td className="number">{(took / 1000).toFixed(1)}s</td>
                <td>{plain(slot)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableScroll>
    </section>
  );
}
