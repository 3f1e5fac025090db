/** What the programs have in common that start a stand-in for a person. */
import { networkInterfaces } from 'node:os';
import { createInterface } from 'node:readline';

/** Has each line of the input obeyed, until `quit`, which waits for what was typed before, or a signal; the end of the input changes nothing, so that it can run in the background. */
export function conversation(obey: (line: string) => Promise<string>): Promise<unknown> {
  return new Promise<unknown>((resolve) => {
    const lines = createInterface({ input: process.stdin });
    let before: Promise<unknown> = Promise.resolve();
    const stay = setInterval(() => undefined, 60_000);
    const end = (): void => {
      clearInterval(stay);
      lines.close();
      process.stdin.destroy();
      // An "up" that is under way would open the door again behind whoever closes it.
      void before.then(resolve);
    };
    process.once('SIGINT', end);
    process.once('SIGTERM', end);
    lines.on('line', (line) => {
      if (line.trim() === 'quit') return end();
      // One after the other: "down" and "up" take a moment.
      before = before
        .then(() => obey(line))
        .then(
          (answer) => answer !== '' && console.log(answer),
          (error: unknown) => console.log(error instanceof Error ? error.message : error),
        );
    });
  });
}

/** The address of a bridge for containers, else the first that is reachable from one. */
export function ownAddress(): string {
  const all = Object.entries(networkInterfaces()).flatMap(([name, addresses]) =>
    (addresses ?? []).map((each) => ({ name, ...each })),
  );
  const outward = all.filter((each) => each.family === 'IPv4' && !each.internal);
  return (outward.find(({ name }) => name.startsWith('docker')) ?? outward[0])?.address ?? '127.0.0.1';
}

/** What "fault NAME [METHOD] [ROUTE] [TIMES]" says about where it hits. */
export function saidWhere(words: readonly string[]): { method?: string; route?: string; times?: number } {
  const times = words.find((word) => /^\d+$/.test(word));
  const method = words.find((word) => /^[A-Z]+$/.test(word));
  const route = words.find((word) => word !== times && word !== method);
  return {
    ...(times === undefined ? {} : { times: Number(times) }),
    ...(method === undefined ? {} : { method }),
    ...(route === undefined ? {} : { route }),
  };
}

/** The answer to it. */
export function saidFault(
  name: string,
  where: { readonly method?: string; readonly route?: string; readonly times?: number },
): string {
  const often = where.times === undefined ? 'until "fault clear"' : `${where.times} times`;
  return `${name}: ${where.method ?? 'every method'}, ${where.route ?? 'every route'}, ${often}.`;
}
