/** Jobs of a queue in one state: looked at, searched by tag, chosen, and retried, released, buried, brought back or deleted. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JobItem, JobsRequest, StateReply } from "topics-client";
import { count, plural, short, span } from "../../format.ts";
import { to } from "../../route.ts";
import { can, client } from "../../session.ts";
import { Chart } from "../../ui/chart.tsx";
import { Button, Confirm, Copy, Dialog, Empty, Foreign, Input, Json, Preview, Problem, Relative, Time, say } from "../../ui/parts.tsx";
import { useAction, useResource } from "../../ui/resource.ts";

export type JobState = JobItem["state"];
type Verb = JobsRequest["action"];

const PAGE = 50;
const EVERY_MS = 2_000;
const PIECE = 1_000;
const POINTS_MAX = 300;
const LEASE_MS = 30_000;

interface Choice {
  action: Verb;
  name: string;
  doing: string;
  danger?: boolean;
  explain: string;
}

const CHOICES: { [state in JobState]: Choice[] } = {
  ready: [
    { action: "bury", name: "Move to dead", doing: "Moving to the dead letters", danger: true, explain: "No worker gets them any more; they wait among the dead letters." },
    { action: "delete", name: "Delete", doing: "Deleting", danger: true, explain: "They are gone for good." },
  ],
  leased: [
    { action: "extend", name: "Extend", doing: "Extending", explain: "The workers get more time, counted from now." },
    { action: "release", name: "Release", doing: "Releasing", explain: "Another worker may claim them at once. If the one that holds them finishes after all, its ack is skipped." },
    { action: "bury", name: "Move to dead", doing: "Moving to the dead letters", danger: true, explain: "They are taken from their workers and wait among the dead letters." },
    { action: "delete", name: "Delete", doing: "Deleting", danger: true, explain: "They are taken from their workers and gone for good." },
  ],
  delayed: [
    { action: "retry", name: "Retry now", doing: "Retrying", explain: "They do not wait for their time: a worker may claim them at once." },
    { action: "bury", name: "Move to dead", doing: "Moving to the dead letters", danger: true, explain: "They wait among the dead letters." },
    { action: "delete", name: "Delete", doing: "Deleting", danger: true, explain: "They are gone for good." },
  ],
  dead: [
    { action: "redrive", name: "Redrive", doing: "Bringing back", explain: "They come back as new jobs of this queue, with all their deliveries before them." },
    { action: "delete", name: "Delete", doing: "Deleting", danger: true, explain: "They are gone for good." },
  ],
};

const EMPTY: { [state in JobState]: [string, string] } = {
  ready: ["No job is ready", "Every job that was appended is done, in flight, delayed or dead."],
  leased: ["No job is in flight", "Workers that claim jobs appear here with what they hold and for how long."],
  delayed: ["No job is delayed", "Jobs that wait for their time, or rest after a failure, appear here."],
  dead: ["No job is dead", "Jobs that failed too often are moved here, with the reason, and can be brought back."],
};

type Picked = { seqs: ReadonlySet<number> } | "all";

export function Jobs({ topic, state, onChange }: { topic: StateReply; state: JobState; onChange: () => void }) {
  const [tag, setTag] = useState("");
  const [search, setSearch] = useState("");
  const [cursors, setCursors] = useState<string[]>([]);
  const [picked, setPicked] = useState<Picked>({ seqs: new Set() });
  const [doing, setDoing] = useState<Choice>();
  const [open, setOpen] = useState<JobItem>();
  const cursor = cursors.at(-1);
  const list = useResource(
    (signal) =>
      client.call("GET /v0/topics/{topic}/jobs", {
        path: { topic: topic.topic },
        query: { state, page_size: PAGE, ...(search === "" ? {} : { tag: search }), ...(cursor === undefined ? {} : { cursor }) },
        signal,
      }),
    [topic.topic, topic.epoch, state, search, cursor],
    EVERY_MS,
  );
  const jobs = list.data?.jobs ?? [];
  const total = { ready: topic.queue!.ready, leased: topic.queue!.in_flight, delayed: topic.queue!.delayed, dead: topic.queue!.dead }[state];
  const may = can("admin");
  const isPicked = (job: JobItem) => picked === "all" || picked.seqs.has(job.$seq);
  const chosen = picked === "all" ? (search === "" ? total : undefined) : picked.seqs.size;
  const toggle = (seq: number) => {
    const seqs = new Set(picked === "all" ? jobs.map((job) => job.$seq) : picked.seqs);
    if (!seqs.delete(seq)) seqs.add(seq);
    setPicked({ seqs });
  };
  const nothing = { seqs: new Set<number>() };
  useWalking(jobs, open, setOpen);

  return (
    <>
      <Head topic={topic} state={state} onChange={onChange} />
      <div class={`split ${open === undefined ? "" : "open"}`}>
        <section class="card">
          <form
            class="toolbar"
            onSubmit={(event) => {
              event.preventDefault();
              setSearch(tag.trim());
              setCursors([]);
              setPicked(nothing);
            }}
          >
            <Input label="Tag" type="search" value={tag} onInput={setTag} placeholder="user-*" />
            <Button type="submit" disabled={tag.trim() === search}>Search</Button>
            {may && jobs.length > 0 && (
              <Button kind="quiet" onClick={() => setPicked("all")}>
                {search === "" ? `Select all ${count(total)}` : "Select all that match"}
              </Button>
            )}
          </form>
          <Problem error={list.error} />
          {list.data !== undefined && jobs.length === 0 ? (
            <Empty title={search === "" ? EMPTY[state][0] : "No job has this tag"}><p>{search === "" ? EMPTY[state][1] : "A * at the end finds tags that start so."}</p></Empty>
          ) : (
            <div class="scroll">
              <table aria-label={`Jobs that are ${state}`} aria-busy={list.loading}>
                <thead>
                  <tr>
                    {may && (
                      <th scope="col">
                        <input
                          type="checkbox"
                          aria-label="Select this page"
                          checked={jobs.length > 0 && jobs.every(isPicked)}
                          onChange={(event) => setPicked(event.currentTarget.checked ? { seqs: new Set(jobs.map((job) => job.$seq)) } : nothing)}
                        />
                      </th>
                    )}
                    <th scope="col" class="right">Seq</th>
                    {columns(state).map(([name, extra]) => <th scope="col" class={extra}>{name}</th>)}
                    <th scope="col" class="wide-only">Tag</th>
                    <th scope="col">Data</th>
                  </tr>
                </thead>
                <tbody>
                  {jobs.map((job) => (
                    <tr key={job.$seq} class={`pick ${open?.$seq === job.$seq || isPicked(job) ? "on" : ""}`} onClick={() => setOpen(open?.$seq === job.$seq ? undefined : job)}>
                      {may && (
                        <td onClick={(event) => event.stopPropagation()}>
                          <input type="checkbox" aria-label={`Select job ${job.$seq}`} checked={isPicked(job)} onChange={() => toggle(job.$seq)} />
                        </td>
                      )}
                      <td class="right number"><Button kind="link" label={`Open job ${job.$seq}`}>{count(job.$seq)}</Button></td>
                      <Standing job={job} />
                      <td class="wide-only clip">{job.$tag !== undefined && <Foreign text={job.$tag} max={40} />}</td>
                      <td class="payload"><Preview source={job.data.source} /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          {(cursors.length > 0 || list.data?.next_cursor !== undefined) && (
            <div class="pager">
              <Button disabled={cursors.length === 0} onClick={() => setCursors(cursors.slice(0, -1))}>Previous</Button>
              <span class="muted small">Page {cursors.length + 1}</span>
              <Button disabled={list.data?.next_cursor === undefined} onClick={() => setCursors([...cursors, list.data!.next_cursor!])}>Next</Button>
            </div>
          )}
          {may && (chosen === undefined || chosen > 0) && (
            <div class="picked" role="region" aria-label="What to do with the selected jobs">
              <strong class="number">{chosen === undefined ? "All that match" : plural(chosen, "job")} selected</strong>
              {CHOICES[state].filter((choice) => choice.action !== "bury" || topic.config.dead_letter !== null).map((choice) => (
                <Button kind={choice.danger === true ? "danger" : "primary"} onClick={() => setDoing(choice)}>{choice.name}</Button>
              ))}
              <Button kind="quiet" onClick={() => setPicked(nothing)}>Clear</Button>
            </div>
          )}
        </section>
        {open !== undefined && <Job topic={topic} job={jobs.find((job) => job.$seq === open.$seq) ?? open} onClose={() => setOpen(undefined)} onAct={may ? (choice) => { setPicked({ seqs: new Set([open.$seq]) }); setDoing(choice); } : undefined} />}
      </div>
      {doing !== undefined && (
        <Act
          topic={topic}
          state={state}
          choice={doing}
          picked={picked}
          tag={search}
          onClose={() => setDoing(undefined)}
          onDone={() => {
            setDoing(undefined);
            setOpen(undefined);
            setPicked(nothing);
            setCursors([]);
            list.reload();
            onChange();
          }}
        />
      )}
    </>
  );
}

function columns(state: JobState): [string, string][] {
  switch (state) {
    case "ready":
      return [["Waiting", ""], ["Deliveries", "right wide-only"], ["Last error", ""]];
    case "leased":
      return [["Worker", ""], ["Deadline", ""], ["Deliveries", "right wide-only"]];
    case "delayed":
      return [["Due", ""], ["Deliveries", "right wide-only"], ["Last error", ""]];
    case "dead":
      return [["Died", ""], ["Deliveries", "right wide-only"], ["Reason", ""]];
  }
}

function Standing({ job }: { job: JobItem }) {
  const deliveries = <td class="right number wide-only">{count(job.deliveries ?? 0)}</td>;
  const error = <td class={`clip long ${job.error === undefined ? "muted" : "bad"}`}>{job.error === undefined ? "–" : <Foreign text={job.error} max={120} />}</td>;
  switch (job.state) {
    case "ready":
      return <><td class="muted"><Relative ms={job.$ts} past="" /></td>{deliveries}{error}</>;
    case "leased":
      return <><td class="clip"><Foreign text={job.worker ?? ""} max={60} /></td><td><Relative ms={job.deadline ?? 0} /></td>{deliveries}</>;
    case "delayed":
      return <><td><Relative ms={job.due ?? 0} /></td>{deliveries}{error}</>;
    case "dead":
      return <><td class="muted"><Relative ms={job.$ts} /></td>{deliveries}{error}</>;
  }
}

function useWalking(jobs: JobItem[], open: JobItem | undefined, setOpen: (job: JobItem | undefined) => void): void {
  useEffect(() => {
    const walk = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (target.matches("input:not([type=checkbox]), textarea, select, dialog *, .json") || jobs.length === 0) return;
      if (event.key === "Escape") return setOpen(undefined);
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (step === 0) return;
      event.preventDefault();
      const at = jobs.findIndex((job) => job.$seq === open?.$seq);
      setOpen(jobs[Math.max(0, Math.min(jobs.length - 1, at < 0 ? 0 : at + step))]);
    };
    document.addEventListener("keydown", walk);
    return () => document.removeEventListener("keydown", walk);
  });
}

function Job({ topic, job, onClose, onAct }: { topic: StateReply; job: JobItem; onClose: () => void; onAct: ((choice: Choice) => void) | undefined }) {
  const home = job.state === "dead" ? (topic.config.dead_letter ?? "") : topic.topic;
  return (
    <section class="card detail" aria-label={`Job ${job.$seq}`}>
      <header>
        <h2 class="grow">Job {count(job.$seq)}</h2>
        <Button kind="quiet" label="Close the job" onClick={onClose}>✕</Button>
      </header>
      <div class="body stack">
        {job.error !== undefined && <p class="notice bad"><Foreign text={job.error} /></p>}
        <dl class="facts">
          <dt>{job.state === "dead" ? "Died" : "Appended"}</dt><dd><Time ms={job.$ts} /></dd>
          <dt>Deliveries</dt><dd>{count(job.deliveries ?? 0)}{(topic.config.max_deliveries ?? 0) > 0 ? ` of ${topic.config.max_deliveries}` : ""}</dd>
          {job.worker !== undefined && <><dt>Worker</dt><dd><Foreign text={job.worker} />{job.pushed === true ? " (pushed)" : ""}</dd></>}
          {job.claimed_ts !== undefined && <><dt>Claimed</dt><dd><Time ms={job.claimed_ts} /></dd></>}
          {job.deadline !== undefined && <><dt>Deadline</dt><dd><Relative ms={job.deadline} /></dd></>}
          {job.due !== undefined && <><dt>Due</dt><dd><Relative ms={job.due} /></dd></>}
          {job.src_seq !== undefined && <><dt>Seq in the queue</dt><dd>{count(job.src_seq)}</dd></>}
          {job.$tag !== undefined && <><dt>Tag</dt><dd><Foreign text={job.$tag} /></dd></>}
          <dt>Record</dt><dd><a href={to(["topics", home, "records"], { seq: job.$seq })}><Foreign text={home} /> #{job.$seq}</a></dd>
        </dl>
        {onAct !== undefined && (
          <div class="row">
            {CHOICES[job.state].filter((choice) => choice.action !== "bury" || topic.config.dead_letter !== null).map((choice) => (
              <Button kind={choice.danger === true ? "danger" : "primary"} onClick={() => onAct(choice)}>{choice.name}</Button>
            ))}
          </div>
        )}
        <h3>Data</h3>
        <Json source={job.data.source} label="Data" />
        {job.meta !== undefined && <><h3>Meta</h3><Json source={job.meta.source} label="Meta" /></>}
        <div class="row"><Copy text={() => job.data.source}>Copy the data</Copy></div>
      </div>
    </section>
  );
}

type ActProps = { topic: StateReply; state: JobState; choice: Choice; picked: Picked; tag: string; onClose: () => void; onDone: () => void };

/** Counts first, asks, then works in pieces with the number so far; can be stopped between two of them. */
function Act({ topic, state, choice, picked, tag, onClose, onDone }: ActProps) {
  const [hits, setHits] = useState<{ changed: number; more: boolean }>();
  const [done, setDone] = useState<number>();
  const [rate, setRate] = useState("");
  const [lease, setLease] = useState(String((topic.config.lease_ms ?? LEASE_MS) / 1_000));
  const stopped = useRef(false);
  const action = useAction(["rate_per_s", "lease_ms"]);
  const body = (): JobsRequest => ({
    action: choice.action,
    state,
    ...(picked !== "all" ? { seqs: [...picked.seqs] } : tag === "" ? { all: true } : { match: tag.endsWith("*") ? ["tag", "Glob", tag] : tag }),
    ...(choice.action === "redrive" && rate !== "" ? { rate_per_s: Number(rate) } : {}),
    ...(choice.action === "extend" ? { lease_ms: Math.round(Number(lease) * 1_000) } : {}),
  });
  const call = (more: object) => client.call("POST /v0/topics/{topic}/jobs", { path: { topic: topic.topic }, body: { ...body(), ...more } });
  useEffect(() => {
    void action.run(async () => setHits(await call({ dry_run: true, limit: 10_000 })));
    return () => {
      stopped.current = true;
    };
  }, []);
  const run = () =>
    void action.run(async () => {
      let changed = 0;
      for (let more = true; more && !stopped.current; ) {
        const step = await call({ limit: PIECE });
        changed += step.changed;
        setDone(changed);
        more = step.more && step.changed > 0;
      }
      say(`${choice.name}: ${plural(changed, "job")} of ${topic.topic}${stopped.current ? ", then stopped" : ""}`);
      onDone();
    });
  const shown = hits === undefined ? "…" : `${hits.more ? "at least " : ""}${plural(hits.changed, "job")}`;
  const options = (
    <>
      <p>
        {choice.name}: <strong>{shown}</strong> of <strong class="foreign">{topic.topic}</strong>. {choice.explain}
      </p>
      {choice.action === "redrive" && <Input label="At most so many a second" value={rate} onInput={setRate} error={action.about("rate_per_s") ?? (rate === "" || /^\d+$/.test(rate) ? undefined : "A whole number")} hint="Empty: all at once. With a rate, the workers are not flooded." size={8} />}
      {choice.action === "extend" && <Input label="Seconds from now" value={lease} onInput={setLease} error={action.about("lease_ms")} size={8} />}
      {done !== undefined && (
        <p role="status">
          {choice.doing}: {count(done)}{hits !== undefined && !hits.more ? ` of ${count(hits.changed)}` : ""}
          {hits !== undefined && hits.changed > 0 && <span class="meter"><i style={{ width: `${Math.min(100, (100 * done) / hits.changed)}%` }} /></span>}
        </p>
      )}
    </>
  );
  const close = () => {
    stopped.current = true;
    onClose();
  };
  const verb = `${choice.name} ${hits === undefined ? "" : plural(hits.changed, "job")}`;
  if (choice.danger === true) {
    return (
      <Confirm title={`${choice.name}?`} verb={verb} busy={action.busy || hits?.changed === 0} error={action.error} onClose={close} onConfirm={run} {...(choice.action === "delete" && picked === "all" ? { name: topic.topic } : {})}>
        {options}
      </Confirm>
    );
  }
  return (
    <Dialog title={choice.name} onClose={close} onSubmit={run} actions={<Button kind="primary" type="submit" disabled={action.busy || hits?.changed === 0}>{action.busy && done !== undefined ? "Working…" : verb}</Button>}>
      {options}
      <Problem error={action.error} />
    </Dialog>
  );
}

/** Pause and resume, and how the queue did since the page was opened. */
function Head({ topic, state, onChange }: { topic: StateReply; state: JobState; onChange: () => void }) {
  const queue = topic.queue!;
  const action = useAction();
  const points = useRef<{ ts: number[]; rows: number[][]; last?: { ts: number; appended: number; done: number; dead: number } }>({ ts: [], rows: [] });
  const flow = points.current;
  const gone = topic.head_seq - topic.count - queue.dead_lettered;
  const now = { ts: Date.now(), appended: topic.head_seq, done: Math.max(0, gone), dead: queue.dead_lettered };
  if (flow.last === undefined || now.ts - flow.last.ts >= EVERY_MS * 0.8) {
    if (flow.last !== undefined) {
      const s = (now.ts - flow.last.ts) / 1_000;
      flow.ts = [...flow.ts, now.ts].slice(-POINTS_MAX);
      const row = [(now.appended - flow.last.appended) / s, Math.max(0, now.done - flow.last.done) / s, (now.dead - flow.last.dead) / s, queue.ready, queue.in_flight];
      flow.rows = [...flow.rows, row].slice(-POINTS_MAX);
    }
    flow.last = now;
  }
  const column = (index: number) => flow.rows.map((row) => row[index]!);
  const perSecond = (value: number) => `${short(value)}/s`;
  return (
    <>
      {queue.dead_letter_error !== undefined && queue.dead_letter_error !== null && (
        <p class="notice bad" role="alert">Jobs that belong to the dead letters cannot be moved there: {queue.dead_letter_error}</p>
      )}
      {state === "dead" && topic.config.dead_letter === null && <p class="notice warn">This queue has no dead-letter topic: a job that fails is tried for ever. Set <a href={to(["topics", topic.topic, "configuration"])}>dead_letter and max_deliveries</a>.</p>}
      {state === "ready" && (
        <section class="charts" aria-label="Since this page was opened">
          <Chart title="Jobs a second" ts={flow.ts} show={perSecond} series={[{ name: "appended", values: column(0), colour: "--accent" }, { name: "done", values: column(1), colour: "--ok" }, { name: "dead", values: column(2), colour: "--bad" }]} />
          <Chart title="Waiting" ts={flow.ts} show={short} series={[{ name: "ready", values: column(3), colour: "--accent" }, { name: "in flight", values: column(4), colour: "--warn" }]} />
        </section>
      )}
      {can("admin") && (
        <div class="row">
          <Button
            disabled={action.busy}
            onClick={() =>
              void action.run(async () => {
                await client.call(queue.paused ? "POST /v0/topics/{topic}/resume" : "POST /v0/topics/{topic}/pause", { path: { topic: topic.topic }, body: {} });
                say(queue.paused ? "Jobs are handed out again" : "No more jobs are handed out");
                onChange();
              })
            }
          >
            {queue.paused ? "Resume the queue" : "Pause the queue"}
          </Button>
          <span class="muted small">{queue.paused ? "No jobs are handed out; what is out may still be finished." : `A worker has ${span(topic.config.lease_ms ?? LEASE_MS)} for a job.`}</span>
          <Problem error={action.error} />
        </div>
      )}
    </>
  );
}
