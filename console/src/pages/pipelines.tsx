/** Pipelines: what they do, how they do, what went wrong; start, pause, replace, remove. */

import { useState } from "preact/hooks";
import type { PipelineItem, PipelineLogLine, PipelineReply, PipelineRequest } from "topics-client";
import { count, plural, rate } from "../format.ts";
import { go, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Lineage } from "../ui/lineage.tsx";
import { Badge, Button, Commands, Confirm, Dialog, Empty, Field, Foreign, HeldNote, Input, Json, Problem, Relative, Steady, Time, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const PROGRESS = "pipelines.progress";
const SILENT_MS_MAX = 60_000;
const EXAMPLE = '{\n  "sql": "SELECT data FROM orders",\n  "sources": { "orders": { "topic": "orders" } },\n  "sink": { "topic": "orders.copy" }\n}';

export function Pipelines({ name }: { name: string | undefined }) {
  return name === undefined ? <List /> : <One key={name} name={name} />;
}

function State({ item }: { item: PipelineItem }) {
  const status = item.status;
  if (item.definition.enabled === false) return <Badge>paused</Badge>;
  if (status === null) return <Badge kind="warn">no runner yet</Badge>;
  if (status.state === "failed") return <Badge kind="bad">failed</Badge>;
  if (Date.now() - (status.ts ?? 0) > SILENT_MS_MAX) return <Badge kind="warn">runner is silent</Badge>;
  return <Badge kind={status.state === "running" || status.state === "idle" ? "ok" : "warn"}>{status.state}</Badge>;
}

function List() {
  const list = useResource((signal) => client.call("GET /v0/pipelines", { query: { page_size: 500 }, signal }), [], EVERY_MS);
  const [creating, setCreating] = useState(false);
  const held = useHeld(list.data?.pipelines, "");
  const pipelines = held.shown;
  return (
    <>
      <div class="head">
        <h1 class="grow">Pipelines</h1>
        <HeldNote behind={held.behind} />
        {can("admin") && <Button kind="primary" onClick={() => setCreating(true)}>Define a pipeline</Button>}
      </div>
      <Trouble text={list.error?.message} />
      <div class="sections" {...held.on}>
      <section class="card">
        {pipelines !== undefined && pipelines.length === 0 ? (
          <Empty title="No pipelines"><p>A pipeline is a Spark job that the server keeps: SQL over topics, into a topic or a table. A runner runs what is defined.</p><Commands lines={["topics pipelines put orders.toml", "topics pipelines run"]} /></Empty>
        ) : (
          <div class="scroll">
            <table aria-label="Pipelines">
              <thead><tr><th scope="col">Pipeline</th><th scope="col">State</th><th scope="col" class="wide-only">Runner</th><th scope="col" class="right wide-only">Batch</th><th scope="col" class="right">Rows/s</th><th scope="col" class="right">Input lag</th><th scope="col" class="wide-only">Oldest unread</th><th scope="col" class="wide-only">Heard of</th></tr></thead>
              <tbody>
                {pipelines?.map((item) => (
                  <tr key={item.pipeline}>
                    <td><a href={to(["pipelines", item.pipeline])}><Foreign text={item.pipeline} /></a></td>
                    <td><State item={item} /></td>
                    <td class="wide-only muted"><Foreign text={item.status?.runner ?? "–"} /></td>
                    <td class="right number wide-only">{item.status?.batch ?? "–"}</td>
                    <td class="right number">{rate(item.status?.rows_per_second ?? 0)}</td>
                    <td class="right number">{item.lag === null ? "–" : count(item.lag)}</td>
                    <td class="muted wide-only">{item.oldest_unread_ts === null ? "–" : <Relative ms={item.oldest_unread_ts} />}</td>
                    <td class="muted wide-only">{item.status?.ts === undefined ? "never" : <Relative ms={item.status.ts} />}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {pipelines !== undefined && pipelines.length > 0 && <Lineage pipelines={pipelines} />}
      </div>
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
  // What is done here is shown at once.
  const [turn, setTurn] = useState(0);
  const held = useHeld(look.data, String(turn));
  const item = held.shown;
  const reload = () => {
    setTurn(turn + 1);
    look.reload();
  };
  if (item === undefined) return <><h1><Foreign text={name} /></h1><Problem error={look.error} /></>;
  const { definition, status } = item;
  const on = definition.enabled !== false;
  const set = (enabled: boolean) =>
    void action.run(async () => {
      await client.call("PUT /v0/pipelines/{pipeline}", { path: { pipeline: name }, body: { ...definition, enabled } });
      say(enabled ? `${name} starts within a second, if a runner is there` : `${name} pauses; started again, it goes on where it was`);
      reload();
    });
  const progress = (status?.progress ?? {}) as { [key: string]: unknown };
  const watermark = (progress["eventTime"] as { [key: string]: string } | undefined)?.["watermark"];
  const ui = /^https?:\/\//.test(status?.spark_ui ?? "") ? status!.spark_ui! : undefined;
  const since = watermark === undefined ? Number.NaN : Date.parse(watermark);
  const error = status?.last_error ?? undefined;
  const bad = error === undefined ? undefined : lineOf(error);
  return (
    <>
      <div>
        <p class="crumbs"><span><a href={to(["pipelines"])}>Pipelines</a> /</span><HeldNote behind={held.behind} /></p>
        <h1><Foreign text={name} /></h1>
        <div class="under">
          <span class="grow"><State item={item} /></span>
          {can("admin") && <Button disabled={action.busy} onClick={() => set(!on)}><Steady rooms={["Pause"]}>{on ? "Pause" : "Start"}</Steady></Button>}
          {can("admin") && <Button onClick={() => setEditing(true)}>Replace…</Button>}
          {can("delete") && <Button kind="danger" onClick={() => setRemoving(true)}>Remove…</Button>}
        </div>
      </div>
      <Trouble text={(action.error ?? look.error)?.message} />
      <div class="sections" {...held.on}>
      {error !== undefined && <section class="card" aria-label="Last error"><header><h2 class="grow">Last error</h2>{(status?.last_error_ts ?? 0) > 0 && <span class="muted small"><Relative ms={status!.last_error_ts!} /></span>}</header><div class="body"><pre class="json" tabIndex={0} aria-label="Last error"><Foreign text={error} /></pre></div></section>}
      <section class="card" aria-label="Status">
        <div class="body">
          <dl class="facts">
            <dt>Runner</dt><dd>{status === null ? "none yet" : <><Foreign text={status.runner} />, heard of <Relative ms={status.ts ?? 0} /></>}</dd>
            {definition.description !== undefined && definition.description !== null && <><dt>Description</dt><dd><Foreign text={definition.description} /></dd></>}
            <dt>Last batch</dt><dd>{status?.batch ?? "–"}</dd>
            <dt>Rows</dt><dd class="number">{count(status?.rows_total ?? 0)} in all, {rate(status?.rows_per_second ?? 0)}/s</dd>
            <dt>Input lag</dt><dd class="number">{item.lag === null ? "unknown" : plural(item.lag, "record")}{item.oldest_unread_ts !== null && <>, the oldest <Relative ms={item.oldest_unread_ts} /></>}</dd>
            {(status?.late_rows ?? 0) > 0 && <><dt>Late rows</dt><dd class="number">{count(status?.late_rows ?? 0)} dropped</dd></>}
            {Object.entries(status?.unmet ?? {}).map(([expectation, rows]) => <><dt>Not met</dt><dd class="number"><Foreign text={expectation} />: {plural(rows, "row")}</dd></>)}
            {watermark !== undefined && <><dt>Watermark</dt><dd>{Number.isNaN(since) ? watermark : <><Time ms={since} />, <Relative ms={since} /></>}</dd></>}
            <dt>Restarts</dt><dd>{count(status?.restarts ?? 0)}</dd>
            <dt>Revision</dt><dd>{count(item.revision)}{status !== null && status.revision !== item.revision ? `, the runner still has ${count(status.revision ?? 0)}` : ""}</dd>
            {ui !== undefined && <><dt>Spark</dt><dd><a href={ui} rel="noreferrer noopener" target="_blank">Spark UI</a></dd></>}
          </dl>
        </div>
      </section>
      {status !== null && (status.log ?? []).length > 0 && <LogTail lines={status.log!} />}
      <Lineage pipelines={[item]} />
      {typeof definition.sql === "string" && (
        <section class="card" aria-label="SQL">
          <header><h2>SQL</h2></header>
          <div class="body"><pre class="json" tabIndex={0} aria-label="SQL">{definition.sql.split("\n").map((line, index) => <div class={bad === index + 1 ? "bad" : ""}><span class="mark">{String(index + 1).padStart(3)} </span><Foreign text={line} /></div>)}</pre></div>
        </section>
      )}
      <section class="card" aria-label="Definition"><header><h2>Definition</h2></header><div class="body"><Json source={JSON.stringify(definition)} label="Definition" /></div></section>
      {status?.progress !== undefined && status.progress !== null && <section class="card" aria-label="Last progress"><header><h2>Last progress</h2></header><div class="body"><Json source={JSON.stringify(status.progress)} label="Last progress" /></div></section>}
      </div>
      {editing && <Editor name={name} definition={definition} onClose={() => setEditing(false)} onDone={reload} />}
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

/** The newest line on top. */
function LogTail({ lines }: { lines: PipelineLogLine[] }) {
  const kinds = { info: "", warning: "warn", error: "bad" } as const;
  return (
    <section class="card" aria-label="Log">
      <header><h2 class="grow">Log</h2><a class="small" href={to(["topics", PROGRESS])}>All of it: {PROGRESS}</a></header>
      <div class="scroll short" tabIndex={0} role="region" aria-label="The last lines of its log">
        <table>
          <tbody>{[...lines].reverse().map((line) => <tr><td><Time ms={line.ts} /></td><td><Badge kind={kinds[line.level]}>{line.level}</Badge></td><td class="small text"><Foreign text={line.message} /></td></tr>)}</tbody>
        </table>
      </div>
    </section>
  );
}

type EditorProps = { name?: string; definition?: PipelineRequest; onClose: () => void; onDone: () => void };

function Editor({ name, definition, onClose, onDone }: EditorProps) {
  const [title, setTitle] = useState(name ?? "");
  const [text, setText] = useState(definition === undefined ? EXAMPLE : JSON.stringify(definition, null, 2));
  const [plan, setPlan] = useState<PipelineReply>();
  const action = useAction(["pipeline"]);
  const again = plan?.effect === "starts_again";
  let wrong: string | undefined;
  try {
    JSON.parse(text);
  } catch {
    wrong = "Not valid JSON";
  }
  const submit = () =>
    void action.run(async () => {
      const put = (dryRun: boolean) => client.call("PUT /v0/pipelines/{pipeline}", { path: { pipeline: title }, query: { dry_run: dryRun }, body: JSON.parse(text) as PipelineRequest });
      const found = plan ?? (await put(true));
      // What begins again from its sources is asked about first.
      if (plan === undefined && found.effect === "starts_again") return setPlan(found);
      await put(false);
      say(`Defined ${title}`);
      onDone();
      go(["pipelines", title]);
      onClose();
    });
  return (
    <Dialog title={name === undefined ? "Define a pipeline" : `Replace ${name}`} wide onClose={onClose} onSubmit={submit} actions={<Button kind={again ? "danger fill" : "primary"} type="submit" disabled={action.busy || wrong !== undefined || title === ""}>{again ? "Replace, and start again" : name === undefined ? "Define" : "Replace"}</Button>}>
      {name === undefined && <Input label="Name" value={title} onInput={setTitle} error={action.about("pipeline")} autoFocus required />}
      <Field label="Definition, as JSON" error={wrong ?? action.error?.message}>
        {(id, described) => <textarea id={id} rows={14} spellcheck={false} value={text} aria-invalid={wrong !== undefined} aria-describedby={described} onInput={(event) => { setText(event.currentTarget.value); setPlan(undefined); }} />}
      </Field>
      {again && (
        <p class="notice bad" role="alert">
          This changes {(plan.changed ?? []).join(", ")}: <strong class="foreign">{title}</strong> starts again at its sources, without its checkpoint, and may write what it wrote once more.
        </p>
      )}
    </Dialog>
  );
}
