/** A button with a short list of actions: a disclosure, so that Tab and Enter are enough. */
import { useEffect, useRef } from 'react';
import { Icon } from './icon.tsx';

export interface MenuItem {
  readonly label: string;
  readonly run: () => void;
}

export function Menu({ label, items }: { readonly label: string; readonly items: readonly MenuItem[] }) {
  const details = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      const element = details.current;
      if (element === null || !element.open) return;
      if (event instanceof KeyboardEvent ? event.key === 'Escape' : !element.contains(event.target as Node)) element.open = false;
    };
    document.addEventListener('click', close);
    document.addEventListener('keydown', close);
    return () => {
      document.removeEventListener('click', close);
      document.removeEventListener('keydown', close);
    };
  }, []);
  return (
    <details className="menu" ref={details}>
      <summary aria-label={label} title={label}>
        <Icon shape="dots" />
      </summary>
      <div className="menu-items">
        {items.map((item) => (
          <button
            key={item.label}
            type="button"
            onClick={() => {
              if (details.current !== null) details.current.open = false;
              item.run();
            }}
          >
            {item.label}
          </button>
        ))}
      </div>
    </details>
  );
}
