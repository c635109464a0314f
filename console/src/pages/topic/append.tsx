/** An editor for a record that checks before it sends; numbers are sent as they were typed. */

import { useState } from "preact/hooks";
import { placeOf, type AppendReply, type StateReply } from "topics-client";
import { count } from "../../format.ts";
import { to } from "../../route.ts";
import { client } from "../../session.ts";
import { Button, Field, Input, Problem } from "../../ui/parts.tsx";
import { useAction } from "../../ui/resource.ts";

const FIELDS = ["data", "tag", "node", "meta", "delay_ms", "unique_key"];

/** What is wrong with a text as JSON, with the line and column if they are known. */
function fault(text: string): string | undefined {
  if (text.trim() === "") return undefined;
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    const at = placeOf(text, error);
    const where = at === undefined ? "" : ` at line ${at.line}, column ${at.column}`;
    return `Not valid JSON${where}`;
  }
}

export function Append({ topic, onDone }: { topic: StateReply; onDone: () => void }) {
  const [data, setData] = useState('{\n  "hello": "world"\n}');
  const [meta, setMeta] = useState("");
  const [tag, setTag] = useState("");
  const [node, setNode] = useState("");
  const [delay, setDelay] = useState("");
  const [unique, setUnique] = useState("");
  const [done, setDone] = useState<AppendReply>();
  const action = useAction(FIELDS.map((field) => `records[0].${field}`).concat(FIELDS));
  const about = (field: string) => action.about(field) ?? action.about(`records[0].${field}`);
  const dataFault = fault(data);
  const metaFault = fault(meta);
  const isQueue = topic.type === "queue";
  const delayFault = delay === "" || /^\d+$/.test(delay) ? undefined : "A whole number of ms";
  const submit = () =>
    void action.run(async () => {
      const fields = [`"data":${data}`];
      if (meta.trim() !== "") fields.push(`"meta":${meta}`);
      if (tag !== "") fields.push(`"tag":${JSON.stringify(tag)}`);
      if (node !== "") fields.push(`"node":${JSON.stringify(node)}`);
      if (isQueue && delay !== "") fields.push(`"delay_ms":${delay}`);
      if (isQueue && unique !== "") fields.push(`"unique_key":${JSON.stringify(unique)}`);
      const path = `/v0/topics/${encodeURIComponent(topic.topic)}`;
      setDone(JSON.parse(await client.text("POST", path, `{"records":[{${fields.join(",")}}]}`)) as AppendReply);
      onDone();
    });
  const editor = (label: string, value: string, set: (text: string) => void, rows: number, error: string | undefined, hint?: string) => (
    <Field label={label} error={error} hint={hint} steady>
      {(id, described) => (
        <textarea id={id} rows={rows} spellcheck={false} value={value} aria-invalid={error !== undefined} aria-describedby={described} onInput={(event) => set(event.currentTarget.value)} />
      )}
    </Field>
  );
  return (
    <section class="card">
      <form
        class="body stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (dataFault === undefined && metaFault === undefined && data.trim() !== "") submit();
        }}
      >
        {editor("Data, any JSON", data, setData, 10, about("data") ?? dataFault)}
        <div class="row end">
          <Input label="Tag" value={tag} onInput={setTag} error={about("tag")} />
          <Input label="Node" value={node} onInput={setNode} error={about("node")} />
          {isQueue && <Input label="Delay in ms" value={delay} onInput={setDelay} error={about("delay_ms") ?? delayFault} size={10} />}
          {isQueue && <Input label="Unique key" value={unique} onInput={setUnique} error={about("unique_key")} />}
        </div>
        {editor("Meta, an object", meta, setMeta, 3, about("meta") ?? metaFault)}
        <div class="row">
          <Button kind="primary" type="submit" disabled={action.busy || data.trim() === "" || dataFault !== undefined || metaFault !== undefined || delayFault !== undefined}>Append</Button>
          <span role="status">
            {done !== undefined && (
              <>
                Appended as <a href={to(["topics", topic.topic, "records"], { seq: done.last_seq })}>seq {count(done.last_seq)}</a>
                {done.deduped ? " (a job with this key was pending already)" : ""}
              </>
            )}
          </span>
        </div>
        <Problem error={action.error} />
      </form>
    </section>
  );
}
