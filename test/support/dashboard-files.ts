/** What a daemon serves as the dashboard: for tests of packages, and, as a program, on a machine where nothing else can ask. */

/** Status and type of the page, of everything that it loads, and of the documentation; each name without what its content decides. */
export async function dashboardAt(origin: string): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  const look = async (path: string): Promise<string> => {
    const answer = await fetch(origin + path);
    const name = path.replace(/^(\/assets\/\w+)-[\w-]{8}\./, '$1-HASH.');
    found[name] = `${answer.status} ${answer.headers.get('content-type')}`;
    return answer.text();
  };
  const page = await look('/');
  for (const [, path = ''] of page.matchAll(/(?:src|href)="(\/[^"]+)"/g)) await look(path);
  await look('/docs/');
  return found;
}

export const dashboard: Readonly<Record<string, string>> = {
  '/': '200 text/html; charset=utf-8',
  '/favicon.svg': '200 image/svg+xml',
  '/assets/index-HASH.js': '200 text/javascript; charset=utf-8',
  '/assets/index-HASH.css': '200 text/css; charset=utf-8',
  '/docs/': '200 text/html; charset=utf-8',
};

if (import.meta.main) {
  const [origin = ''] = process.argv.slice(2);
  console.log(JSON.stringify(await dashboardAt(origin)));
}
