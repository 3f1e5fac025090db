// Whether the daemon behind a socket takes requests, for the probes of its pod.
const { get } = require('node:http');
get({ socketPath: process.argv[2], path: '/healthz', headers: { host: 'onejob' }, timeout: 8000 }, ({ statusCode }) =>
  process.exit(statusCode === 200 ? 0 : 1),
)
  .on('timeout', () => process.exit(1))
  .on('error', ({ message }) => {
    console.error(message);
    process.exit(1);
  });
