/** Records of a topic as they come: an event stream over fetch, because an EventSource cannot send a key in a header. */

import { ApiError, type Client, withQuery } from "./client.ts";

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 5_000;
// A live stream sends a comment every 15 s; without any for this long it is dead.
const SILENT_MS_MAX = 45_000;

export interface StreamEvent {
  /** `record`, or what the server calls it: tombstone, topic-deleted, error. */
  name: string;
  /** JSON, not parsed: most records of a busy stream are never looked at. */
  data: string;
}

export type StreamState = "connecting" | "live" | "waiting" | "ended";

export interface StreamOptions {
  topic: string;
  fromSeq?: number;
  tail?: boolean;
  tag?: string;
  signal: AbortSignal;
  /** Called with all events of one piece that came over the network. */
  onEvents: (events: StreamEvent[]) => void;
  onState?: (state: StreamState, reason?: string) => void;
}

/** Follow until the signal is aborted, the topic is deleted, or the server refuses; goes on after a restart. */
export async function follow(client: Client, options: StreamOptions): Promise<void> {
  const { signal, onEvents } = options;
  const tell = options.onState ?? (() => undefined);
  const start = options.fromSeq === undefined ? { tail: options.tail ?? true } : { from_seq: options.fromSeq };
  const path = withQuery(`/v0/topics/${encodeURIComponent(options.topic)}/stream`, { ...start, tag: options.tag });
  let lastId = "";
  let wait = RETRY_MS_MIN;
  while (!signal.aborted) {
    tell("connecting");
    try {
      const headers: { [name: string]: string } = lastId === "" ? {} : { "Last-Event-ID": lastId };
      const response = await client.request("GET", path, undefined, { signal, accept: "text/event-stream", headers });
      tell("live");
      const ended = await read(response, signal, (events, id) => {
        wait = RETRY_MS_MIN;
        if (id !== "") lastId = id;
        onEvents(events);
        return events.some((event) => event.name === "topic-deleted");
      });
      if (ended) return tell("ended", "The topic was deleted");
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500 && error.status !== 429 && error.status !== 408) {
        return tell("ended", error.message);
      }
    }
    if (signal.aborted) return;
    tell("waiting");
    await pause(wait, signal);
    wait = Math.min(RETRY_MS_MAX, 2 * wait);
  }
}

async function read(
  response: Response,
  signal: AbortSignal,
  take: (events: StreamEvent[], lastId: string) => boolean,
): Promise<boolean> {
  const reader = response.body!.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), SILENT_MS_MAX, signal);
      if (done) return false;
      const text = rest + decoder.decode(value, { stream: true });
      const end = text.lastIndexOf("\n\n");
      if (end < 0) {
        rest = text;
        continue;
      }
      rest = text.slice(end + 2);
      const { events, id } = parseEvents(text.slice(0, end));
      if (take(events, id)) return true;
      if (events.some((event) => event.name === "error")) return false;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Events of whole frames, and the last id among them. */
export function parseEvents(text: string): { events: StreamEvent[]; id: string } {
  const events: StreamEvent[] = [];
  let id = "";
  for (const frame of text.split("\n\n")) {
    let name = "record";
    let data = "";
    for (const line of frame.split("\n")) {
      if (line.startsWith("data: ")) data += (data === "" ? "" : "\n") + line.slice(6);
      else if (line.startsWith("id: ")) id = line.slice(4);
      else if (line.startsWith("event: ")) name = line.slice(7);
    }
    if (data !== "") events.push({ name, data });
  }
  return { events, id };
}

function within<T>(promise: Promise<T>, ms: number, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = () => reject(new Error("silent for too long"));
    const timer = setTimeout(stop, ms);
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    });
  });
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
  });
}
