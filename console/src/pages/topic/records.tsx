/** Records of a topic: at a seq, at a time, the newest or the oldest; filtered by tag, node and text. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { DiffReply, Record as TopicRecord, StateReply } from "topics-client";
import { count, plural } from "../../format.ts";
import { go, place, to } from "../../route.ts";
import { can, client } from "../../session.ts";
import { Button, Commands, Copy, Empty, Foreign, HeldNote, Input, Json, Preview, Time, Trouble } from "../../ui/parts.tsx";
import { type Held, useHeld } from "../../ui/held.ts";
import { useResource } from "../../ui/resource.ts";
import { Letters } from "./letters.tsx";

const PAGE = 100;
const SCAN_PAGE = 1_000;
const SCAN_MAX = 200_000;

interface Filter {
  tag: string;
  node: string;
  text: string;
}

const ANY: Filter = { tag: "", node: "", text: "" };

export function Records({ topic }: { topic: StateReply }) {
  const query = place.value.query;
  const linked = query.get("seq");
  const first = linked === null ? undefined : Number(linked);
  // The seq after which the page begins; undefined: the newest ones, and what comes.
  const [from, setFrom] = useState<number | undefined>(first === undefined ? undefined : Math.max(0, first - 1 - PAGE / 4));
  const [picked, setPicked] = useState<number | undefined>(first);
  const [filter, setFilter] = useState<Filter>({ tag: query.get("tag") ?? "", node: query.get("node") ?? "", text: query.get("text") ?? "" });
  // The newest stand on top; from a seq, a time or the oldest on, records stand as they came.
  const [newestFirst, setNewestFirst] = useState(first === undefined);
  const shownSeq = useRef(first);
  const newest = from === undefined;
  const after = from ?? Math.max(0, topic.head_seq - PAGE);
  const filtering = filter.tag !== "" || filter.node !== "" || filter.text !== "";

  useEffect(() => {
    // A link to another record of this topic; one that was picked here is shown already.
    if (first !== undefined && first !== shownSeq.current) {
      shownSeq.current = first;
      setPicked(first);
      setFrom(Math.max(0, first - 1 - PAGE / 4));
    }
  }, [first]);

  const page = useResource(
    async (signal) => {
      const body = { from_seq: after, limit: PAGE, include_tags: true, max_batch_bytes: 4_000_000 };
      const reply = await client.call("POST /v0/topics/{topic}/diff", { path: { topic: topic.topic }, body, signal });
      return { ...reply, after };
    },
    [topic.topic, topic.epoch, newest ? topic.head_seq : after, newest],
  );
  // While the next page is on its way, the last one stays.
  const last = useRef<(DiffReply & { after: number }) | undefined>(undefined);
  if (page.data !== undefined) last.current = page.data;
  const held = useHeld(page.data ?? last.current, JSON.stringify([newest, newest ? 0 : after]));
  const shown = held.shown;
  const visit = (seq: number | undefined, wanted: Filter) => {
    const asked = { tag: wanted.tag || undefined, node: wanted.node || undefined, text: wanted.text || undefined };
    go(["topics", topic.topic, "records"], { seq, ...asked }, true);
  };
  const pick = (seq: number | undefined) => {
    shownSeq.current = seq;
    setPicked(seq);
    visit(seq, filter);
  };

  if (topic.head_seq === 0) {
    return (
      <section class="card">
        <Empty title="No records yet">
          <p>Append one here, or from a shell:</p>
          <Commands lines={[`topics append ${topic.topic} '{"hello": "world"}'`]} />
          {can("write") && <a class="button" href={to(["topics", topic.topic, "append"])}>Append a record</a>}
        </Empty>
      </section>
    );
  }
  return (
    <>
      <Letters topic={topic} records={shown?.records ?? []} />
      <Jump
        topic={topic}
        filter={filter}
        onFilter={(wanted) => {
          setFilter(wanted);
          visit(picked, wanted);
        }}
        onJump={(start, seq) => {
          pick(seq);
          setFrom(start);
          setNewestFirst(start === undefined);
        }}
      />
      {filtering ? (
        <Filtered key={JSON.stringify([filter, from])} topic={topic} filter={filter} from={from} picked={picked} onPick={pick} />
      ) : (
        <Page
          topic={topic.topic}
          records={shown?.records ?? []}
          newestFirst={newestFirst}
          held={held.on}
          gap={shown?.tombstone ?? null}
          {...(shown === undefined ? {} : { after: shown.after })}
          error={page.error}
          picked={picked}
          onPick={pick}
          footer={
            <div class="pager">
              <Button disabled={(shown?.records[0]?.$seq ?? after + 1) <= topic.earliest_seq} onClick={() => setFrom(Math.max(0, (shown?.records[0]?.$seq ?? after) - 1 - PAGE))}>Older</Button>
              <Button disabled={newest} onClick={() => setFrom(shown !== undefined && !shown.caught_up ? shown.next_from_seq : undefined)}>Newer</Button>
              <Button kind="quiet" pressed={newestFirst} onClick={() => setNewestFirst(!newestFirst)}>Newest first</Button>
              <span class="muted small">{newest ? "The newest records; new ones appear by themselves" : `After seq ${count(after)}`}</span>
              <HeldNote behind={held.behind} />
            </div>
          }
        />
      )}
    </>
  );
}

type JumpProps = { topic: StateReply; filter: Filter; onFilter: (filter: Filter) => void; onJump: (from: number | undefined, seq?: number) => void };

function Jump({ topic, filter, onFilter, onJump }: JumpProps) {
  const [seq, setSeq] = useState("");
  const [when, setWhen] = useState("");
  const [typed, setTyped] = useState<Filter>(filter);
  const [wrong, setWrong] = useState<string>();
  // On a small screen the records come first.
  const [wide] = useState(() => matchMedia("(min-width: 761px)").matches || JSON.stringify(filter) !== JSON.stringify(ANY));
  const jump = async () => {
    setWrong(undefined);
    if (seq !== "") {
      if (!/^\d+$/.test(seq)) return setWrong("A seq is a whole number");
      return onJump(Math.max(0, Number(seq) - 1), Number(seq));
    }
    const ms = new Date(when).getTime();
    if (Number.isNaN(ms)) return setWrong("Enter a seq or a time");
    const found = await client.call("POST /v0/topics/{topic}/diff", { path: { topic: topic.topic }, body: { from_ts: ms, limit: 1 } });
    onJump(found.records[0] === undefined ? undefined : found.records[0].$seq - 1);
  };
  return (
    <section class="card" aria-label="Find records">
      <details class="find-records" open={wide}>
      <summary>Go to a seq or a time, or filter</summary>
      <form
        class="toolbar"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          if (seq !== "" || when !== "") void jump();
          else onFilter(typed);
        }}
      >
        <div class="tools">
        <Input label="Go to seq" value={seq} size={9} onInput={(value) => { setSeq(value); setWhen(""); }} placeholder={String(topic.head_seq)} error={wrong} />
        <Input label="or time" type="datetime-local" step={1} value={when} onInput={(value) => { setWhen(value); setSeq(""); }} />
        <Button type="submit" disabled={seq === "" && when === ""}>Go</Button>
        <span class="row"><Button kind="quiet" onClick={() => onJump(0)}>Oldest</Button><Button kind="quiet" onClick={() => onJump(undefined)}>Newest</Button></span>
        </div>
        <div class="tools">
        <Input label="Tag" value={typed.tag} size={12} onInput={(tag) => setTyped({ ...typed, tag })} placeholder="user-*" />
        <Input label="Node" value={typed.node} size={10} onInput={(node) => setTyped({ ...typed, node })} />
        <Input label="Text" type="search" value={typed.text} size={14} onInput={(text) => setTyped({ ...typed, text })} />
        <Button onClick={() => onFilter(typed)} disabled={JSON.stringify(typed) === JSON.stringify(filter)}>Filter</Button>
        {JSON.stringify(filter) !== JSON.stringify(ANY) && <Button kind="quiet" onClick={() => { setTyped(ANY); onFilter(ANY); }}>Clear</Button>}
        </div>
      </form>
      </details>
    </section>
  );
}

function matches(record: TopicRecord, filter: Filter): boolean {
  const { tag, node, text } = filter;
  if (tag !== "") {
    const own = record.$tag;
    if (own === undefined || (tag.endsWith("*") ? !own.startsWith(tag.slice(0, -1)) : own !== tag)) return false;
  }
  if (node !== "" && record.$node !== node) return false;
  if (text === "") return true;
  const wanted = text.toLowerCase();
  return record.data.source.toLowerCase().includes(wanted) || (record.meta?.source.toLowerCase().includes(wanted) ?? false);
}

type FilteredProps = { topic: StateReply; filter: Filter; from: number | undefined; picked: number | undefined; onPick: (seq: number | undefined) => void };

/** The records after one seq and up to another, in pieces that the server likes to send. */
async function* stretch(topic: string, after: number, upTo: number, signal: AbortSignal): AsyncGenerator<TopicRecord[]> {
  for (let at = after; at < upTo; ) {
    const page = await client.call("POST /v0/topics/{topic}/diff", {
      path: { topic },
      body: { from_seq: at, limit: Math.min(SCAN_PAGE, upTo - at), include_tags: true, max_batch_bytes: 4_000_000 },
      signal,
    });
    yield page.records.filter((record) => record.$seq <= upTo);
    if (page.caught_up) return;
    at = page.next_from_seq;
  }
}

/** Reads until a page is full, the newest first or from a seq on; says how far it is, and can be stopped. */
function Filtered({ topic, filter, from, picked, onPick }: FilteredProps) {
  const backwards = from === undefined;
  const [found, setFound] = useState<TopicRecord[]>([]);
  const [start, setStart] = useState(from ?? topic.head_seq);
  const [progress, setProgress] = useState({ scanned: 0, at: start, done: false });
  const [error, setError] = useState<Error>();
  const stop = useRef<AbortController | undefined>(undefined);
  const end = backwards ? topic.earliest_seq - 1 : topic.head_seq;

  useEffect(() => {
    const control = (stop.current = new AbortController());
    setFound([]);
    setError(undefined);
    const run = async () => {
      let at = start;
      let scanned = 0;
      const hits: TopicRecord[] = [];
      while (backwards ? at > end : at < end) {
        const next = backwards ? Math.max(end, at - SCAN_PAGE) : Math.min(end, at + SCAN_PAGE);
        const fresh: TopicRecord[] = [];
        for await (const records of stretch(topic.topic, Math.min(at, next), Math.max(at, next), control.signal)) {
          scanned += records.length;
          fresh.push(...records.filter((record) => matches(record, filter)));
        }
        hits.push(...(backwards ? fresh.reverse() : fresh));
        at = hits.length > PAGE ? hits[PAGE - 1]!.$seq - (backwards ? 1 : 0) : next;
        setFound(hits.slice(0, PAGE));
        if (hits.length >= PAGE || scanned >= SCAN_MAX) break;
        setProgress({ scanned, at, done: false });
      }
      setProgress({ scanned, at, done: true });
    };
    run().catch((problem: unknown) => {
      if (control.signal.aborted) setProgress((old) => ({ ...old, done: true }));
      else setError(problem as Error);
    });
    return () => control.abort();
  }, [start]);

  return (
    <Page
      topic={topic.topic}
      records={found}
      gap={null}
      error={error}
      picked={picked}
      onPick={onPick}
      empty={progress.done ? "Nothing matches so far" : "Searching…"}
      footer={
        <div class="pager" role="status">
          <span class="muted small">
            {plural(found.length, "match", "matches")} in {plural(progress.scanned, "record")}, {backwards ? "back" : "up"} to seq {count(backwards ? progress.at + 1 : progress.at)}
          </span>
          {progress.done ? (
            <Button disabled={backwards ? progress.at <= end : progress.at >= end} onClick={() => setStart(progress.at)}>Search on</Button>
          ) : (
            <Button onClick={() => stop.current?.abort()}>Stop</Button>
          )}
        </div>
      }
    />
  );
}

type PageProps = {
  topic: string;
  records: TopicRecord[];
  gap: DiffReply["tombstone"];
  error: Error | undefined;
  picked: number | undefined;
  onPick: (seq: number | undefined) => void;
  footer: preact.ComponentChildren;
  empty?: string;
  /** The seq after which the page begins, if every record after it is shown: what is missing is gone then. */
  after?: number;
  newestFirst?: boolean;
  held?: Held<unknown>["on"];
};

/** Seqs between two records that nobody can read any more, and why, as far as the server says. */
function Gap({ after, before, gap }: { after: number; before: number; gap: DiffReply["tombstone"] }) {
  if (before <= after + 1) return null;
  const reported = gap !== null && gap.gap_from <= after + 1 && gap.gap_to >= before - 1;
  const reason = reported ? gap.reason.replaceAll("_", " ") : "deleted or expired";
  return (
    <tr class="gap">
      <td colSpan={5}>{before === after + 2 ? `Seq ${count(after + 1)} is gone` : `Seqs ${count(after + 1)} – ${count(before - 1)} are gone`} ({reason})</td>
    </tr>
  );
}

function Page({ topic, records: ascending, gap, error, picked, onPick, footer, empty, after, newestFirst, held }: PageProps) {
  const records = newestFirst === true ? [...ascending].reverse() : ascending;
  // What is missing just before each record, by its seq.
  const before = new Map(ascending.map((record, index) => [record.$seq, ascending[index - 1]?.$seq ?? after]));
  const at = records.findIndex((record) => record.$seq === picked);
  // One that has left the list, because others came, stays open.
  const last = useRef<TopicRecord | undefined>(undefined);
  if (at >= 0) last.current = records[at];
  const chosen = last.current?.$seq === picked ? last.current : undefined;
  const missing = picked !== undefined && chosen === undefined && records.length > 0;
  const table = useRef<HTMLTableElement>(null);

  // A record that a link led to is shown with its neighbours; nothing moves for one that was clicked.
  const linked = useRef(picked);
  const walked = useRef(false);
  useEffect(() => {
    const row = table.current?.querySelector('[aria-selected="true"]');
    if (picked === linked.current) row?.scrollIntoView({ block: "center" });
    else if (walked.current) row?.scrollIntoView({ block: "nearest" });
    walked.current = false;
    if (row !== null && row !== undefined) linked.current = undefined;
  }, [picked, records.length > 0]);

  useEffect(() => {
    const walk = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target.matches("input, textarea, select, dialog *, .json") || records.length === 0) return;
      if (event.key === "Escape" && picked !== undefined) return onPick(undefined);
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (step === 0) return;
      event.preventDefault();
      const next = records[Math.max(0, Math.min(records.length - 1, at < 0 ? (step > 0 ? 0 : records.length - 1) : at + step))];
      walked.current = true;
      if (next !== undefined) onPick(next.$seq);
    };
    document.addEventListener("keydown", walk);
    return () => document.removeEventListener("keydown", walk);
  });

  return (
    <div class={`split ${chosen === undefined && !missing ? "" : "open"}`}>
      <section class="card">
        <Trouble text={error?.message} />
        {records.length === 0 && gap === null ? (
          <Empty title={empty ?? "No records here"} />
        ) : (
          <div class="scroll" {...held}>
            <table ref={table} aria-label="Records" role="grid">
              <thead>
                <tr>
                  <th scope="col" class="right">Seq</th>
                  <th scope="col">Time</th>
                  <th scope="col" class="wide-only">Tag</th>
                  <th scope="col" class="wide-only spare">Node</th>
                  <th scope="col">Data</th>
                </tr>
              </thead>
              <tbody>
                {records.map((record) => {
                  const missing = after !== undefined && <Gap after={before.get(record.$seq)!} before={record.$seq} gap={gap} />;
                  return (
                  <>
                  {newestFirst !== true && missing}
                  <tr key={record.$seq} class="pick" aria-selected={record.$seq === picked} onClick={() => onPick(record.$seq === picked ? undefined : record.$seq)}>
                    <td class="right number">
                      <a href={to(["topics", topic, "records"], { seq: record.$seq })} onClick={(event) => event.preventDefault()}>{count(record.$seq)}</a>
                    </td>
                    <td><Time ms={record.$ts} /></td>
                    <td class="wide-only clip">{record.$tag !== undefined && <Foreign text={record.$tag} max={60} />}</td>
                    <td class="wide-only muted clip spare">{record.$node !== undefined && <Foreign text={record.$node} max={40} />}</td>
                    <td class="payload"><Preview source={record.data.source} /></td>
                  </tr>
                  {newestFirst === true && missing}
                  </>
                  );
                })}
                {records.length === 0 && gap !== null && <Gap after={gap.gap_from - 1} before={gap.gap_to + 1} gap={gap} />}
              </tbody>
            </table>
          </div>
        )}
        {footer}
      </section>
      {chosen !== undefined && <Detail topic={topic} record={chosen} onClose={() => onPick(undefined)} />}
      {missing && (
        <section class="card detail" aria-label={`Record ${picked}`}>
          <header>
            <h2 class="grow">Record {count(picked!)}</h2>
            <Button kind="quiet" label="Close the record" onClick={() => onPick(undefined)}>✕</Button>
          </header>
          <p class="body">There is no record with seq {count(picked!)}: it was deleted, expired, or is still to come.</p>
        </section>
      )}
    </div>
  );
}

export function Detail({ topic, record, onClose }: { topic: string; record: TopicRecord; onClose: () => void }) {
  const address = `${location.origin}${location.pathname}${to(["topics", topic, "records"], { seq: record.$seq })}`;
  return (
    <section class="card detail" aria-label={`Record ${record.$seq}`}>
      <header>
        <h2 class="grow">Record {count(record.$seq)}</h2>
        <Button kind="quiet" label="Close the record" onClick={onClose}>✕</Button>
      </header>
      <div class="body stack">
        <dl class="facts">
          <dt>Time</dt><dd><Time ms={record.$ts} /></dd>
          {record.$tag !== undefined && <><dt>Tag</dt><dd><Foreign text={record.$tag} /></dd></>}
          {record.$node !== undefined && <><dt>Node</dt><dd><Foreign text={record.$node} /></dd></>}
          <dt>Link</dt><dd class="row"><a href={address}>#{record.$seq}</a> <Copy kind="link" text={() => address}>Copy</Copy></dd>
        </dl>
        <h3>Data</h3>
        <Json source={record.data.source} label="Data" />
        {record.meta !== undefined && <><h3>Meta</h3><Json source={record.meta.source} label="Meta" /></>}
        <div class="row">
          <span class="muted small">Copy as</span>
          <span class="segments">
            <Copy text={() => asCurl(topic, record)}>curl</Copy>
            <Copy text={() => asPython(topic, record)}>Python</Copy>
            <Copy text={() => asLine(record)}>NDJSON</Copy>
            <Copy text={() => record.data.source}>Data</Copy>
          </span>
        </div>
      </div>
    </section>
  );
}

function asRecord(record: TopicRecord): string {
  const fields = [`"data":${record.data.source}`];
  if (record.$tag !== undefined) fields.push(`"tag":${JSON.stringify(record.$tag)}`);
  if (record.$node !== undefined) fields.push(`"node":${JSON.stringify(record.$node)}`);
  if (record.meta !== undefined) fields.push(`"meta":${record.meta.source}`);
  return `{${fields.join(",")}}`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** The key is the reader's to add: it is never part of what is copied. */
function asCurl(topic: string, record: TopicRecord): string {
  const key = client.key === undefined ? "" : ' -H "Authorization: Bearer $TOPICS_API_KEY"';
  const body = quoted(`{"records":[${asRecord(record)}]}`);
  return `curl -sS${key} -H 'Content-Type: application/json' ${quoted(`${client.url}/v0/topics/${encodeURIComponent(topic)}`)} -d ${body}`;
}

function asPython(topic: string, record: TopicRecord): string {
  const text = JSON.stringify;
  const fields = [text(topic), `Json(${text(record.data.source)})`];
  if (record.$tag !== undefined) fields.push(`tag=${text(record.$tag)}`);
  if (record.$node !== undefined) fields.push(`node=${text(record.$node)}`);
  if (record.meta !== undefined) fields.push(`meta=json.loads(${text(record.meta.source)})`);
  const key = client.key === undefined ? "" : ', key=os.environ["TOPICS_API_KEY"]';
  return [
    ...(record.meta === undefined ? [] : ["import json"]),
    ...(key === "" ? [] : ["import os"]),
    "from topics.client import Client, Json",
    "",
    `with Client(${text(client.url)}${key}) as client:`,
    `    client.append(${fields.join(", ")})`,
    "",
  ].join("\n");
}

function asLine(record: TopicRecord): string {
  const fields = [`"$seq":${record.$seq}`, `"$ts":${record.$ts}`];
  if (record.$node !== undefined) fields.push(`"$node":${JSON.stringify(record.$node)}`);
  if (record.$tag !== undefined) fields.push(`"$tag":${JSON.stringify(record.$tag)}`);
  fields.push(`"data":${record.data.source}`);
  if (record.meta !== undefined) fields.push(`"meta":${record.meta.source}`);
  return `{${fields.join(",")}}`;
}
