/** Records as they come. What cannot be drawn in time is counted, not queued: the page stays fluid at any rate. */

import { useEffect, useRef, useState } from "preact/hooks";
import { follow, parseKeeping, type Record as TopicRecord, type StateReply, type StreamEvent, type StreamState } from "topics-client";
import { count, plural, rate } from "../../format.ts";
import { client } from "../../session.ts";
import { Badge, Button, Empty, Input, Preview, Time } from "../../ui/parts.tsx";
import { usePointer } from "../../ui/held.ts";
import { Detail } from "./records.tsx";

const ROWS = 100;
const DRAW_MS = 150;
const PAYLOADS: ReadonlySet<string> = new Set(["data", "meta"]);

interface Row {
  name: string;
  record: TopicRecord | undefined;
  text: string;
}

/** What comes in between two drawings: only the last events are kept. */
class Inbox {
  events: StreamEvent[] = [];
  received = 0;
  drawn = 0;
  private marks: [number, number][] = [];

  take(events: StreamEvent[], wanted: string): void {
    this.received += events.length;
    const kept = wanted === "" ? events : events.filter((event) => event.data.toLowerCase().includes(wanted));
    this.events = kept.length >= ROWS ? kept.slice(-ROWS) : [...this.events, ...kept].slice(-ROWS);
  }

  /** Records a second over the last three seconds. */
  rate(now: number): number {
    this.marks.push([now, this.received]);
    while (this.marks.length > 1 && now - this.marks[0]![0] > 3_000) this.marks.shift();
    const [since, before] = this.marks[0]!;
    return now > since ? (1_000 * (this.received - before)) / (now - since) : 0;
  }
}

export function LiveRecords({ topic }: { topic: StateReply }) {
  const [tag, setTag] = useState("");
  const [asked, setAsked] = useState("");
  const [text, setText] = useState("");
  const [paused, setPaused] = useState(false);
  const { over: held, on } = usePointer();
  const [state, setState] = useState<StreamState>("connecting");
  const [reason, setReason] = useState<string>();
  const [rows, setRows] = useState<Row[]>([]);
  const [numbers, setNumbers] = useState({ received: 0, rate: 0, skipped: 0, waiting: 0 });
  const [picked, setPicked] = useState<TopicRecord>();
  const inbox = useRef(new Inbox());
  const wanted = useRef("");
  wanted.current = text.trim().toLowerCase();
  const still = useRef(false);
  still.current = paused || held;

  useEffect(() => {
    const stop = new AbortController();
    inbox.current = new Inbox();
    setRows([]);
    void follow(client, {
      topic: topic.topic,
      tail: true,
      ...(asked === "" ? {} : { tag: asked }),
      signal: stop.signal,
      onEvents: (events) => inbox.current.take(events, wanted.current),
      onState: (next, why) => {
        setState(next);
        setReason(why);
      },
    });
    const timer = setInterval(() => {
      const box = inbox.current;
      const perSecond = box.rate(Date.now());
      if (!still.current && box.events.length > 0) {
        const fresh = box.events.map((event): Row => ({ name: event.name, ...parsed(event) }));
        box.events = [];
        box.drawn += fresh.length;
        setRows((old) => [...fresh.reverse(), ...old].slice(0, ROWS));
      }
      setNumbers({ received: box.received, rate: perSecond, skipped: box.received - box.drawn - box.events.length, waiting: box.events.length });
    }, DRAW_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [topic.topic, topic.epoch, asked]);

  const kinds = { connecting: "", live: "ok", waiting: "warn", ended: "bad" } as const;
  const names = { connecting: "Connecting", live: "Live", waiting: "Lost, connecting again", ended: "Ended" };
  const counted = [`${plural(numbers.received, "record")} received`, ...(numbers.skipped > 0 ? [`${count(numbers.skipped)} not drawn`] : [])];
  const stopped = (paused || held) && numbers.waiting > 0 ? (paused ? "Paused" : "Held while the pointer is on the list") : "";
  return (
    <>
      <section class="card" aria-label="Follow">
        <form
          class="toolbar"
          onSubmit={(event) => {
            event.preventDefault();
            setAsked(tag.trim());
          }}
        >
          <Button kind={paused ? "primary" : "plain"} pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "Go on" : "Pause"}</Button>
          <span class="tools">
            <Input label="Tag" value={tag} onInput={setTag} size={9} />
            <Button type="submit" disabled={tag.trim() === asked}>Follow</Button>
          </span>
          <Input label="Contains" type="search" value={text} onInput={setText} size={14} />
        </form>
        <div class="following small muted number">
          <span role="status"><Badge kind={kinds[state]}>{names[state]}{reason === undefined ? "" : `: ${reason}`}</Badge></span>
          <span>{rate(numbers.rate)}/s</span>
          <span class="cut" data-testid="live-numbers">{counted.join(" · ")}</span>
          <span class="cut" role="status">{stopped}</span>
        </div>
      </section>
      <div class={`split ${picked === undefined ? "" : "open"}`}>
      <section class="card">
        {rows.length === 0 ? (
          <Empty title="Waiting for the next record"><p>Records that are appended from now on appear here, the newest on top.</p></Empty>
        ) : (
          <div class="scroll" {...on}>
            <table class="live" aria-label="Live records">
              <thead>
                <tr><th scope="col" class="right">Seq</th><th scope="col">Time</th><th scope="col">Data</th></tr>
              </thead>
              <tbody>
                {/* Without keys: rows stay and get other texts, which is far cheaper than other rows. */}
                {rows.map((row) =>
                  row.record === undefined ? (
                    <tr class="gap"><td colSpan={3}>{row.name}: {row.text}</td></tr>
                  ) : (
                    <tr class={`pick ${picked?.$seq === row.record.$seq ? "on" : ""}`} onClick={() => setPicked(row.record)}>
                      <td class="right number">
                        <Button kind="link" label={`Open record ${row.record.$seq}`} onClick={() => setPicked(row.record)}>{count(row.record.$seq)}</Button>
                      </td>
                      <td><Time ms={row.record.$ts} /></td>
                      <td class="payload"><Preview source={row.record.data.source} /></td>
                    </tr>
                  ),
                )}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {picked !== undefined && <Detail topic={topic.topic} record={picked} onClose={() => setPicked(undefined)} />}
      </div>
    </>
  );
}

function parsed(event: StreamEvent): { record: TopicRecord | undefined; text: string } {
  if (event.name === "record") return { record: parseKeeping(event.data, PAYLOADS) as TopicRecord, text: "" };
  const said = JSON.parse(event.data) as { [key: string]: unknown };
  const gap = said["gap_from"] === undefined ? "" : `seqs ${String(said["gap_from"])} – ${String(said["gap_to"])} are gone, ${String(said["reason"])}`;
  return { record: undefined, text: gap === "" ? String(said["error"] ?? "") : gap };
}
