/** Server-sent events from a stream that `fetch` reads, which unlike `EventSource` shows the status of a refusal and every sign of life. */

export interface ServerEvent {
  readonly name: string;
  readonly data: string;
}

/** Returns a function that takes text as it comes and returns the events that are complete. Source: WHATWG HTML, 9.2.6. */
export function createEventParser(): (text: string) => ServerEvent[] {
  let rest = '';
  let name = '';
  let data: string[] = [];
  return (text) => {
    const events: ServerEvent[] = [];
    // A carriage return at the very end may be half of a line end.
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) events.push({ name: name === '' ? 'message' : name, data: data.join('\n') });
        [name, data] = ['', []];
        continue;
      }
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? [];
      if (field === 'event') name = value ?? '';
      else if (field === 'data') data.push(value ?? '');
    }
    return events;
  };
}
