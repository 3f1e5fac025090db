/**
 * The desk of a manager that is temporary: it hears of agents from a broker that a daemon before it has left, so that what ended
 * meanwhile is told to the service, and never starts one, since it makes no agents.
 */
import { type BrokerDesk, createBrokerDesk, type DeskParts } from './broker-desk.ts';

const nobody = 'no daemon runs; the broker is started by "onejob up"';

export function visitingDesk(parts: Omit<DeskParts, 'start'>): BrokerDesk {
  const { promise: never, resolve: over } = Promise.withResolvers<string>();
  const desk = createBrokerDesk({ ...parts, start: () => never });
  return {
    ...desk,
    listen(service, listener) {
      desk.listen(service, { ...listener, away: (why) => listener.away(why === null ? null : nobody) });
    },
    get port() {
      return desk.port;
    },
    close(leaving) {
      const closed = desk.close(leaving);
      // It would wait for the one that it believes to be starting.
      over('was never started');
      return closed;
    },
  };
}
