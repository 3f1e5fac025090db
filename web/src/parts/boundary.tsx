/** Keeps a fault in one page from leaving an empty window. */
import { Component, type ReactNode } from 'react';
import { plain } from '../words/text.ts';

interface State {
  readonly why: string | null;
}

export class Boundary extends Component<{ readonly children: ReactNode }, State> {
  override state: State = { why: null };

  static getDerivedStateFromError(error: unknown): State {
    return { why: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    const { why } = this.state;
    if (why === null) return this.props.children;
    return (
      <div className="page">
        <p role="alert" className="problem">
          This page cannot be shown: {plain(why)}
        </p>
        <p className="nothing">The daemon and its jobs are not affected. It may be of another version than this page.</p>
        <button type="button" onClick={() => window.location.reload()}>
          Load it again
        </button>
      </div>
    );
  }
}
