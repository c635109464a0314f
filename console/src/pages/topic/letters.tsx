/** Where the dead letters of a topic are put back: on the pages of the queues that they came from. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Record as TopicRecord, StateReply } from "topics-client";
import { ApiError } from "topics-client";
import { to } from "../../route.ts";
import { client } from "../../session.ts";
import { Foreign } from "../../ui/parts.tsx";
import { useResource } from "../../ui/resource.ts";

const STAMP = "$dead_letter_from";
const QUEUES_MAX = 5;

/** The queues that records say they died in. */
function sourcesOf(records: TopicRecord[]): string[] {
  const found = new Set<string>();
  for (const { meta } of records) {
    if (meta?.source.includes(STAMP) !== true) continue;
    const name = (JSON.parse(meta.source) as { [STAMP]?: unknown })[STAMP];
    if (typeof name === "string") found.add(name);
  }
  return [...found].sort().slice(0, QUEUES_MAX);
}

/** A copy of a dead letter has the stamp, too: the queue itself says where its dead letters are. */
async function keepsThemIn(queue: string, topic: string, signal: AbortSignal): Promise<boolean> {
  try {
    const state = await client.call("GET /v0/topics/{topic}", { path: { topic: queue }, query: { touch: false }, signal });
    return state.config.dead_letter === topic;
  } catch (error) {
    if (error instanceof ApiError) return false;
    throw error;
  }
}

/** The links, in the line above the name of the topic: they come when the records are there, and must not move them. */
export const letters = signal<readonly string[]>([]);

export function LetterLinks() {
  return (
    <>
      {letters.value.map((queue) => (
        <span class="cut" key={queue}>
          Dead letters of <Foreign text={queue} />: <a href={to(["topics", queue, "dead"])}>put them back on its Dead tab</a>
        </span>
      ))}
    </>
  );
}

export function Letters({ topic, records }: { topic: StateReply; records: TopicRecord[] }) {
  const sources = sourcesOf(records);
  const queues = useResource(
    async (signal) => {
      const kept = await Promise.all(sources.map((queue) => keepsThemIn(queue, topic.topic, signal)));
      return sources.filter((_, index) => kept[index]);
    },
    [topic.topic, sources],
  );
  const found = queues.data ?? [];
  useEffect(() => {
    letters.value = found;
    return () => {
      letters.value = [];
    };
  }, [found.join("\n")]);
  return null;
}
