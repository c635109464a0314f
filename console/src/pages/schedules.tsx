/** Schedules: what they append and when; run now, pause, resume, create and remove. */

import { useState } from "preact/hooks";
import { type RawJson, type ScheduleItem, type ScheduleRequest, parseKeeping } from "topics-client";
import { count, span } from "../format.ts";
import { go, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Button, Commands, Confirm, Dialog, Empty, Field, Foreign, HeldNote, Input, Json, Pager, Problem, Relative, Select, Steady, Time, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const PAGE = 100;
const PAYLOAD: ReadonlySet<string> = new Set(["data"]);

export function Schedules({ name }: { name: string | undefined }) {
  return name === undefined ? <List /> : <One key={name} name={name} />;
}

function State({ item }: { item: Pick<ScheduleItem, "paused" | "last_error" | "next_ts"> }) {
  if (item.paused) return <Badge kind="warn">paused</Badge>;
  if (item.last_error !== null) return <Badge kind="bad">cannot run</Badge>;
  return item.next_ts === null ? <Badge>has run</Badge> : <Badge kind="ok">waits</Badge>;
}

function When({ item }: { item: Pick<ScheduleItem, "cron" | "every_ms" | "at" | "timezone"> }) {
  if (item.cron !== null) return <><span class="mono nowrap">{item.cron}</span> <span class="muted">{item.timezone}</span></>;
  if (item.every_ms !== null) return <>every {span(item.every_ms)}</>;
  return <>once, at <Time ms={item.at ?? 0} /></>;
}

function List() {
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState<string[]>([]);
  const [creating, setCreating] = useState(false);
  const cursor = cursors.at(-1);
  const list = useResource((signal) => client.call("GET /v0/schedules", { query: { prefix, page_size: PAGE, ...(cursor === undefined ? {} : { cursor }) }, signal }), [prefix, cursor], EVERY_MS);
  const held = useHeld(list.data?.schedules, JSON.stringify([prefix, cursor]));
  const schedules = held.shown;
  return (
    <>
      <div class="head">
        <h1 class="grow">Schedules</h1>
        {can("write") && <Button kind="primary" onClick={() => setCreating(true)}>Create a schedule</Button>}
      </div>
      <section class="card">
        <div class="toolbar"><Input label="Name starts with" type="search" value={prefix} onInput={(value) => { setPrefix(value); setCursors([]); }} /><HeldNote behind={held.behind} /></div>
        <Trouble text={list.error?.message} />
        {schedules !== undefined && schedules.length === 0 ? (
          <Empty title={prefix === "" ? "No schedules" : "Nothing matches"}><p>A schedule appends a record at certain times: by a cron expression, at an interval, or once. In a queue that is a job for the next free worker.</p><Commands lines={[`topics schedule create nightly reports '{"report": "sales"}' --cron "0 3 * * *"`]} /></Empty>
        ) : (
          <div class="scroll" {...held.on}>
            <table aria-label="Schedules">
              <thead><tr><th scope="col">Schedule</th><th scope="col" class="wide-only">Topic</th><th scope="col" class="wide-only">When</th><th scope="col">State</th><th scope="col">Next</th><th scope="col" class="wide-only">Last</th><th scope="col" class="right wide-only">Runs</th></tr></thead>
              <tbody>
                {schedules?.map((item) => (
                  <tr key={item.schedule}>
                    <td><a href={to(["schedules", item.schedule])}><Foreign text={item.schedule} /></a></td>
                    <td class="wide-only"><a href={to(["topics", item.topic])}><Foreign text={item.topic} /></a></td>
                    <td class="wide-only"><When item={item} /></td>
                    <td><State item={item} /></td>
                    <td class="muted">{item.next_ts === null || item.paused ? "–" : <Relative ms={item.next_ts} />}</td>
                    <td class="muted wide-only">{item.last_ts === null ? "never" : <Relative ms={item.last_ts} />}</td>
                    <td class="right number wide-only">{count(item.runs_total)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <Pager cursors={cursors} next={list.data?.next_cursor} onChange={setCursors} />
      </section>
      {creating && <Create onClose={() => setCreating(false)} />}
    </>
  );
}

/** Its data stays the text that it is: a pause sends it back, and no number may change by that. */
type Kept = Omit<ScheduleItem, "data"> & { data: RawJson };

async function ask(name: string, signal: AbortSignal): Promise<Kept> {
  return parseKeeping(await client.reply("GET /v0/schedules/{schedule}", { path: { schedule: name }, signal }), PAYLOAD) as Kept;
}

async function put(name: string, request: Omit<ScheduleRequest, "data">, data: string): Promise<void> {
  const body = JSON.stringify(request).slice(0, -1);
  await client.reply("PUT /v0/schedules/{schedule}", { path: { schedule: name } }, `${body},"data":${data}}`);
}

function One({ name }: { name: string }) {
  const path = { schedule: name };
  const look = useResource((signal) => ask(name, signal), [name], EVERY_MS);
  // Rises with what is done here: that is shown at once.
  const [turn, setTurn] = useState(0);
  const held = useHeld(look.data, String(turn));
  const [removing, setRemoving] = useState(false);
  const action = useAction();
  const item = held.shown;
  if (item === undefined) return <><h1><Foreign text={name} /></h1><Problem error={look.error} /></>;
  const done = () => {
    setTurn(turn + 1);
    look.reload();
  };
  const run = () =>
    void action.run(async () => {
      const { seq, topic } = await client.call("POST /v0/schedules/{schedule}/run", { path, body: {} });
      say(`Appended seq ${count(seq)} to ${topic}`, "", { name: "Show", href: to(["topics", topic, "records"], { seq }) });
      done();
    });
  const pause = (paused: boolean) =>
    void action.run(async () => {
      const { topic, cron, every_ms, at, timezone, tag, missed, jitter_ms } = item;
      const when = cron !== null ? { cron, timezone } : every_ms !== null ? { every_ms } : { at: at ?? 0 };
      await put(name, { topic, ...when, tag, missed, jitter_ms, paused }, item.data.source);
      say(paused ? `${name} is paused; times that fall into a pause are not made up for` : `${name} runs again at its next time`);
      done();
    });
  return (
    <>
      <div>
        <p class="crumbs"><span><a href={to(["schedules"])}>Schedules</a> /</span><HeldNote behind={held.behind} /></p>
        <h1><Foreign text={name} /></h1>
        <div class="under">
          <span class="grow"><State item={item} /></span>
          {can("write") && <Button disabled={action.busy} onClick={run}>Run now</Button>}
          {can("write") && <Button disabled={action.busy} onClick={() => pause(!item.paused)}><Steady rooms={["Resume"]}>{item.paused ? "Resume" : "Pause"}</Steady></Button>}
          {can("delete") && <Button kind="danger" onClick={() => setRemoving(true)}>Remove…</Button>}
        </div>
      </div>
      <Trouble text={(action.error ?? look.error)?.message} />
      <div class="sections" {...held.on}>
        <section class="card" aria-label="Status">
          <div class="body">
            <dl class="facts">
              <dt>What is wrong</dt><dd>{item.last_error === null ? <span class="muted">nothing</span> : <span class="bad"><Foreign text={item.last_error} /></span>}</dd>
              <dt>When</dt><dd><When item={item} />{item.jitter_ms > 0 && `, up to ${span(item.jitter_ms)} later`}</dd>
              <dt>Next</dt><dd>{item.next_ts === null || item.paused ? <span class="muted">{item.paused ? "after it is resumed" : "none"}</span> : <><Relative ms={item.next_ts} />, <Time ms={item.next_ts} /></>}</dd>
              <dt>Last</dt><dd>{item.last_ts === null || item.last_seq === null ? <span class="muted">never</span> : <><Relative ms={item.last_ts} />, as <a href={to(["topics", item.topic, "records"], { seq: item.last_seq })}>seq {count(item.last_seq)}</a></>}</dd>
              <dt>Runs</dt><dd class="number">{count(item.runs_total)}</dd>
              <dt>Topic</dt><dd><a href={to(["topics", item.topic])}><Foreign text={item.topic} /></a>{item.tag !== null && <>, with the tag <Foreign text={item.tag} /></>}</dd>
              <dt>Missed times</dt><dd>{{ skip: "are skipped", once: "are made up for by one record", all: "are made up for, each by a record" }[item.missed]}</dd>
            </dl>
          </div>
        </section>
        <section class="card" aria-label="Data"><header><h2>Data</h2></header><div class="body"><Json source={item.data.source} label="Data" /></div></section>
      </div>
      {removing && <Remove item={item} onClose={() => setRemoving(false)} />}
    </>
  );
}

function Remove({ item, onClose }: { item: Kept; onClose: () => void }) {
  const action = useAction();
  const run = () =>
    void action.run(async () => {
      await client.call("DELETE /v0/schedules/{schedule}", { path: { schedule: item.schedule } });
      say(`Removed ${item.schedule}`);
      go(["schedules"]);
    });
  return (
    <Confirm title="Remove the schedule?" name={item.schedule} verb="Remove the schedule" busy={action.busy} error={action.error} onClose={onClose} onConfirm={run}>
      <p><strong class="foreign">{item.schedule}</strong> appends nothing to <strong class="foreign">{item.topic}</strong> any more. The {item.runs_total === 1 ? "record" : `${count(item.runs_total)} records`} that it appended {item.runs_total === 1 ? "stays" : "stay"}.</p>
    </Confirm>
  );
}

type Kind = "cron" | "every" | "at";

function Create({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [topic, setTopic] = useState("");
  const [kind, setKind] = useState<Kind>("cron");
  const [cron, setCron] = useState("0 3 * * *");
  const [zone, setZone] = useState(() => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const [every, setEvery] = useState("60");
  const [at, setAt] = useState("");
  const [data, setData] = useState("{}");
  const action = useAction(["schedule", "topic", "cron", "timezone", "every_ms", "at", "data"]);
  let fault: string | undefined;
  try {
    JSON.parse(data);
  } catch {
    fault = "Not valid JSON";
  }
  const seconds = /^\d+(\.\d+)?$/.test(every) ? undefined : "A number";
  const moment = new Date(at).getTime();
  const known = kind === "cron" ? cron !== "" : kind === "every" ? seconds === undefined : !Number.isNaN(moment);
  const ready = name !== "" && topic !== "" && known && fault === undefined && !action.busy;
  const submit = () =>
    void action.run(async () => {
      const when = kind === "cron" ? { cron, timezone: zone } : kind === "every" ? { every_ms: Math.round(Number(every) * 1_000) } : { at: moment };
      await put(name, { topic, ...when }, data);
      say(`Created ${name}`);
      onClose();
      go(["schedules", name]);
    });
  return (
    <Dialog title="Create a schedule" onClose={onClose} onSubmit={() => ready && submit()} actions={<Button kind="primary" type="submit" disabled={!ready}>Create</Button>}>
      <Input label="Name" value={name} onInput={setName} error={action.about("schedule")} hint="A schedule of this name is replaced." autoFocus required />
      <Input label="Topic" value={topic} onInput={setTopic} error={action.about("topic")} hint="A log or a queue that exists." required />
      <Select label="When" value={kind} options={[["cron", "by a cron expression"], ["every", "at an interval"], ["at", "once"]]} onChange={setKind} />
      {kind === "cron" && <Input label="Cron expression" value={cron} onInput={setCron} error={action.about("cron")} hint="Minute, hour, day of month, month, day of week." />}
      {kind === "cron" && <Input label="Time zone" value={zone} onInput={setZone} error={action.about("timezone")} />}
      {kind === "every" && <Input label="Seconds" value={every} onInput={setEvery} error={action.about("every_ms") ?? seconds} size={10} />}
      {kind === "at" && <Input label="Time" type="datetime-local" step={1} value={at} onInput={setAt} error={action.about("at")} />}
      <Field label="Data, any JSON" error={action.about("data") ?? fault}>
        {(id, described) => <textarea id={id} rows={4} spellcheck={false} value={data} aria-invalid={fault !== undefined} aria-describedby={described} onInput={(event) => setData(event.currentTarget.value)} />}
      </Field>
      <Problem error={action.error} />
    </Dialog>
  );
}
