/** Turns the code of a one-time link into a session, and says how to get a link. */
import { useEffect, useState } from 'react';
import { logIn } from '../api.ts';
import { problemText } from '../parts/dialog.tsx';

export function LoginPage() {
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const code = window.location.hash.slice(1);
    // The code works once, and does not stay in the history of the browser.
    window.history.replaceState(null, '', '/login');
    if (code === '') return setProblem('This link has no code.');
    logIn(code).then(
      () => window.location.replace('/'),
      (error: unknown) => setProblem(problemText(error)),
    );
  }, []);
  return (
    <main className="login">
      <h1>onejob</h1>
      {problem === null ? (
        <p role="status">Logging in …</p>
      ) : (
        <>
          <p role="alert" className="problem">
            {problem}
          </p>
          <LoginHelp />
        </>
      )}
    </main>
  );
}

export function LoginHelp() {
  return (
    <>
      <p>A link works once, in one browser. To get another one, type this on the host:</p>
      <pre>onejob dashboard</pre>
      <p>It prints a link, which opens this page. Add --read-only for somebody who may look and change nothing.</p>
    </>
  );
}
