/** Questions before something is changed, and what came of it. */
import { createContext, type ReactNode, useCallback, useContext, useEffect, useId, useMemo, useRef, useState } from 'react';
import { Problem } from '../api.ts';

export interface Field {
  readonly name: string;
  readonly label: string;
  readonly value?: string;
  readonly required?: boolean;
  /** A choice of these, instead of a text. */
  readonly choices?: readonly { readonly value: string; readonly label: string }[];
}

export interface Question {
  readonly title: string;
  /** What happens, and what does not. */
  readonly text: string;
  readonly confirm: string;
  readonly danger?: boolean;
  readonly fields?: readonly Field[];
  /** Returns what was done, as a sentence. */
  readonly run: (values: Readonly<Record<string, string>>) => Promise<string>;
}

const AskContext = createContext<(question: Question) => void>(() => {});

export function useAsk(): (question: Question) => void {
  return useContext(AskContext);
}

export function Questions({ children }: { readonly children: ReactNode }) {
  const [question, setQuestion] = useState<Question | null>(null);
  const [done, setDone] = useState<string | null>(null);
  const ask = useCallback((next: Question) => {
    setDone(null);
    setQuestion(next);
  }, []);
  useEffect(() => {
    if (done === null) return;
    const timer = setTimeout(() => setDone(null), 8_000);
    return () => clearTimeout(timer);
  }, [done]);
  const finish = useCallback((said: string | null) => {
    setQuestion(null);
    setDone(said);
  }, []);
  return (
    <AskContext value={ask}>
      {children}
      {question !== null && <QuestionDialog question={question} onEnd={finish} />}
      <output className={done === null ? 'toast' : 'toast shown'}>{done}</output>
    </AskContext>
  );
}

function QuestionDialog({ question, onEnd }: { readonly question: Question; readonly onEnd: (done: string | null) => void }) {
  const { title, text, confirm, danger = false, fields = [], run } = question;
  const [problem, setProblem] = useState<ReactNode>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (form: HTMLFormElement) => {
    setBusy(true);
    setProblem(null);
    const values = Object.fromEntries([...new FormData(form)].map(([key, value]) => [key, String(value)]));
    try {
      onEnd(await run(values));
    } catch (error) {
      setProblem(explained(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={() => onEnd(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void submit(event.currentTarget);
        }}
      >
        <p>{text}</p>
        {fields.map((field) => (
          <FieldInput key={field.name} field={field} />
        ))}
        {problem !== null && (
          <p role="alert" className="problem">
            {problem}
          </p>
        )}
        <div className="buttons">
          <button type="button" onClick={() => onEnd(null)}>
            Go back
          </button>
          <button type="submit" className={danger ? 'danger' : 'primary'} disabled={busy}>
            {confirm}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function FieldInput({ field: { name, label, value = '', required = false, choices } }: { readonly field: Field }) {
  const id = useId();
  return (
    <p className="field">
      <label htmlFor={id}>{label}</label>
      {choices === undefined ? (
        <input id={id} name={name} defaultValue={value} required={required} maxLength={500} autoComplete="off" />
      ) : (
        <select id={id} name={name} defaultValue={value}>
          {choices.map((choice) => (
            <option key={choice.value} value={choice.value}>
              {choice.label}
            </option>
          ))}
        </select>
      )}
    </p>
  );
}

/** A modal dialog; Escape, its button and a click outside close it. */
export function Dialog({
  title,
  onClose,
  children,
}: {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ReactNode;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => dialog.current?.showModal(), []);
  const close = useMemo(() => () => dialog.current?.close(), []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape does the same
    <dialog ref={dialog} aria-labelledby={id} onClose={onClose} onClick={(event) => event.target === dialog.current && close()}>
      <div className="dialog">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

export function problemText(error: unknown): string {
  if (!(error instanceof Problem)) return error instanceof Error ? error.message : String(error);
  return error.hint === null ? error.message : `${error.message} ${error.hint}`;
}

/** The same, with a link to what the documentation says about it. */
export function explained(error: unknown): ReactNode {
  // Where none answered, none has the page either.
  if (!(error instanceof Problem) || error.status === 0) return problemText(error);
  return (
    <>
      {problemText(error)} <CodeLink code={error.code} />
    </>
  );
}

/** To what the documentation says of the code of an error or of a finding. */
export function CodeLink({ code }: { readonly code: string }) {
  const page = code.startsWith('E_') ? 'errors' : 'findings';
  return (
    <a href={`/docs/${page}.html#${code.toLowerCase()}`} target="_blank" rel="noopener">
      {code}
    </a>
  );
}
