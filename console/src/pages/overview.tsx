/** The overview: what needs attention in words, then numbers, then the last hour. */

import { useState } from "preact/hooks";
import type { BucketHealth, Finding, OverviewReply, Record as TopicRecord } from "topics-client";
import { bytes, count, plural, rate, short, span } from "../format.ts";
import { to } from "../route.ts";
import { can, client, has, seesAll } from "../session.ts";
import { Chart } from "../ui/chart.tsx";
import { Badge, Copy, Empty, HeldNote, Preview, Problem, Relative, Tile } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { usePast } from "../ui/past.ts";
import { useResource } from "../ui/resource.ts";

const EVERY_MS = 5_000;
const FIRST_MS = 1_500;
const POINTS_MAX = 720;

let asked: Promise<OverviewReply> | undefined;

/** Ask while the page is still being made, if this is the first one; a refusal is for whoever asks next. */
export function askAhead(): void {
  asked = client.call("GET /v0/overview");
  asked.catch(() => {
    asked = undefined;
  });
}

function ask(signal: AbortSignal): Promise<OverviewReply> {
  const ahead = asked;
  asked = undefined;
  return ahead ?? client.call("GET /v0/overview", { signal });
}

export function Overview() {
  const seen = useResource(ask, [], EVERY_MS);
  const held = useHeld(seen.data, "");
  const overview = held.shown;
  if (overview === undefined) return <><h1>Overview</h1><Problem error={seen.error} /></>;
  if (overview.topics === 0) return <FirstSteps overview={overview} onArrived={seen.reload} />;
  return (
    <>
      <div class="head"><h1>Overview</h1><HeldNote behind={held.behind} /></div>
      <div class="sections" {...held.on}>
      <Attention findings={overview.attention} more={overview.more} />
      <dl class="tiles">
        <Tile name="Topics" value={count(overview.topics)} note={overview.queues > 0 ? plural(overview.queues, "queue") : undefined} />
        <Tile name="Records" value={short(overview.records)} note={bytes(overview.bytes)} />
        <Tile name="Jobs ready" value={short(overview.ready)} note={overview.delayed > 0 ? `${short(overview.delayed)} delayed` : undefined} />
        <Tile name="In flight" value={short(overview.in_flight)} />
        <Tile name="Dead" value={overview.dead === 0 ? "0" : <a class="bad" href={to(["queues"])}>{short(overview.dead)}</a>} />
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
      <InBucket overview={overview} />
      {has("admin") && seesAll() && <Charts />}
      </div>
    </>
  );
}

function linkOf(finding: Finding): [string, string] {
  switch (finding.kind) {
    case "queue":
      if (finding.problem === "dead") return [to(["topics", finding.name, "dead"]), finding.value === 1 ? "Look at it" : "Look at them"];
      if (finding.problem === "refused") return [to(["topics", finding.name, "configuration"]), "Check the queue"];
      return [to(["topics", finding.name, "ready"]), finding.problem === "paused" ? "Resume it" : "Look at the queue"];
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

const STATES = { ok: "ok", away: "warn", gap: "warn", fenced: "bad" } as const;

/** How the copy in the bucket is, in lines that do not wrap; nothing without a bucket. */
function InBucket({ overview }: { overview: OverviewReply }) {
  const { bucket, role } = overview;
  if (bucket === undefined) return null;
  const [copy, rest] = role === "standby" ? ofStandby(bucket, overview.primary) : ofPrimary(bucket);
  return (
    <section class="card in-bucket" aria-label="Copy in the bucket">
      <Badge kind={STATES[bucket.state]}>{bucket.state}</Badge>
      <span class="cut number">{copy}</span>
      <span class="cut muted number foreign" title={rest}>{rest}</span>
    </section>
  );
}

function ofStandby(bucket: BucketHealth, primary: string | null | undefined): [string, string] {
  return [`Standby: its state is ${span(bucket.lag_ms)} old`, primary ? `The primary is ${primary}` : "No primary is known for now"];
}

function ofPrimary({ state, lag_ms, lag_bytes }: BucketHealth): [string, string] {
  if (state === "gap") return ["Copy in the bucket: has a gap", `${bytes(lag_bytes)} are not in it`];
  if (state === "fenced") return ["Copy in the bucket: taken over", `${bytes(lag_bytes)} are not in it`];
  if (lag_bytes === 0) return ["Copy in the bucket: up to date", "Nothing waits"];
  return [`Copy in the bucket: ${span(lag_ms)} behind`, `${bytes(lag_bytes)} wait`];
}

function Charts() {
  const past = usePast((since, signal) => client.call("GET /v0/history", { query: { since }, signal }), [], POINTS_MAX);
  if (past === undefined || past.ts.length === 0) return <section class="card"><Empty title="The first points come within ten seconds"><p>The server keeps the last hour of its own numbers: records, requests, latency, memory, disk, jobs.</p></Empty></section>;
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
      <Chart title="Jobs" ts={past.ts} show={short} series={[{ name: "ready", values: of("jobs_ready"), colour: "--accent" }, { name: "in flight", values: of("jobs_in_flight"), colour: "--warn" }]} />
      <Chart title="Oldest waiting job" ts={past.ts} show={ms} series={[{ name: "waits", values: of("jobs_waiting_ms"), colour: "--accent" }]} />
      <Chart title="Records held" ts={past.ts} show={short} series={[{ name: "records", values: of("records"), colour: "--accent" }]} />
    </section>
  );
}

/** A server without topics: the three commands that make the first record, and that record as it arrives. */
function FirstSteps({ overview, onArrived }: { overview: OverviewReply; onArrived: () => void }) {
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
      <InBucket overview={overview} />
    </>
  );
}
