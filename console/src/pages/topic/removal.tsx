/** Deleting records by seq and tag, or the whole topic: always counted first, always asked. */

import { useRef, useState } from "preact/hooks";
import type { DroppedReply, StateReply } from "topics-client";
import { bytes, count, plural } from "../../format.ts";
import { go } from "../../route.ts";
import { client } from "../../session.ts";
import { Button, Confirm, Input, Problem, say } from "../../ui/parts.tsx";
import { useAction } from "../../ui/resource.ts";

const PIECE = 50_000;

export function Removal({ topic, onDone }: { topic: StateReply; onDone: () => void }) {
  return (
    <>
      <SomeRecords topic={topic} onDone={onDone} />
      <WholeTopic topic={topic} />
    </>
  );
}

function SomeRecords({ topic, onDone }: { topic: StateReply; onDone: () => void }) {
  const [before, setBefore] = useState("");
  const [tag, setTag] = useState("");
  const [hits, setHits] = useState<number>();
  const [done, setDone] = useState<{ deleted: number; share: number }>();
  const stopped = useRef(false);
  const action = useAction(["before_seq", "match"]);
  const body = () => ({
    ...(before === "" ? {} : { before_seq: Number(before) }),
    ...(tag === "" ? {} : { match: tag.endsWith("*") ? ["tag", "Glob", tag] : ["tag", "Eq", tag] }),
  });
  // From the oldest on, a piece at a time: how far it is can be told, and it can be stopped between two of them.
  const work = async () => {
    const end = before === "" ? topic.head_seq + 1 : Math.min(Number(before), topic.head_seq + 1);
    const piece = Math.max(PIECE, Math.ceil((end - topic.earliest_seq) / 20));
    let deleted = 0;
    stopped.current = false;
    setDone({ deleted, share: 0 });
    for (let at = topic.earliest_seq; at < end && !stopped.current; at += piece) {
      deleted += (await client.call("POST /v0/topics/{topic}/delete", { path, body: { ...body(), before_seq: Math.min(end, at + piece) } })).deleted;
      setDone({ deleted, share: Math.min(1, (at + piece - topic.earliest_seq) / Math.max(1, end - topic.earliest_seq)) });
    }
    say(`Deleted ${plural(deleted, "record")} of ${topic.topic}${stopped.current ? ", then stopped" : ""}`);
  };
  const close = () => {
    stopped.current = true;
    setHits(undefined);
    setDone(undefined);
    onDone();
  };
  const path = { topic: topic.topic };
  const wrong = before === "" || /^\d+$/.test(before) ? undefined : "A whole number";
  return (
    <section class="card" aria-label="Delete records">
      <header><h2>Delete records</h2></header>
      <form
        class="body stack"
        onSubmit={(event) => {
          event.preventDefault();
          void action.run(async () => setHits((await client.call("POST /v0/topics/{topic}/delete", { path, body: { ...body(), dry_run: true } })).deleted));
        }}
      >
        <p class="muted">Records below a seq, records with a tag, or both. Deleting is immediate and for good.</p>
        <div class="row end">
          <Input label="Before seq" value={before} onInput={setBefore} error={action.about("before_seq") ?? wrong} size={12} />
          <Input label="Tag" value={tag} onInput={setTag} error={action.about("match")} placeholder="user-*" />
          <Button type="submit" disabled={(before === "" && tag === "") || wrong !== undefined || action.busy}>Count them</Button>
        </div>
        <Problem error={hits === undefined ? action.error : undefined} />
      </form>
      {hits !== undefined && (
        <Confirm
          title={`Delete ${plural(hits, "record")}?`}
          verb={`Delete ${plural(hits, "record")}`}
          nothing={hits === 0}
          busy={action.busy}
          error={action.error}
          onClose={close}
          onConfirm={() => void action.run(work).then((went) => went && close())}
        >
          <p>
            This would delete <strong>{count(hits)}</strong> of {plural(topic.count, "record")} of <strong class="foreign">{topic.topic}</strong>.
          </p>
          {done !== undefined && (
            <p role="status">
              Deleted {count(done.deleted)} of {count(hits)}
              <span class="meter"><i style={{ width: `${100 * done.share}%` }} /></span>
            </p>
          )}
        </Confirm>
      )}
    </section>
  );
}

function WholeTopic({ topic }: { topic: StateReply }) {
  const [found, setFound] = useState<DroppedReply>();
  const action = useAction();
  const path = { topic: topic.topic };
  return (
    <section class="card" aria-label="Delete the topic">
      <header><h2>Delete the topic</h2></header>
      <div class="body stack">
        <p class="muted">The topic, all its records and every router that names it.</p>
        <div><Button kind="danger" disabled={action.busy} onClick={() => void action.run(async () => setFound(await client.call("DELETE /v0/topics/{topic}", { path, query: { dry_run: true } })))}>Delete {topic.topic}…</Button></div>
        <Problem error={found === undefined ? action.error : undefined} />
      </div>
      {found !== undefined && (
        <Confirm
          title="Delete the topic?"
          name={topic.topic}
          verb="Delete the topic"
          busy={action.busy}
          error={action.error}
          onClose={() => setFound(undefined)}
          onConfirm={() =>
            void action.run(async () => {
              await client.call("DELETE /v0/topics/{topic}", { path });
              say(`Deleted ${topic.topic}`);
              go(["topics"]);
            })
          }
        >
          <p>
            This deletes <strong class="foreign">{topic.topic}</strong> with <strong>{plural(found.records ?? 0, "record")}</strong> ({bytes(found.bytes ?? 0)}).
          </p>
          {found.routers_removed.length > 0 && <p>These routers go with it: {found.routers_removed.join(", ")}.</p>}
        </Confirm>
      )}
    </section>
  );
}
