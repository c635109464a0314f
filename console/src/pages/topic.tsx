/** One topic: its head, and the tabs that look at it or change it. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { StateReply } from "topics-client";
import { ApiError } from "topics-client";
import { bytes, count, plural } from "../format.ts";
import { inQueues, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Empty, Foreign, Problem, Tabs } from "../ui/parts.tsx";
import { useResource } from "../ui/resource.ts";
import { Activity } from "./topic/activity.tsx";
import { Append } from "./topic/append.tsx";
import { Configuration } from "./topic/configuration.tsx";
import { Jobs, type JobState } from "./topic/jobs.tsx";
import { LetterLinks } from "./topic/letters.tsx";
import { LiveRecords } from "./topic/live.tsx";
import { Readers } from "./topic/readers.tsx";
import { Records } from "./topic/records.tsx";
import { Removal } from "./topic/removal.tsx";

const EVERY_MS = 2_000;
const STATES: readonly JobState[] = ["ready", "leased", "delayed", "dead"];

export function TopicPage({ name, tab }: { name: string; tab: string | undefined }) {
  const look = useResource((signal) => client.call("GET /v0/topics/{topic}", { path: { topic: name }, query: { touch: false }, signal }), [name], EVERY_MS);
  const state = look.data;
  const isQueue = state?.type === "queue";
  useEffect(() => {
    inQueues.value = isQueue;
    return () => {
      inQueues.value = false;
    };
  }, [isQueue]);
  useEffect(() => {
    document.querySelector<HTMLElement>(".tabs a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [tab, state === undefined]);
  if (look.error instanceof ApiError && look.error.code === "topic_not_found") {
    return (
      <>
        <Head name={name} state={undefined} />
        <section class="card">
          <Empty title="This topic does not exist">
            <p>It may have been deleted, or nothing has been appended to it yet. <a href={to(["topics"])}>All topics</a></p>
          </Empty>
        </section>
      </>
    );
  }
  if (state === undefined) return <><Head name={name} state={undefined} /><Problem error={look.error} /></>;
  const queue = state.queue;
  const shown = tab ?? (queue === undefined ? "records" : queue.dead > 0 ? "dead" : "ready");
  const link = (key: string, label: string, value?: number) => ({ name: label, href: to(["topics", name, key]), on: shown === key, count: value });
  return (
    <>
      <Head name={name} state={state} />
      <Tabs
        label="Parts of the topic"
        items={[
          ...(queue === undefined
            ? []
            : [
                link("ready", "Ready", queue.ready),
                link("leased", "In flight", queue.in_flight),
                link("delayed", "Delayed", queue.delayed),
                link("dead", "Dead", queue.dead),
                link("activity", "Activity"),
              ]),
          link("records", "Records"),
          link("live", "Live"),
          ...(can("write") ? [link("append", "Append")] : []),
          link("configuration", "Configuration"),
          link("readers", "Readers"),
          ...(can("delete") ? [link("delete", "Delete")] : []),
        ]}
      />
      {body(shown, state, look.reload)}
    </>
  );
}

function body(tab: string, state: StateReply, reload: () => void): ComponentChildren {
  const job = STATES.find((one) => one === tab);
  if (job !== undefined && state.queue !== undefined) return <Jobs key={job} topic={state} state={job} onChange={reload} />;
  switch (tab) {
    case "activity":
      return state.queue === undefined ? <Records key={`${state.topic} ${state.epoch}`} topic={state} /> : <Activity key={state.epoch} topic={state} />;
    case "live":
      return <LiveRecords topic={state} />;
    case "append":
      return can("write") ? <Append topic={state} onDone={reload} /> : <NotAllowed />;
    case "configuration":
      return <Configuration topic={state} onDone={reload} />;
    case "readers":
      return <Readers topic={state} />;
    case "delete":
      return can("delete") ? <Removal topic={state} onDone={reload} /> : <NotAllowed />;
    default:
      return <Records key={`${state.topic} ${state.epoch}`} topic={state} />;
  }
}

function NotAllowed() {
  return <p class="notice warn">This key may not do that, or the console only reads.</p>;
}

/** How much there is of it; the jobs of a queue are counted by their tabs. */
function sizeOf(state: StateReply): string {
  const kept = plural(state.count, state.type === "queue" ? "job" : "record");
  const dead = state.queue !== undefined && state.queue.dead > 0 ? `, ${count(state.queue.dead)} dead` : "";
  if (state.count === 0) return `${kept}${dead}`;
  const seqs = state.count === 1 ? `seq ${count(state.earliest_seq)}` : `seqs ${count(state.earliest_seq)} – ${count(state.head_seq)}`;
  return `${kept}${dead} · ${bytes(state.bytes)} · ${seqs}`;
}

function Head({ name, state }: { name: string; state: StateReply | undefined }) {
  return (
    <div>
      <p class="crumbs"><span>{state?.type === "queue" ? <a href={to(["queues"])}>Queues</a> : <a href={to(["topics"])}>Topics</a>} /</span> <LetterLinks /></p>
      <h1><Foreign text={name} /></h1>
      <div class="under">
        {state !== undefined && (
          <>
            <Badge kind={state.type === "queue" ? "accent" : ""}>{state.type}</Badge>
            <Badge>{state.config.durability}</Badge>
            {state.queue?.paused === true && <Badge kind="warn">paused</Badge>}
            <span class="muted number cut">{sizeOf(state)}</span>
          </>
        )}
      </div>
    </div>
  );
}
