/** Which pipelines read and write which topics and tables, as `topics pipelines graph` draws it. */

import type { PipelineItem, PipelineRequest } from "topics-client";
import { plural } from "../format.ts";
import { to } from "../route.ts";
import { Graph, type GraphEdge, type GraphNode } from "./graph.tsx";
import { Foreign } from "./parts.tsx";

const QUARANTINE = "quarantine to ";

type Kind = "topic" | "table" | "pattern" | "pipeline";
type End = { kind: Kind; name: string };
type Flow = { from: End; to: End; text: string };

function id(end: End): string {
  return `${end.kind}:${end.name}`;
}

function inputs(definition: PipelineRequest): { end: End; view: string }[] {
  return Object.entries(definition.sources).flatMap(([view, source]) => {
    const topics = source.topic == null ? (source.topics ?? []) : [source.topic];
    const ends: End[] = topics.map((name) => ({ kind: "topic", name }));
    if (source.table != null) ends.push({ kind: "table", name: source.table });
    if (source.pattern != null) ends.push({ kind: "pattern", name: source.pattern });
    return ends.map((end) => ({ end, view }));
  });
}

/** Its sink, then the topics for what it does not accept. */
function outputs(item: PipelineItem): { end: End; text: string }[] {
  const { definition } = item;
  const topic = definition.sink?.topic;
  const sink: End = topic == null ? { kind: "table", name: definition.sink?.table ?? item.pipeline } : { kind: "topic", name: topic };
  const sources = Object.values(definition.sources);
  const conditions = [definition.expect, ...sources.map((source) => source.expect)].flatMap((expect) => Object.values(expect ?? {}));
  const rejected = [
    ...sources.map((source) => source.dead_letter),
    ...conditions.map((each) => (typeof each === "string" || !each.otherwise?.startsWith(QUARANTINE) ? undefined : each.otherwise.slice(QUARANTINE.length))),
  ];
  const names = [...new Set(rejected.filter((name) => name != null))];
  return [{ end: sink, text: "" }, ...names.map((name) => ({ end: { kind: "topic" as const, name }, text: "rejected" }))];
}

/** Patterns are Python's; one that a browser does not understand leads to no topic. */
function matching(pattern: string, names: string[]): string[] {
  try {
    const whole = new RegExp(`^(?:${pattern})$`, "u");
    return names.filter((name) => whole.test(name));
  } catch {
    return [];
  }
}

function flows(pipelines: PipelineItem[]): Flow[] {
  const written = new Set(pipelines.flatMap((item) => outputs(item).filter(({ end }) => end.kind === "topic").map(({ end }) => end.name)));
  const found = pipelines.flatMap((item) => {
    const self: End = { kind: "pipeline", name: item.pipeline };
    const read = inputs(item.definition).flatMap(({ end, view }): Flow[] => [
      ...(end.kind === "pattern" ? matching(end.name, [...written]).map((name): Flow => ({ from: { kind: "topic", name }, to: end, text: "" })) : []),
      { from: end, to: self, text: view === end.name ? "" : view },
    ]);
    return [...read, ...outputs(item).map(({ end, text }): Flow => ({ from: self, to: end, text }))];
  });
  return [...new Map(found.map((flow) => [`${id(flow.from)} ${id(flow.to)} ${flow.text}`, flow])).values()];
}

const SAID = { topic: "Topic", table: "Table", pattern: "Topics like", pipeline: "Pipeline" } as const;

function said(end: End): string {
  return `${SAID[end.kind]} ${end.name}`;
}

function node(end: End): GraphNode {
  const page = end.kind === "topic" ? "topics" : end.kind === "pipeline" ? "pipelines" : undefined;
  return { id: id(end), text: end.name, label: said(end), kind: end.kind, ...(page === undefined ? {} : { href: to([page, end.name]) }) };
}

export function Lineage({ pipelines }: { pipelines: PipelineItem[] }) {
  const drawn = flows(pipelines);
  const nodes = [...new Map(drawn.flatMap((flow) => [flow.from, flow.to]).map((end) => [id(end), node(end)])).values()];
  const edges: GraphEdge[] = drawn.map((flow) => ({
    id: `${id(flow.from)} ${id(flow.to)} ${flow.text}`,
    from: id(flow.from),
    to: id(flow.to),
    title: `${said(flow.from)} → ${said(flow.to)}${flow.text === "" ? "" : ` (${flow.text})`}`,
    ...(flow.text === "" ? {} : { text: flow.text }),
    ...(flow.text === "rejected" ? { kind: "rejected" } : {}),
  }));
  return (
    <section class="card" aria-label="Lineage">
      <header><h2 class="grow">Lineage</h2><span class="muted small">Round: pipelines; dashed: tables and patterns</span></header>
      <Graph nodes={nodes} edges={edges} label="Graph of what pipelines read and write" summary={`${plural(pipelines.length, "pipeline")} between ${plural(nodes.length - pipelines.length, "topic or table", "topics and tables")}`} />
      <ul class="sr">{edges.map((edge) => <li><Foreign text={edge.title} /></li>)}</ul>
    </section>
  );
}
