/** Where in the console we are: the part of the address after `#`, which no server and no log ever sees. */

import { signal } from "@preact/signals";

export interface Place {
  /** The parts of the path, decoded: ["topics", "orders", "records"]. */
  path: string[];
  query: URLSearchParams;
}

function read(): Place {
  const [path = "", query = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter((part) => part !== "");
  return { path: parts.map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const place = signal<Place>(read());
/** Whether the topic that is looked at is a queue, which belongs to the queues. */
export const inQueues = signal(false);

window.addEventListener("hashchange", () => {
  place.value = read();
});

type Query = { [name: string]: string | number | undefined };

export function to(path: string[], query: Query = {}): string {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined) fields.set(name, String(value));
  const text = fields.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text === "" ? "" : `?${text}`}`;
}

export function go(path: string[], query: Query = {}, replace = false): void {
  const address = to(path, query);
  if (replace) {
    history.replaceState(null, "", address);
    place.value = read();
  } else location.hash = address;
}
