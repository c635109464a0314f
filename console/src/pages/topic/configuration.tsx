/** Every field of a topic's configuration, explained; a change is previewed before it is made. */

import { useState } from "preact/hooks";
import type { EditedReply, StateReply, TopicConfig } from "topics-client";
import { bytes, count, plural, span } from "../../format.ts";
import { can, client } from "../../session.ts";
import { Button, Dialog, Field, Problem, say } from "../../ui/parts.tsx";
import { useAction } from "../../ui/resource.ts";

type Kind = "ms" | "bytes" | "count" | "rate" | "flag" | "text" | "choice" | "json" | "fixed";
interface Row {
  name: keyof TopicConfig & string;
  kind: Kind;
  help: string;
  queue?: boolean;
  choices?: string[];
  nullable?: boolean;
}

const ROWS: readonly Row[] = [
  { name: "type", kind: "fixed", help: "A log gives every reader every record; a queue gives each job to one worker. It cannot be changed." },
  { name: "durability", kind: "choice", choices: ["ephemeral", "memory", "disk", "fsync", "replicated"], help: "What holds when an append is answered: nothing after a restart, soon on disk, written, synced, or in the bucket." },
  { name: "ttl_ms", kind: "ms", help: "Records older than this expire. 0: never." },
  { name: "cap_records", kind: "count", help: "The most records that are kept. 0: unlimited." },
  { name: "cap_bytes", kind: "bytes", help: "The most bytes that are kept. 0: unlimited." },
  { name: "discard", kind: "choice", choices: ["old", "reject"], help: "At a cap: the oldest records go, or the write is refused." },
  { name: "priority", kind: "count", nullable: true, help: "−1000 to 1000. Under load, requests for topics of low priority are refused first. Empty: by how recently the topic was read." },
  { name: "auto_priority", kind: "flag", help: "Without a priority of its own, the topic has one that falls while nobody reads it." },
  { name: "idempotency_window_ms", kind: "ms", help: "How long an idempotency key is remembered. 0: not at all." },
  { name: "dedupe_node", kind: "flag", help: "A reader that names its node does not get its own records back." },
  { name: "auto_create", kind: "flag", help: "Of a queue: whether its dead-letter topic is created when it is needed." },
  { name: "lease_ms", kind: "ms", queue: true, help: "How long a worker has for a job if it does not say." },
  { name: "max_deliveries", kind: "count", queue: true, help: "After so many failed deliveries a job is dead. 0: it is tried for ever." },
  { name: "dead_letter", kind: "text", queue: true, nullable: true, help: "The topic that dead jobs are moved to." },
  { name: "retry_backoff", kind: "json", queue: true, nullable: true, help: "How long a job rests after a failed delivery, as JSON." },
  { name: "keep_results_ms", kind: "ms", queue: true, help: "How long results and errors of ended jobs are kept. 0: not at all." },
  { name: "max_in_flight", kind: "count", queue: true, nullable: true, help: "The most jobs that are leased at once. Empty: unlimited." },
  { name: "max_in_flight_per_tag", kind: "count", queue: true, nullable: true, help: "The same for the jobs of each tag. 1: one at a time, in order." },
  { name: "rate_per_s", kind: "rate", queue: true, nullable: true, help: "The most jobs that are claimed per second, such as 0.5. Empty: unlimited." },
  { name: "burst", kind: "count", queue: true, nullable: true, help: "How many jobs the rate lets through at once after a pause. Empty: those of one second." },
  { name: "rate_per_s_per_tag", kind: "rate", queue: true, nullable: true, help: "The most jobs of each tag that are claimed per second." },
  { name: "burst_per_tag", kind: "count", queue: true, nullable: true, help: "How many jobs of a tag its rate lets through at once after a pause." },
  { name: "sqs", kind: "json", queue: true, nullable: true, help: "What SQS clients have set and a topic has no field for, as JSON." },
  { name: "claim_jitter_ms", kind: "ms", queue: true, help: "Claims that come within this time share the jobs evenly." },
  { name: "leases_durable", kind: "flag", queue: true, help: "Whether leases survive a crash of the server." },
];

function shown(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function meaning(row: Row, value: unknown): string {
  if (typeof value !== "number" || value === 0) return "";
  if (row.kind === "ms" && value >= 1_000) return span(value);
  if (row.kind === "bytes" && value >= 1_024) return bytes(value);
  return "";
}

function parse(row: Row, text: string): unknown {
  if (text === "") return null;
  switch (row.kind) {
    case "flag":
      return text === "true";
    case "json":
      return JSON.parse(text);
    case "ms":
    case "bytes":
    case "count":
    case "rate":
      return Number(text);
    default:
      return text;
  }
}

export function Configuration({ topic, onDone }: { topic: StateReply; onDone: () => void }) {
  const [edited, setEdited] = useState<{ [name: string]: string }>({});
  const [preview, setPreview] = useState<EditedReply>();
  const rows = ROWS.filter((row) => row.queue !== true || topic.type === "queue");
  const action = useAction(rows.map((row) => row.name));
  const may = can("admin");
  const config = topic.config as unknown as { [name: string]: unknown };
  const changed = rows.filter((row) => edited[row.name] !== undefined && edited[row.name] !== shown(config[row.name]));
  const send = async (dryRun: boolean) => {
    const body: { [name: string]: unknown } = {};
    for (const row of changed) body[row.name] = parse(row, edited[row.name]!);
    return client.call("PATCH /v0/topics/{topic}", { path: { topic: topic.topic }, query: { dry_run: dryRun }, body });
  };
  return (
    <section class="card">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(async () => setPreview(await send(true)));
        }}
      >
        <div class="scroll">
          <table class="form" aria-label="Configuration">
            <thead><tr><th scope="col">Field</th><th scope="col">Value</th><th scope="col" class="wide-only">Meaning</th></tr></thead>
            <tbody>
              {rows.map((row) => {
                const value = edited[row.name] ?? shown(config[row.name]);
                return (
                  <tr key={row.name} class={changed.includes(row) ? "on" : ""}>
                    <td><span class="mono">{row.name}</span><span class="narrow-only muted small">{row.help}</span></td>
                    <td>
                      {may && row.kind !== "fixed" ? (
                        <Control row={row} value={value} error={action.about(row.name)} onInput={(text) => setEdited({ ...edited, [row.name]: text })} />
                      ) : (
                        <span class="mono foreign">{shown(config[row.name]) || "–"}</span>
                      )}
                      <span class="muted small"> {meaning(row, Number(value))}</span>
                    </td>
                    <td class="muted small wide-only">{row.help}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
        {may && (
          <div class="pager">
            <Button kind="primary" type="submit" disabled={changed.length === 0 || action.busy}>{changed.length === 0 ? "Preview changes" : `Preview ${plural(changed.length, "change")}`}</Button>
            {changed.length > 0 && <Button kind="quiet" onClick={() => setEdited({})}>Undo</Button>}
            <Problem error={preview === undefined ? action.error : undefined} />
          </div>
        )}
      </form>
      {preview !== undefined && (
        <Dialog
          title={`Change ${topic.topic}`}
          onClose={() => setPreview(undefined)}
          onSubmit={() =>
            void action.run(async () => {
              const done = await send(false);
              say(`Changed ${plural(Object.keys(done.changes).length, "field")} of ${topic.topic}`);
              setPreview(undefined);
              setEdited({});
              onDone();
            })
          }
          actions={<Button kind={preview.evicts > 0 ? "danger fill" : "primary"} type="submit" disabled={action.busy}>{preview.evicts > 0 ? `Change, and lose ${plural(preview.evicts, "record")}` : "Change"}</Button>}
        >
          <dl class="facts">
            {Object.entries(preview.changes).map(([name, change]) => (
              <>
                <dt class="mono">{name}</dt>
                <dd class="mono"><span class="muted">{shown(change.from) || "–"}</span> → {shown(change.to) || "–"}</dd>
              </>
            ))}
          </dl>
          <p class={`notice ${preview.evicts > 0 ? "bad" : "ok"}`}>
            {preview.evicts > 0 ? `${count(preview.evicts)} of ${plural(topic.count, "record")} would be removed at once.` : "No record is removed."}
          </p>
          {preview.warnings?.map((warning) => <p class="notice warn">{warning}</p>)}
          <Problem error={action.error} />
        </Dialog>
      )}
    </section>
  );
}

function Control({ row, value, error, onInput }: { row: Row; value: string; error: string | undefined; onInput: (text: string) => void }) {
  return (
    <Field label={row.name} error={error}>
      {(id, described) => {
        const common = { id, "aria-describedby": described, "aria-invalid": error !== undefined };
        if (row.kind === "choice" || row.kind === "flag") {
          return (
            <select {...common} value={value} onChange={(event) => onInput(event.currentTarget.value)}>
              {(row.choices ?? ["true", "false"]).map((choice) => <option>{choice}</option>)}
            </select>
          );
        }
        return <input {...common} type="text" size={row.kind === "json" ? 26 : 16} value={value} inputMode={row.kind === "text" || row.kind === "json" ? "text" : row.kind === "rate" ? "decimal" : "numeric"} onInput={(event) => onInput(event.currentTarget.value)} />;
      }}
    </Field>
  );
}
