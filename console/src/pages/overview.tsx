/** The overview: what needs attention in words, then numbers, then the last hour. */

import { useEffect, useState } from "preact/hooks";
import type { Finding, HistoryReply, Record as TopicRecord } from "topics-client";
import { bytes, count, plural, rate, short, span } from "../format.ts";
import { to } from "../route.ts";
import { can, client, has, seesAll } from "../session.ts";
import { Chart } from "../ui/chart.tsx";
import { Badge, Copy, Empty, Preview, Problem, Relative, Tile } from "../ui/parts.tsx";
import { useResource } from "../ui/resource.ts";

const EVERY_MS = 5_000;
const FIRST_MS = 1_500;
const POINTS_MAX = 720;

export function Overview() {
  const seen = useResource((signal) => client.call("GET /v0/overview", { signal }), [], EVERY_MS);
  const overview = seen.data;
  if (overview === undefined) return <><h1>Overview</h1><Problem error={seen.error} /></>;
  if (overview.topics === 0) return <FirstSteps onArrived={seen.reload} />;
  return (
    <>
      <div class="head"><h1>Overview</h1></div>
      <Attention findings={overview.attention} more={overview.more} />
      <dl class="tiles">
        <Tile name="Topics" value={count(overview.topics)} note={overview.queues > 0 ? plural(overview.queues, "queue") : undefined} />
        <Tile name="Records" value={short(overview.records)} note={bytes(overview.bytes)} />
        <Tile name="Jobs ready" value={short(overview.ready)} note={overview.delayed > 0 ? `${short(overview.delayed)} delayed` : undefined} />
        <Tile name="In flight" value={short(overview.in_flight)} />
        <Tile name="Dead" value={short(overview.dead)} />
        <Tile
          name="Oldest waiting job"
          value={
            overview.oldest_job === null ? "–" : (
              <a href={to(["topics", overview.oldest_job.topic, "ready"])}><Relative ms={overview.oldest_job.ts} past="" /></a>
            )
          }
        />
        <Tile name="Live readers" value={count(overview.live_readers)} />
      </dl>
      {has("admin") && seesAll() && <Charts />}
    </>
  );
}

function linkOf(finding: Finding): [string, string] {
  switch (finding.kind) {
    case "queue":
      if (finding.problem === "dead") return [to(["topics", finding.name, "dead"]), "Look at them"];
      if (finding.problem === "refused") return [to(["topics", finding.name, "configuration"]), "Check the queue"];
      return [to(["topics", finding.name, "ready"]), finding.problem === "paused" ? "Resume" : "Look at the queue"];
    case "router":
      return [to(["routers"]), "Look at routers"];
    case "pipeline":
      return [to(["pipelines", finding.name]), "Look at the pipeline"];
    case "group":
      return [to(["groups"], { group: finding.name }), "Look at the group"];
    default:
      return [to(["server"]), "Look at the server"];
  }
}

function Attention({ findings, more }: { findings: Finding[]; more: number }) {
  if (findings.length === 0) {
    return <section class="card" aria-label="Attention"><p class="body row"><Badge kind="ok">All is well</Badge><span class="muted">Nothing needs attention.</span></p></section>;
  }
  const kinds = { error: "bad", warning: "warn", notice: "" } as const;
  return (
    <section class="card" aria-label="Needs attention">
      <ul class="attention">
        {findings.slice(0, 12).map((finding) => {
          const [href, text] = linkOf(finding);
          return (
            <li>
              <Badge kind={kinds[finding.severity]}>{finding.severity}</Badge>
              <span class="foreign">{finding.text}</span>
              <a href={href} aria-label={`${text}: ${finding.name}`}>{text}</a>
            </li>
          );
        })}
      </ul>
      {(findings.length > 12 || more > 0) && <p class="pager muted small">and {count(findings.length - Math.min(12, findings.length) + more)} more</p>}
    </section>
  );
}

/** The last hour; only what is new is fetched. */
function usePast(): HistoryReply | undefined {
  const [past, setPast] = useState<HistoryReply>();
  const since = past?.ts.at(-1) ?? 0;
  const news = useResource((signal) => client.call("GET /v0/history", { query: { since }, signal }), [], EVERY_MS);
  useEffect(() => {
    const fresh = news.data;
    if (fresh === undefined || fresh.ts.length === 0) return;
    setPast((old) => {
      if (old === undefined || fresh.ts[0]! <= old.ts.at(-1)!) return fresh;
      const series: HistoryReply["series"] = {};
      for (const [name, values] of Object.entries(fresh.series)) {
        series[name] = [...(old.series[name] ?? []), ...values].slice(-POINTS_MAX);
      }
      return { ...fresh, ts: [...old.ts, ...fresh.ts].slice(-POINTS_MAX), series };
    });
  }, [news.data]);
  return past;
}

function Charts() {
  const past = usePast();
  if (past === undefined) return <p class="muted">The first points of the charts come within ten seconds.</p>;
  const of = (name: string) => past.series[name] ?? [];
  const ms = (value: number) => span(value);
  const perSecond = (value: number) => `${short(value)}/s`;
  return (
    <section class="charts" aria-label="The last hour">
      <Chart title="Records" ts={past.ts} show={perSecond} series={[{ name: "in", values: of("records_in_per_s"), colour: "--accent" }, { name: "out", values: of("records_out_per_s"), colour: "--ok" }]} />
      <Chart title="Requests" ts={past.ts} show={perSecond} series={[{ name: "requests", values: of("requests_per_s"), colour: "--accent" }]} />
      <Chart title="Latency" ts={past.ts} show={ms} series={[{ name: "request", values: of("handler_ms"), colour: "--accent" }, { name: "sync", values: of("sync_ms"), colour: "--warn" }, { name: "loop", values: of("loop_lag_ms"), colour: "--bad" }]} />
      <Chart binary title="Written to the log" ts={past.ts} show={(value) => `${bytes(value)}/s`} series={[{ name: "log", values: of("log_bytes_per_s"), colour: "--accent" }]} />
      <Chart binary title="Memory" ts={past.ts} show={bytes} series={[{ name: "memory", values: of("memory_bytes"), colour: "--accent" }]} />
      <Chart binary title="Free disk" ts={past.ts} show={bytes} series={[{ name: "free", values: of("disk_free_bytes"), colour: "--accent" }]} />
      <Chart title="Live readers and connections" ts={past.ts} show={rate} series={[{ name: "readers", values: of("live_readers"), colour: "--accent" }, { name: "connections", values: of("connections"), colour: "--muted" }]} />
      <Chart title="Records held" ts={past.ts} show={short} series={[{ name: "records", values: of("records"), colour: "--accent" }]} />
    </section>
  );
}

/** A server without topics: the three commands that make the first record, and that record as it arrives. */
function FirstSteps({ onArrived }: { onArrived: () => void }) {
  const [first, setFirst] = useState<{ topic: string; record: TopicRecord }>();
  useResource(async (signal) => {
    if (first !== undefined) return;
    const { topics } = await client.call("GET /v0/topics", { query: { page_size: 1 }, signal });
    const topic = topics[0];
    if (topic === undefined) return;
    const page = await client.call("POST /v0/topics/{topic}/diff", { path: { topic: topic.topic }, body: { limit: 1 }, signal });
    if (page.records[0] !== undefined) setFirst({ topic: topic.topic, record: page.records[0] });
    else onArrived();
  }, [first === undefined], FIRST_MS);
  const commands = `export TOPICS_URL=${client.url}\ntopics append orders '{"item": "tea", "amount": 2}'\ntopics tail -f orders`;
  return (
    <>
      <div class="head"><h1>Overview</h1></div>
      <section class="card">
        <Empty title="This server has no topics yet">
          <p>A topic is a log that you append records to and read from any place. The first record makes it:</p>
          <pre class="commands"><code>{commands}</code></pre>
          <div class="row">
            <Copy text={() => commands}>Copy the commands</Copy>
            {can("admin") && <a class="button" href={to(["topics"], { create: 1 })}>Create a topic here</a>}
          </div>
          <div role="status">
            {first === undefined ? (
              <p class="row"><span class="dot pulse" /> Waiting for the first record</p>
            ) : (
              <div class="stack">
                <p class="ok">The first record is here:</p>
                <p><Preview source={first.record.data.source} /></p>
                <p><a href={to(["topics", first.topic, "records"], { seq: first.record.$seq })}>Open {first.topic}</a></p>
              </div>
            )}
          </div>
        </Empty>
      </section>
    </>
  );
}
