/** The cloud of type `command`: each call is one run of the program. It has no places, so the place of everything is the cloud's name. */
import { z } from 'zod';
import { fine } from '../../base/finding.ts';
import { brief } from '../../http/exchange.ts';
import { type Cloud, CloudError, type CloudImage, type HostPlan, type Thing, tagKeys, thingKinds } from '../../ports/cloud.ts';
import type { CloudParts } from '../kit/caller.ts';
import { examineAll, managerOnly, priceFindings } from '../kit/preflight.ts';
import { tagsOf, told } from '../kit/things.ts';
import type { CommandConfig } from './config.ts';
import { Program, type RunProgram, runProgram } from './program.ts';

/** Seconds by which an end may be later than asked for. */
const lateness = 600;
/** Characters of a console's end. */
const consoleEnd = 64 * 1024;
/** The program decides what machines boot from, and nobody knows what that has. */
const usualImage: CloudImage = { from: 'auto', has: 'nothing' };

const words = z.string().transform(brief);
const id = z.string().regex(/^[^\p{Cc}]{1,200}$/u);
/** Not milliseconds. */
const seconds = z.number().int().positive().max(100_000_000_000);
/** Of every answer: the time by the cloud's clock. */
const timed = z.object({ now: seconds.optional() });
const thing = z.object({
  kind: z.enum(thingKinds).default('machine'),
  id,
  tags: z.record(z.string(), z.string()),
  state: z.enum(['starting', 'running', 'ending', 'stopped']),
});
const answers = {
  check: timed.extend({
    findings: z
      .array(z.object({ level: z.enum(['ok', 'warning', 'error']), message: words, hint: words.nullish() }))
      .max(100)
      .default([]),
  }),
  create: timed.extend({ id }),
  end: timed.extend({ ends: seconds }),
  list: timed.extend({ things: z.array(z.unknown()).max(10_000), unknown: z.array(words).max(1_000).default([]) }),
  destroy: timed,
  console: timed.extend({ text: z.string() }),
};

/** `run`: how the program is run, for tests. */
export function openCommand(config: CommandConfig, parts: CloudParts, run: RunProgram = runProgram): Cloud {
  const { name, program: path } = config;
  const { clock } = parts;
  const program = new Program(config, parts, run);
  let skew: number | null = null;
  const call: Program['call'] = async (how, signal) => {
    const found = await program.call(how, signal);
    const { now } = found as z.output<typeof timed>;
    skew = now === undefined ? (skew ?? 0) : Math.abs(now * 1000 - clock.wall()) < 1000 ? 0 : now * 1000 - clock.wall();
    return found;
  };
  const price: Cloud['price'] = async () => null;

  const list: Cloud['list'] = async (owner, _scope, signal) => {
    const how = { verb: 'list', request: { owner }, doing: `list what ${owner} has`, answer: answers.list } as const;
    const found = await call(how, signal);
    const unknown = [...found.unknown];
    const things = found.things.flatMap((one): Thing[] => {
      const { success, data } = thing.safeParse(one);
      // It may be ours.
      if (!success) unknown.push('an entry that cannot be read');
      if (!success || data.tags[tagKeys.owner] !== owner) return [];
      return [{ kind: data.kind, id: data.id, place: name, ...told(data.tags), state: data.state, offer: null }];
    });
    return { things, unknown };
  };

  const setEnd: Cloud['setEnd'] = async ({ run: machine, expires }, made, signal) => {
    if (config.deathDate === 'manager-only') return 'onejob alone ("death_date: manager-only")';
    const request = { id: made.id, name: machine, expires };
    const { ends } = await call({ verb: 'end', request, doing: `set the end of ${machine}`, answer: answers.end }, signal);
    const isPast = ends * 1000 <= clock.wall() + (skew ?? 0);
    if (!isPast && ends <= expires + lateness) return `${path} ends it at ${timeOf(ends)}`;
    const message = `Cannot confirm the end of ${machine}: ${path} says ${timeOf(ends)}, which is ${isPast ? 'over' : `later than ${timeOf(expires)}`}.`;
    throw new CloudError('E_CLOUD_END', message);
  };

  async function ownFindings(subject: string, plan: HostPlan, signal: AbortSignal) {
    const { types, spot, image, disk, max, lifetime } = plan;
    const request = { types, spot, image, disk_gib: disk, max, lifetime: Math.floor(lifetime / 1000) };
    const { findings } = await call({ verb: 'check', request, doing: 'check the host', answer: answers.check }, signal);
    const shown = findings.map(({ level, message, hint }) => ({ level, subject, message, hint: hint ?? null }));
    return shown.length === 0 ? [fine(subject, `${path} finds nothing that is missing.`)] : shown;
  }

  return {
    name,
    type: config.type,
    usualImage,
    capabilities: { holdsEnd: config.deathDate === 'cloud', guestEnds: config.shutdownRemoves, endRemoves: true },
    skew: () => skew,
    credential: `program ${path}`,
    zones: async () => [null],
    async create(order, signal) {
      const { run: machine, offer, image, disk, userData, expires } = order;
      const { type, spot } = offer;
      const what = { name: machine, type, spot, image, disk_gib: disk, expires, tags: tagsOf(order), user_data: userData };
      const how = { verb: 'create', request: what, doing: `create ${machine}`, answer: answers.create, makes: true } as const;
      return { id: (await call(how, signal)).id, place: name, zone: null };
    },
    setEnd,
    list,
    async destroy({ kind, id: which }, signal) {
      const request = { kind, id: which };
      await call({ verb: 'destroy', request, doing: `remove ${kind} ${which}`, answer: answers.destroy }, signal);
    },
    async console({ id: which }, signal) {
      const how = {
        verb: 'console',
        request: { id: which },
        doing: `read the console of ${which}`,
        answer: answers.console,
      } as const;
      return (await call(how, signal)).text.slice(-consoleEnd);
    },
    async deliver() {
      throw new CloudError('E_CLOUD_REQUEST', `Cannot write to a machine of ${name}: a program has no mail for machines.`);
    },
    price,
    preflight: (plan, signal) =>
      examineAll([
        [`${name}: program`, (of) => ownFindings(of, plan, signal)],
        [`${plan.host}: end of life`, (of) => (config.deathDate === 'cloud' ? [] : [managerOnly(of)])],
        [`${plan.host}: price`, (of) => priceFindings(of, plan, price, signal)],
      ]),
  };
}

const timeOf = (time: number): string => new Date(time * 1000).toISOString();
