/** The Engine's API over its unix socket with nothing in between: what tests and benches look at the world with. */
import { Agent, request } from 'node:http';
export const machineSocket = '/var/run/docker.sock';
/** Speaks to the Engine behind `socket`; connections are kept and closed with it. */
export function engineAt(socket = machineSocket) {
    const agent = new Agent({ keepAlive: true, maxSockets: 32 });
    function open(method, path, body) {
        return new Promise((resolve, reject) => {
            const type = typeof body === 'string' ? 'application/json' : 'application/x-tar';
            const headers = { host: 'engine' };
            if (body !== null)
                headers['content-type'] = type;
            if (typeof body === 'string')
                headers['content-length'] = Buffer.byteLength(body);
            const call = request({ socketPath: socket, agent, method, path, headers }, resolve);
            call.on('error', reject);
            if (body === null || typeof body === 'string')
                call.end(body ?? undefined);
            else
                body.on('error', reject).pipe(call);
        });
    }
    async function call(method, path, body) {
        const answer = await open(method, path, body === undefined ? null : JSON.stringify(body));
        const chunks = [];
        for await (const chunk of answer)
            chunks.push(chunk);
        const text = Buffer.concat(chunks).toString();
        const isJson = (answer.headers['content-type'] ?? '').includes('json') && text !== '';
        return { status: answer.statusCode ?? 0, body: isJson ? JSON.parse(text) : text };
    }
    return {
        socket,
        call,
        async ok(method, path, body) {
            const answer = await call(method, path, body);
            if (answer.status < 300 || answer.status === 304)
                return answer.body;
            throw new Error(`${method} ${path} at ${socket}: ${answer.status} ${JSON.stringify(answer.body)}`);
        },
        stream: (method, path, body) => open(method, path, body ?? null),
        [Symbol.dispose]: () => agent.destroy(),
    };
}
//# sourceMappingURL=engine-http.js.map