/** All topics, or all queues: searched, filtered, sorted, a page at a time. */

import { useEffect, useState } from "preact/hooks";
import type { QueueCounters, Routes, TopicItem } from "topics-client";
import { bytes, count } from "../format.ts";
import { go, place, to } from "../route.ts";
import { can, client, me } from "../session.ts";
import { Badge, Button, Commands, Dialog, Empty, Foreign, HeldNote, Input, Pager, Problem, Relative, Select, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";
import { standingOf } from "./topic/workers.tsx";

const PAGE_SIZE = 50;
const EVERY_MS = 4_000;
const PAUSE_MS = 150;

const TOPIC_COMMANDS = [`topics append orders '{"item": "tea", "amount": 2}'`, "topics tail -f orders"];
const QUEUE_COMMANDS = ["topics topic create mail --type queue --dead-letter mail.dead --max-deliveries 5", `topics append mail '{"to": "ada@example.org"}'`, "topics queue work mail --exec ./your-program"];

type Sort = NonNullable<Routes["GET /v0/topics"]["query"] extends { sort?: infer S } ? S : never>;

export function Topics({ queues }: { queues: boolean }) {
  const query = place.value.query;
  const [text, setText] = useState(query.get("search") ?? "");
  const [search, setSearch] = useState(text);
  const [prefix, setPrefix] = useState(query.get("prefix") ?? "");
  const [type, setType] = useState<"" | "log" | "queue">(queues ? "queue" : ((query.get("type") ?? "") as "" | "log" | "queue"));
  const [sort, setSort] = useState<Sort>((query.get("sort") ?? "name") as Sort);
  // The cursors of the pages before, so that there is a way back.
  const [cursors, setCursors] = useState<string[]>([]);
  const [creating, setCreating] = useState(query.get("create") !== null);
  const cursor = cursors.at(-1);

  useEffect(() => {
    const timer = setTimeout(() => {
      setSearch(text.trim());
      setCursors([]);
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);

  const asked = { contains: search, prefix, type: type === "" ? undefined : type, sort: sort === "name" ? undefined : sort, cursor, page_size: PAGE_SIZE };
  const list = useResource(
    (signal) => client.call("GET /v0/topics", { query: asked as Routes["GET /v0/topics"]["query"], signal }),
    [search, prefix, type, sort, cursor],
    EVERY_MS,
  );
  const held = useHeld(list.data?.topics, JSON.stringify([search, prefix, type, sort, cursor]));
  const topics = held.shown;
  useEffect(() => {
    // So that the way back, a reload and a copied address lead to the same list.
    const asked = { search: search || undefined, prefix: prefix || undefined, type: !queues && type !== "" ? type : undefined, sort: sort === "name" ? undefined : sort };
    go([queues ? "queues" : "topics"], asked, true);
  }, [search, prefix, type, sort]);
  const head = (name: string, by: Sort, down: Sort, right = false) => (
    <th scope="col" class={right ? "right" : ""} aria-sort={sort === by ? "ascending" : sort === down ? "descending" : undefined}>
      <button
        type="button"
        onClick={() => {
          setSort(sort === down ? by : down);
          setCursors([]);
        }}
      >
        {name} {sort === by ? "↑" : sort === down ? "↓" : ""}
      </button>
    </th>
  );
  return (
    <>
      <div class="head">
        <h1 class="grow">{queues ? "Queues" : "Topics"}</h1>
        {can("admin") && <Button kind="primary" onClick={() => setCreating(true)}>Create a {queues ? "queue" : "topic"}</Button>}
      </div>
      <section class="card">
        <div class="toolbar">
          <Input label="Name contains" type="search" value={text} onInput={setText} placeholder="orders" />
          <Input label="Name starts with" value={prefix} onInput={(value) => { setPrefix(value); setCursors([]); }} list={me.value?.prefixes ?? []} />
          {!queues && (
            <Select
              label="Type"
              value={type}
              options={[["", "All"], ["log", "Logs"], ["queue", "Queues"]]}
              onChange={(value) => {
                setType(value);
                setCursors([]);
              }}
            />
          )}
          <HeldNote behind={held.behind} />
        </div>
        <Trouble text={list.error?.message} />
        {topics !== undefined && topics.length === 0 ? (
          <Empty title={search === "" && prefix === "" ? `No ${queues ? "queues" : "topics"} yet` : "Nothing matches"}>
            {search === "" && prefix === "" ? (
              <>
                <p>{queues ? "A queue gives each record to one worker, and to another one if that fails. A job that fails too often is kept aside." : "The first append to a name makes a topic."}</p>
                <Commands lines={queues ? QUEUE_COMMANDS : TOPIC_COMMANDS} />
              </>
            ) : (
              <Button onClick={() => { setText(""); setPrefix(""); }}>Clear the search</Button>
            )}
          </Empty>
        ) : (
          <div class="scroll" {...held.on}>
            <table aria-label={queues ? "Queues" : "Topics"} aria-busy={list.loading}>
              <thead>
                <tr>
                  {head("Name", "name", "name")}
                  {queues ? (
                    <>
                      <th scope="col" class="right">Ready</th>
                      <th scope="col" class="right">In flight</th>
                      <th scope="col" class="right wide-only">Delayed</th>
                      <th scope="col" class="right">Dead</th>
                      <th scope="col" class="wide-only">Workers</th>
                    </>
                  ) : (
                    <>
                      {head("Records", "records", "-records", true)}
                      {head("Size", "bytes", "-bytes", true)}
                    </>
                  )}
                  <th scope="col" class="wide-only">Durability</th>
                  {head("Last write", "written", "-written")}
                </tr>
              </thead>
              <tbody>{topics?.map((topic) => <Row key={topic.topic} topic={topic} queues={queues} />)}</tbody>
            </table>
          </div>
        )}
        <Pager cursors={cursors} next={list.data?.next_cursor} onChange={setCursors} />
      </section>
      {creating && <Create queue={queues} onClose={() => setCreating(false)} />}
    </>
  );
}

function Row({ topic, queues }: { topic: TopicItem; queues: boolean }) {
  const queue = topic.queue;
  return (
    <tr>
      <td>
        <a href={to(["topics", topic.topic])}><Foreign text={topic.topic} /></a>{" "}
        {topic.type === "queue" && !queues && <Badge>queue</Badge>} {queue?.paused === true && <Badge kind="warn">paused</Badge>}
      </td>
      {queues ? (
        <>
          <td class="right number">{count(queue?.ready ?? 0)}</td>
          <td class="right number">{count(queue?.in_flight ?? 0)}</td>
          <td class="right number wide-only">{count(queue?.delayed ?? 0)}</td>
          <td class="right number">{queue !== undefined && queue.dead > 0 ? <a class="bad" href={to(["topics", topic.topic, "dead"])}>{count(queue.dead)}</a> : "0"}</td>
          <td class="wide-only nowrap">{queue !== undefined && <Workers queue={queue} />}</td>
        </>
      ) : (
        <>
          <td class="right number">{count(topic.count)}</td>
          <td class="right number nowrap">{bytes(topic.bytes)}</td>
        </>
      )}
      <td class="muted wide-only">{topic.durability}</td>
      <td class="muted nowrap">{topic.last_write_ts === null ? "never" : <Relative ms={topic.last_write_ts} />}</td>
    </tr>
  );
}

function Workers({ queue }: { queue: QueueCounters }) {
  switch (standingOf(queue)) {
    case "paused":
      return <span class="muted">paused</span>;
    case "connected":
      return <>{count(queue.claimers ?? 0)} connected</>;
    case "busy":
      return <>busy</>;
    default: {
      const asked = queue.last_claim_ts ?? null;
      return <span class={queue.ready > 0 && standingOf(queue) === "none" ? "warn" : "muted"}>{asked === null ? "none yet" : <>asked <Relative ms={asked} /></>}</span>;
    }
  }
}

function Create({ queue, onClose }: { queue: boolean; onClose: () => void }) {
  const [name, setName] = useState(me.value?.prefixes[0] ?? "");
  const [type, setType] = useState<"log" | "queue">(queue ? "queue" : "log");
  const [durability, setDurability] = useState<"disk" | "fsync" | "replicated" | "memory" | "ephemeral">("disk");
  const [letters, setLetters] = useState("");
  const action = useAction(["topic", "name", "dead_letter"]);
  const submit = () =>
    void action
      .run(async () => {
        const body = { type, durability, ...(type === "queue" && letters !== "" ? { dead_letter: letters, max_deliveries: 5 } : {}) };
        await client.call("PUT /v0/topics/{topic}", { path: { topic: name.trim() }, query: { replace: false }, body });
        say(`Created ${name.trim()}`);
        go(["topics", name.trim()]);
      })
      .then((done) => done && onClose());
  return (
    <Dialog title={`Create a ${type === "queue" ? "queue" : "topic"}`} onClose={onClose} onSubmit={submit} actions={<Button kind="primary" type="submit" disabled={action.busy || name.trim() === ""}>Create</Button>}>
      <Input label="Name" value={name} onInput={setName} error={action.about("topic") ?? action.about("name")} hint="Letters, digits and . _ : - ; the first is a letter or digit." autoFocus required />
      <Select label="Type" value={type} options={[["log", "Log: every reader gets every record"], ["queue", "Queue: each job goes to one worker"]]} onChange={setType} />
      <Select
        label="Durability"
        value={durability}
        options={[["disk", "disk: written before the answer, synced soon"], ["fsync", "fsync: synced before the answer"], ["replicated", "replicated: in the bucket before the answer"], ["memory", "memory: written in the background"], ["ephemeral", "ephemeral: gone after a restart"]]}
        onChange={setDurability}
      />
      {type === "queue" && (
        <Input label="Dead-letter topic" value={letters} onInput={setLetters} error={action.about("dead_letter")} hint="Where jobs go after 5 failed deliveries. Empty: they are tried for ever." placeholder={`${name}.dead`} />
      )}
      <Problem error={action.error} />
    </Dialog>
  );
}
