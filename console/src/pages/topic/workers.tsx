/** Whether anybody takes the jobs of a queue: who waits, who works, who asked last. */

import type { QueueCounters } from "topics-client";
import { count, plural } from "../../format.ts";
import { to } from "../../route.ts";
import { Relative, Steady } from "../../ui/parts.tsx";

// A worker that polls asks more often than this; the overview goes by the same.
const ASKED_MS_MAX = 15_000;
// 23 h 59 min: no span of time takes more letters.
const LONG_MS = 86_340_000;

type Standing = "paused" | "connected" | "busy" | "asked" | "none";

export function standingOf(queue: QueueCounters): Standing {
  if (queue.paused) return "paused";
  if ((queue.claimers ?? 0) > 0) return "connected";
  if (queue.in_flight > 0) return "busy";
  const asked = queue.last_claim_ts ?? null;
  return asked !== null && Date.now() - asked < ASKED_MS_MAX ? "asked" : "none";
}

/** In a few words; with jobs that wait, or that are `coming`, and nobody who takes them, it is a warning. */
export function Taken({ queue, topic, coming = 0 }: { queue: QueueCounters; topic?: string; coming?: number }) {
  const standing = standingOf(queue);
  const asked = queue.last_claim_ts ?? null;
  const connected = queue.claimers ?? 0;
  const alone = standing === "none" && queue.ready > 0;
  const idle = standing === "none" || standing === "paused";
  const limit = queue.limited_by ?? null;
  return (
    <span class={`standing ${alone || standing === "paused" || (idle && coming > 0) ? "warn" : idle ? "muted" : ""}`}>
      <span class={`dot ${idle ? "" : "ok"}`} />
      <span>
        {standing === "paused" && "The queue is paused: no jobs are handed out, what is in flight may still be finished."}
        {standing === "connected" && (connected === 1 ? "1 worker is connected and takes jobs as they come." : `${count(connected)} workers are connected and take jobs as they come.`)}
        {standing === "busy" && `Workers are busy with ${plural(queue.in_flight, "job")}.`}
        {standing === "asked" && <>A worker asked for jobs <Relative ms={asked!} />.</>}
        {standing === "none" && (
          <>
            {alone ? `${queue.ready === 1 ? "1 job waits" : `${count(queue.ready)} jobs wait`}, and no worker is asking for jobs: ` : "No worker is asking for jobs: "}
            {asked === null ? "none has since the server started." : <>the last one did <Relative ms={asked} />.</>}
            {coming > 0 && (coming === 1 ? " The job waits until one comes." : " The jobs wait until one comes.")}
            {topic !== undefined && alone && <> Start one: <code class="foreign">topics queue work {topic} <span class="nowrap">--exec ./your-program</span></code></>}
          </>
        )}
        {topic !== undefined && limit !== null && !idle && <> The ready jobs are held back by <a class="mono" href={to(["topics", topic, "configuration"])}>{limit}</a>.</>}
      </span>
    </span>
  );
}

/** In the room that the longest of its sentences takes, so that what stands below never moves. */
export function SteadyTaken({ topic, queue }: { topic: string; queue: QueueCounters }) {
  const nobody = { ...queue, paused: false, claimers: 0, in_flight: 0, ready: Math.max(queue.ready, 999_999) };
  const longest = [null, Date.now() - LONG_MS].map((last_claim_ts) => <Taken queue={{ ...nobody, last_claim_ts }} topic={topic} />);
  return <Steady rooms={longest}><Taken queue={queue} topic={topic} /></Steady>;
}
