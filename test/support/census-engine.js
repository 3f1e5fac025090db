var __addDisposableResource = (this && this.__addDisposableResource) || function (env, value, async) {
    if (value !== null && value !== void 0) {
        if (typeof value !== "object" && typeof value !== "function") throw new TypeError("Object expected.");
        var dispose, inner;
        if (async) {
            if (!Symbol.asyncDispose) throw new TypeError("Symbol.asyncDispose is not defined.");
            dispose = value[Symbol.asyncDispose];
        }
        if (dispose === void 0) {
            if (!Symbol.dispose) throw new TypeError("Symbol.dispose is not defined.");
            dispose = value[Symbol.dispose];
            if (async) inner = dispose;
        }
        if (typeof dispose !== "function") throw new TypeError("Object not disposable.");
        if (inner) dispose = function() { try { inner.call(this); } catch (e) { return Promise.reject(e); } };
        env.stack.push({ value: value, dispose: dispose, async: async });
    }
    else if (async) {
        env.stack.push({ async: true });
    }
    return value;
};
var __disposeResources = (this && this.__disposeResources) || (function (SuppressedError) {
    return function (env) {
        function fail(e) {
            env.error = env.hasError ? new SuppressedError(e, env.error, "An error was suppressed during disposal.") : e;
            env.hasError = true;
        }
        var r, s = 0;
        function next() {
            while (r = env.stack.pop()) {
                try {
                    if (!r.async && s === 1) return s = 0, env.stack.push(r), Promise.resolve().then(next);
                    if (r.dispose) {
                        var result = r.dispose.call(r.value);
                        if (r.async) return s |= 2, Promise.resolve(result).then(next, function(e) { fail(e); return next(); });
                    }
                    else s |= 1;
                }
                catch (e) {
                    fail(e);
                }
            }
            if (s === 1) return env.hasError ? Promise.reject(env.error) : Promise.resolve();
            if (env.hasError) throw env.error;
        }
        return next();
    };
})(typeof SuppressedError === "function" ? SuppressedError : function (error, suppressed, message) {
    var e = new Error(message);
    return e.name = "SuppressedError", e.error = error, e.suppressed = suppressed, e;
});
/** What an Engine still holds that carries onejob's labels. */
import { engineAt } from './engine-http.js';
/** Null when no Engine answers at `socket`. `owner` null: everybody's. */
export async function engineThings(socket, owner) {
    const env_1 = { stack: [], error: void 0, hasError: false };
    try {
        const engine = __addDisposableResource(env_1, engineAt(socket), false);
        const label = owner === null ? 'onejob.owner' : `onejob.owner=${owner}`;
        const query = `filters=${encodeURIComponent(JSON.stringify({ label: [label] }))}`;
        try {
            await engine.ok('GET', '/version');
        }
        catch {
            return null;
        }
        const [containers, networks, volumes] = await Promise.all([
            ask(engine, `/containers/json?all=1&${query}`),
            ask(engine, `/networks?${query}`),
            ask(engine, `/volumes?${query}`),
        ]);
        return [
            ...containers.map((one) => ({
                kind: 'container',
                id: one.Id.slice(0, 12),
                detail: `${one.Names[0]?.slice(1) ?? ''} ${one.State}, slot ${one.Labels['onejob.slot'] ?? '?'}`,
                owner: ownerIn(one.Labels),
            })),
            ...networks.map((one) => ({ kind: 'network', id: one.Name, detail: one.Driver, owner: ownerIn(one.Labels) })),
            ...(volumes.Volumes ?? []).map((one) => ({ kind: 'volume', id: one.Name, detail: one.Driver, owner: ownerIn(one.Labels ?? {}) })),
        ];
    }
    catch (e_1) {
        env_1.error = e_1;
        env_1.hasError = true;
    }
    finally {
        __disposeResources(env_1);
    }
}
/** Removes them; for tests that have failed already. */
export async function removeEngineThings(socket, things) {
    const env_2 = { stack: [], error: void 0, hasError: false };
    try {
        const engine = __addDisposableResource(env_2, engineAt(socket), false);
        for (const kind of ['container', 'network', 'volume']) {
            for (const { id } of things.filter((one) => one.kind === kind))
                await engine.call('DELETE', `/${kind}s/${id}?force=1&v=1`);
        }
    }
    catch (e_2) {
        env_2.error = e_2;
        env_2.hasError = true;
    }
    finally {
        __disposeResources(env_2);
    }
}
function ownerIn(labels) {
    return labels['onejob.owner'] ?? '?';
}
async function ask(engine, path) {
    return (await engine.ok('GET', path));
}
//# sourceMappingURL=census-engine.js.map