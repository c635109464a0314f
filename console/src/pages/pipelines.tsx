/** Pipelines: what they do, how they do, what went wrong; start, stop, replace. */

import { useState } from "preact/hooks";
import type { PipelineItem, PipelineRequest } from "topics-client";
import { count, rate } from "../format.ts";
import { go, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Button, Confirm, Dialog, Empty, Field, Foreign, Input, Json, Problem, Relative, say } from "../ui/parts.tsx";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const SILENT_MS_MAX = 60_000;
const EXAMPLE = '{\n  "sql": "SELECT data FROM orders",\n  "sources": { "orders": { "topic": "orders" } },\n  "sink": { "topic": "orders.copy" }\n}';

export function Pipelines({ name }: { name: string | undefined }) {
  return name === undefined ? <List /> : <One key={name} name={name} />;
}

function State({ item }: { item: PipelineItem }) {
  const status = item.status;
  if (item.definition.enabled === false) return <Badge>stopped</Badge>;
  if (status === null) return <Badge kind="warn">no runner yet</Badge>;
  if (status.state === "failed") return <Badge kind="bad">failed</Badge>;
  if (Date.now() - (status.ts ?? 0) > SILENT_MS_MAX) return <Badge kind="warn">runner is silent</Badge>;
  return <Badge kind={status.state === "running" || status.state === "idle" ? "ok" : "warn"}>{status.state}</Badge>;
}

function List() {
  const list = useResource((signal) => client.call("GET /v0/pipelines", { query: { page_size: 500 }, signal }), [], EVERY_MS);
  const [creating, setCreating] = useState(false);
  const pipelines = list.data?.pipelines;
  return (
    <>
      <div class="head">
        <h1 class="grow">Pipelines</h1>
        {can("admin") && <Button kind="primary" onClick={() => setCreating(true)}>Define a pipeline</Button>}
      </div>
      <Problem error={list.error} />
      <section class="card">
        {pipelines !== undefined && pipelines.length === 0 ? (
          <Empty title="No pipelines"><p>A pipeline is a Spark job that the server keeps: SQL over topics, into a topic or a table. A runner runs it: <code>topics pipelines run</code>.</p></Empty>
        ) : (
          <div class="scroll">
            <table aria-label="Pipelines">
              <thead><tr><th scope="col">Pipeline</th><th scope="col">State</th><th scope="col" class="wide-only">Runner</th><th scope="col" class="right wide-only">Batch</th><th scope="col" class="right">Rows/s</th><th scope="col" class="right">Input lag</th><th scope="col" class="wide-only">Heard of</th></tr></thead>
              <tbody>
                {pipelines?.map((item) => (
                  <tr key={item.pipeline}>
                    <td><a href={to(["pipelines", item.pipeline])}><Foreign text={item.pipeline} /></a></td>
                    <td><State item={item} /></td>
                    <td class="wide-only muted"><Foreign text={item.status?.runner ?? "–"} /></td>
                    <td class="right number wide-only">{item.status?.batch ?? "–"}</td>
                    <td class="right number">{rate(item.status?.rows_per_second ?? 0)}</td>
                    <td class="right number">{count(item.status?.lag ?? 0)}</td>
                    <td class="muted wide-only">{item.status?.ts === undefined ? "never" : <Relative ms={item.status.ts} />}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {creating && <Editor onClose={() => setCreating(false)} onDone={list.reload} />}
    </>
  );
}

/** The line of the definition that an error speaks of, if it does. */
function lineOf(error: string): number | undefined {
  const found = /\bline (\d+)/i.exec(error);
  return found === null ? undefined : Number(found[1]);
}

function One({ name }: { name: string }) {
  const look = useResource((signal) => client.call("GET /v0/pipelines/{pipeline}", { path: { pipeline: name }, signal }), [name], EVERY_MS);
  const [editing, setEditing] = useState(false);
  const [removing, setRemoving] = useState(false);
  const action = useAction();
  const item = look.data;
  if (item === undefined) return <><h1><Foreign text={name} /></h1><Problem error={look.error} /></>;
  const { definition, status } = item;
  const on = definition.enabled !== false;
  const set = (enabled: boolean) =>
    void action.run(async () => {
      await client.call("PUT /v0/pipelines/{pipeline}", { path: { pipeline: name }, body: { ...definition, enabled } });
      say(enabled ? `${name} starts with its runner's next look` : `${name} stops with its runner's next look`);
      look.reload();
    });
  const progress = (status?.progress ?? {}) as { [key: string]: unknown };
  const watermark = (progress["eventTime"] as { [key: string]: string } | undefined)?.["watermark"];
  const ui = typeof progress["uiWebUrl"] === "string" && /^https?:\/\//.test(progress["uiWebUrl"]) ? progress["uiWebUrl"] : undefined;
  const error = status?.last_error ?? undefined;
  const bad = error === undefined ? undefined : lineOf(error);
  return (
    <>
      <div>
        <p class="crumbs"><a href={to(["pipelines"])}>Pipelines</a> /</p>
        <div class="head">
          <h1><Foreign text={name} /></h1>
          <State item={item} />
          <span class="grow" />
          {can("admin") && <Button disabled={action.busy} onClick={() => set(!on)}>{on ? "Stop" : "Start"}</Button>}
          {can("admin") && <Button onClick={() => setEditing(true)}>Replace…</Button>}
          {can("delete") && <Button kind="danger" onClick={() => setRemoving(true)}>Remove…</Button>}
        </div>
      </div>
      <Problem error={action.error ?? look.error} />
      {error !== undefined && <section class="card" aria-label="Last error"><header><h2>Last error</h2></header><div class="body"><pre class="json" tabIndex={0} aria-label="Last error"><Foreign text={error} /></pre></div></section>}
      <section class="card" aria-label="Status">
        <div class="body">
          <dl class="facts">
            <dt>Runner</dt><dd>{status === null ? "none yet" : <><Foreign text={status.runner} />, heard of <Relative ms={status.ts ?? 0} /></>}</dd>
            {definition.description !== undefined && definition.description !== null && <><dt>Description</dt><dd><Foreign text={definition.description} /></dd></>}
            <dt>Last batch</dt><dd>{status?.batch ?? "–"}</dd>
            <dt>Rows</dt><dd class="number">{count(status?.rows_total ?? 0)} in all, {rate(status?.rows_per_second ?? 0)}/s</dd>
            <dt>Input lag</dt><dd class="number">{count(status?.lag ?? 0)} records</dd>
            {watermark !== undefined && <><dt>Watermark</dt><dd>{watermark}</dd></>}
            <dt>Restarts</dt><dd>{count(status?.restarts ?? 0)}</dd>
            <dt>Revision</dt><dd>{count(item.revision)}{status !== null && status.revision !== item.revision ? `, the runner still has ${count(status.revision ?? 0)}` : ""}</dd>
            {ui !== undefined && <><dt>Spark</dt><dd><a href={ui} rel="noreferrer noopener" target="_blank">Spark UI</a></dd></>}
          </dl>
        </div>
      </section>
      {typeof definition.sql === "string" && (
        <section class="card" aria-label="SQL">
          <header><h2>SQL</h2></header>
          <div class="body"><pre class="json" tabIndex={0} aria-label="SQL">{definition.sql.split("\n").map((line, index) => <div class={bad === index + 1 ? "bad" : ""}><span class="mark">{String(index + 1).padStart(3)} </span><Foreign text={line} /></div>)}</pre></div>
        </section>
      )}
      <section class="card" aria-label="Definition"><header><h2>Definition</h2></header><div class="body"><Json source={JSON.stringify(definition)} label="Definition" /></div></section>
      {status?.progress !== undefined && status.progress !== null && <section class="card" aria-label="Last progress"><header><h2>Last progress</h2></header><div class="body"><Json source={JSON.stringify(status.progress)} label="Last progress" /></div></section>}
      {editing && <Editor name={name} definition={definition} onClose={() => setEditing(false)} onDone={look.reload} />}
      {removing && (
        <Confirm
          title="Remove the pipeline?"
          name={name}
          verb="Remove the pipeline"
          busy={action.busy}
          error={action.error}
          onClose={() => setRemoving(false)}
          onConfirm={() =>
            void action.run(async () => {
              await client.call("DELETE /v0/pipelines/{pipeline}", { path: { pipeline: name } });
              say(`Removed ${name}`);
              go(["pipelines"]);
            })
          }
        >
          <p>Its runner stops <strong class="foreign">{name}</strong>. What it wrote stays.</p>
        </Confirm>
      )}
    </>
  );
}

type EditorProps = { name?: string; definition?: PipelineRequest; onClose: () => void; onDone: () => void };

function Editor({ name, definition, onClose, onDone }: EditorProps) {
  const [title, setTitle] = useState(name ?? "");
  const [text, setText] = useState(definition === undefined ? EXAMPLE : JSON.stringify(definition, null, 2));
  const action = useAction(["pipeline"]);
  let wrong: string | undefined;
  try {
    JSON.parse(text);
  } catch {
    wrong = "Not valid JSON";
  }
  const submit = () =>
    void action
      .run(async () => {
        await client.call("PUT /v0/pipelines/{pipeline}", { path: { pipeline: title }, body: JSON.parse(text) as PipelineRequest });
        say(`Defined ${title}`);
        onDone();
        go(["pipelines", title]);
      })
      .then((done) => done && onClose());
  return (
    <Dialog title={name === undefined ? "Define a pipeline" : `Replace ${name}`} wide onClose={onClose} onSubmit={submit} actions={<Button kind="primary" type="submit" disabled={action.busy || wrong !== undefined || title === ""}>{name === undefined ? "Define" : "Replace"}</Button>}>
      {name === undefined && <Input label="Name" value={title} onInput={setTitle} error={action.about("pipeline")} autoFocus required />}
      <Field label="Definition, as JSON" error={wrong ?? action.error?.message}>
        {(id, described) => <textarea id={id} rows={14} spellcheck={false} value={text} aria-invalid={wrong !== undefined} aria-describedby={described} onInput={(event) => setText(event.currentTarget.value)} />}
      </Field>
    </Dialog>
  );
}
