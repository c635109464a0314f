/** How a queue did in the last hour: throughput, failures, waiting; and the workers that claimed lately. */

import type { StateReply } from "topics-client";
import { count, plural, short, span } from "../../format.ts";
import { client } from "../../session.ts";
import { Chart } from "../../ui/chart.tsx";
import { Foreign, Relative, Tile, Trouble } from "../../ui/parts.tsx";
import { usePast } from "../../ui/past.ts";
import { useHeld } from "../../ui/held.ts";
import { useResource } from "../../ui/resource.ts";

const EVERY_MS = 5_000;
const POINTS_MAX = 360;

export function Activity({ topic }: { topic: StateReply }) {
  const past = usePast(
    (since, signal) => client.call("GET /v0/topics/{topic}/history", { path: { topic: topic.topic }, query: { since }, signal }),
    [topic.topic, topic.epoch],
    POINTS_MAX,
  );
  const queue = topic.queue!;
  const ts = past?.ts ?? [];
  const of = (name: string) => past?.series[name] ?? [];
  const perSecond = (value: number) => `${short(value)}/s`;
  return (
    <>
      <dl class="tiles">
        <Tile name="Ready" value={count(queue.ready)} />
        <Tile name="In flight" value={count(queue.in_flight)} />
        <Tile name="Next job has waited" value={queue.ready === 0 || ts.length === 0 ? "–" : span(of("waiting_ms").at(-1) ?? 0)} />
        <Tile name="Dead now" value={count(queue.dead)} note={`${count(queue.dead_lettered)} ever`} />
      </dl>
      <section class="charts" aria-label="The last hour">
        <Chart title="Throughput" ts={ts} show={perSecond} series={[{ name: "appended", values: of("appended_per_s"), colour: "--accent" }, { name: "done", values: of("done_per_s"), colour: "--ok" }]} />
        <Chart title="Failures" ts={ts} show={perSecond} series={[{ name: "failed", values: of("failed_per_s"), colour: "--warn" }, { name: "dead", values: of("dead_per_s"), colour: "--bad" }]} />
        <Chart title="Waiting time" ts={ts} show={span} series={[{ name: "next job", values: of("waiting_ms"), colour: "--accent" }]} />
        <Chart title="Jobs" ts={ts} show={short} series={[{ name: "ready", values: of("ready"), colour: "--accent" }, { name: "in flight", values: of("in_flight"), colour: "--warn" }]} />
      </section>
      <Workers topic={topic} />
    </>
  );
}

function Workers({ topic }: { topic: StateReply }) {
  const list = useResource((signal) => client.call("GET /v0/topics/{topic}/readers", { path: { topic: topic.topic }, signal }), [topic.topic], EVERY_MS);
  const held = useHeld(list.data?.workers, topic.topic);
  const workers = held.shown ?? [];
  return (
    <section class="card" aria-label="Workers">
      <header><h2 class="grow">Workers seen lately</h2><span class="muted number">{plural(workers.length, "worker")}</span></header>
      <Trouble text={list.error?.message} />
      {workers.length === 0 ? (
        <p class="body muted">No worker has claimed a job since the server started.</p>
      ) : (
        <div class="scroll" {...held.on}>
          <table aria-label="Workers">
            <thead><tr><th scope="col">Worker</th><th scope="col">Last claim</th></tr></thead>
            <tbody>{workers.map((worker) => <tr key={worker.worker}><td><Foreign text={worker.worker} /></td><td class="muted"><Relative ms={worker.last_claim_ts} /></td></tr>)}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}
