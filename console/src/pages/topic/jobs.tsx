/** Jobs of a queue in one state: looked at, searched by tag, chosen, and retried, released, buried, brought back or deleted. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type JobItem, type JobsRequest, type StateReply } from "topics-client";
import { count, plural, span } from "../../format.ts";
import { go, place, to } from "../../route.ts";
import { can, client } from "../../session.ts";
import { Badge, Button, Confirm, Copy, Dialog, Empty, Foreign, HeldNote, Input, Json, Pager, Preview, Problem, Relative, Steady, Tick, Time, Trouble, say } from "../../ui/parts.tsx";
import { useHeld } from "../../ui/held.ts";
import { useAction, useResource } from "../../ui/resource.ts";
import { SteadyTaken, Taken } from "./workers.tsx";

export type JobState = JobItem["state"];
type Verb = JobsRequest["action"];

// After these the jobs wait for a worker.
const TO_WORKERS: readonly Verb[] = ["retry", "release", "redrive"];
const PAGE = 50;
const EVERY_MS = 2_000;
const PIECE = 1_000;
const LEASE_MS = 30_000;
// What the server notes for a job that an operator moved without a reason of his own.
const MOVED = "moved by an operator";

interface Choice {
  action: Verb;
  /** The button, without and with how many. */
  name: string;
  verb: (what: string) => string;
  doing: string;
  /** How it is with them afterwards. */
  past: string;
  danger?: boolean;
  /** What happens to one, and to many. */
  explain: [one: string, many: string];
  /** How the API and the command line call it, where that is another word. */
  called?: string;
}

const BURY = { action: "bury", name: "Move to dead", verb: (what: string) => `Move ${what} to dead`, past: "moved to the dead letters", doing: "Moving to the dead letters", danger: true, called: "bury" } as const;
const DELETE = { action: "delete", name: "Delete", verb: (what: string) => `Delete ${what}`, past: "deleted", doing: "Deleting", danger: true } as const;

const CHOICES: { [state in JobState]: Choice[] } = {
  ready: [
    { ...BURY, explain: ["No worker gets it any more; it is kept among the dead jobs.", "No worker gets them any more; they are kept among the dead jobs."] },
    { ...DELETE, explain: ["It is gone for good.", "They are gone for good."] },
  ],
  leased: [
    { action: "extend", name: "Extend", verb: (what) => `Extend ${what}`, past: "extended", doing: "Extending", explain: ["Its worker gets more time, counted from now.", "Their workers get more time, counted from now."] },
    { action: "release", name: "Release", verb: (what) => `Release ${what}`, past: "released", doing: "Releasing", explain: ["Another worker may claim it at once. If the one that holds it finishes after all, its ack is skipped.", "Other workers may claim them at once. If those that hold them finish after all, their acks are skipped."] },
    { ...BURY, explain: ["It is taken from its worker and kept among the dead jobs.", "They are taken from their workers and kept among the dead jobs."] },
    { ...DELETE, explain: ["It is taken from its worker and gone for good.", "They are taken from their workers and gone for good."] },
  ],
  delayed: [
    { action: "retry", name: "Retry now", verb: (what) => `Retry ${what} now`, past: "ready now", doing: "Retrying", explain: ["It does not wait for its time: a worker may claim it at once.", "They do not wait for their time: workers may claim them at once."] },
    { ...BURY, explain: ["It is kept among the dead jobs.", "They are kept among the dead jobs."] },
    { ...DELETE, explain: ["It is gone for good.", "They are gone for good."] },
  ],
  dead: [
    {
      action: "redrive",
      name: "Put back in the queue",
      verb: (what) => `Put ${what} back`,
      past: "back in the queue",
      doing: "Putting back",
      explain: ["It is tried again: it joins the end of the queue, and its deliveries count from 0.", "They are tried again: they join the end of the queue, and their deliveries count from 0."],
      called: "redrive",
    },
    { ...DELETE, explain: ["It is gone for good.", "They are gone for good."] },
  ],
};

const EMPTY: { [state in JobState]: [string, string] } = {
  ready: ["No job is ready", "Every job that was appended is done, in flight, delayed or dead."],
  leased: ["No job is in flight", "Workers that claim jobs appear here with what they hold and for how long."],
  delayed: ["No job is delayed", "Jobs that wait for their time, or rest after a failure, appear here."],
  dead: ["No job is dead", "Jobs that failed too often, or that a worker gave up, are kept here with the reason. They can be put back in the queue."],
};

const NAMES: { [state in JobState]: string } = { ready: "ready", leased: "in flight", delayed: "delayed", dead: "dead" };

const HINT: { [state in JobState]: string } = {
  ready: "Select jobs to take them out of the queue.",
  leased: "Select jobs to extend, release or stop them.",
  delayed: "Select jobs to retry them now.",
  dead: "Select jobs to put them back in the queue, or to delete them.",
};

type Picked = { seqs: ReadonlySet<number> } | "all";

export function Jobs({ topic, state, onChange }: { topic: StateReply; state: JobState; onChange: () => void }) {
  // In the address, so that a link can lead to jobs of one tag.
  const search = place.value.query.get("tag") ?? "";
  const [tag, setTag] = useState(search);
  const [cursors, setCursors] = useState<string[]>([]);
  const [picked, setPicked] = useState<Picked>({ seqs: new Set() });
  const [doing, setDoing] = useState<{ choice: Choice; picked: Picked }>();
  // Rises with what is done here: that is shown at once.
  const [turn, setTurn] = useState(0);
  const [open, setOpen] = useState<JobItem>();
  const nothing = { seqs: new Set<number>() };
  useEffect(() => {
    setTag(search);
    setCursors([]);
    setPicked(nothing);
  }, [search]);
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
  const held = useHeld(list.data?.jobs, JSON.stringify([search, cursor, turn]));
  const jobs = held.shown ?? [];
  const total = { ready: topic.queue!.ready, leased: topic.queue!.in_flight, delayed: topic.queue!.delayed, dead: topic.queue!.dead }[state];
  const may = can("admin");
  const isPicked = (job: JobItem) => picked === "all" || picked.seqs.has(job.$seq);
  const chosen = picked === "all" ? (search === "" ? total : undefined) : picked.seqs.size;
  const toggle = (seq: number) => {
    const seqs = new Set(picked === "all" ? jobs.map((job) => job.$seq) : picked.seqs);
    if (!seqs.delete(seq)) seqs.add(seq);
    setPicked({ seqs });
  };
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
              go(["topics", topic.topic, state], { tag: tag.trim() || undefined }, true);
            }}
          >
            <Input label="Tag" type="search" value={tag} onInput={setTag} placeholder="user-*" />
            <Button type="submit" disabled={tag.trim() === search}>Search</Button>
            {may && jobs.length > 0 && (
              <Button kind="quiet" onClick={() => setPicked("all")}>
                <Steady rooms={["Select all that match"]}>{search === "" ? `Select all ${count(total)}` : "Select all that match"}</Steady>
              </Button>
            )}
            {may && jobs.length > 0 && <span class={`muted small hint-line ${chosen === 0 ? "" : "room"}`}>{HINT[state]}</span>}
            <HeldNote behind={held.behind} />
          </form>
          <Trouble text={list.error?.message} />
          {list.data !== undefined && jobs.length === 0 ? (
            <Empty title={search === "" ? EMPTY[state][0] : "No job has this tag"}><p>{search === "" ? EMPTY[state][1] : "A * at the end finds tags that start so."}</p></Empty>
          ) : (
            <div class="scroll" {...held.on}>
              <table aria-label={`Jobs that are ${state}`} aria-busy={list.loading}>
                <thead>
                  <tr>
                    {may && (
                      <th scope="col">
                        <Tick
                          label="Select this page"
                          checked={jobs.length > 0 && jobs.every(isPicked)}
                          onChange={(on) => setPicked(on ? { seqs: new Set(jobs.map((job) => job.$seq)) } : nothing)}
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
                          <Tick label={`Select job ${job.$seq}`} checked={isPicked(job)} onChange={() => toggle(job.$seq)} />
                        </td>
                      )}
                      <td class="right number"><Button kind="link" label={`Open job ${job.$seq}`}>{count(job.$seq)}</Button></td>
                      <Standing job={job} deliveriesMax={topic.config.max_deliveries ?? 0} />
                      <td class="wide-only clip">{job.$tag !== undefined && <Foreign text={job.$tag} max={40} />}</td>
                      <td class="payload">
                        {job.$tag !== undefined && <span class="narrow-only cut small"><Foreign text={job.$tag} max={40} /></span>}
                        <Preview source={job.data.source} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          <Pager cursors={cursors} next={list.data?.next_cursor} onChange={setCursors} />
          {may && (chosen === undefined || chosen > 0) && (
            <div class="picked" role="region" aria-label="What to do with the selected jobs">
              <strong class="number">{chosen === undefined ? "All that match" : plural(chosen, "job")} selected</strong>
              {CHOICES[state].filter((choice) => choice.action !== "bury" || topic.config.dead_letter !== null).map((choice) => (
                <Button kind={choice.danger === true ? "danger" : "primary"} onClick={() => setDoing({ choice, picked })}>{choice.name}</Button>
              ))}
              <Button kind="quiet" onClick={() => setPicked(nothing)}>Clear</Button>
            </div>
          )}
        </section>
        {open !== undefined && (
          <Job
            topic={topic}
            job={jobs.find((job) => job.$seq === open.$seq) ?? open}
            // The newest list, also while the pointer holds what is shown.
            listed={list.data === undefined || list.data.jobs.some((job) => job.$seq === open.$seq)}
            onClose={() => setOpen(undefined)}
            onAct={may ? (choice) => setDoing({ choice, picked: { seqs: new Set([open.$seq]) } }) : undefined}
          />
        )}
      </div>
      {doing !== undefined && (
        <Act
          topic={topic}
          state={state}
          choice={doing.choice}
          picked={doing.picked}
          tag={search}
          afterwards={tagOf(doing.picked === "all" ? undefined : jobs.filter((job) => doing.picked !== "all" && doing.picked.seqs.has(job.$seq))) ?? search}
          onClose={() => setDoing(undefined)}
          onDone={() => {
            setDoing(undefined);
            setOpen(undefined);
            setPicked(nothing);
            setCursors([]);
            setTurn(turn + 1);
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
      return [["Waiting", "spare"], ["Deliveries", "right wide-only spare"], ["Last error", "wide-only"]];
    case "leased":
      return [["Worker", "wide-only"], ["Deadline", ""], ["Deliveries", "right wide-only spare"]];
    case "delayed":
      return [["Due", ""], ["Deliveries", "right wide-only spare"], ["Last error", "wide-only"]];
    case "dead":
      return [["Died", "wide-only spare"], ["Deliveries", "wide-only spare"], ["Reason", ""]];
  }
}

function Standing({ job, deliveriesMax }: { job: JobItem; deliveriesMax: number }) {
  const deliveries = <td class="right number nowrap wide-only spare">{tries(job, deliveriesMax)}</td>;
  const error = <td class={`clip long ${job.state === "dead" ? "" : "wide-only"} ${job.error === undefined ? "muted" : "bad"}`}>{job.error === undefined ? "–" : <Foreign text={job.error} max={120} />}</td>;
  switch (job.state) {
    case "ready":
      return <><td class="muted spare"><Relative ms={job.$ts} past="" /></td>{deliveries}{error}</>;
    case "leased":
      return (
        <>
          <td class="clip wide-only"><Foreign text={job.worker ?? ""} max={60} /></td>
          <td><span class="narrow-only cut"><Foreign text={job.worker ?? ""} max={60} /></span><Relative ms={job.deadline ?? 0} /></td>
          {deliveries}
        </>
      );
    case "delayed":
      return <><td><Relative ms={job.due ?? 0} /></td>{deliveries}{error}</>;
    case "dead":
      return (
        <>
          <td class="muted wide-only spare"><Relative ms={job.$ts} /></td>
          <td class="number nowrap wide-only spare">{tries(job, deliveriesMax)} {endOf(job, deliveriesMax) === "rejected" && <Badge>rejected</Badge>}</td>
          {error}
        </>
      );
  }
}

/** Why a job is dead: it was delivered too often, its worker gave it up before that, or somebody moved it here. */
function endOf(job: JobItem, deliveriesMax: number): "exhausted" | "rejected" | "moved" {
  if (job.error === MOVED) return "moved";
  return deliveriesMax > 0 && (job.deliveries ?? 0) >= deliveriesMax ? "exhausted" : "rejected";
}

function tries(job: JobItem, deliveriesMax: number): string {
  return deliveriesMax > 0 ? `${count(job.deliveries ?? 0)} of ${count(deliveriesMax)}` : count(job.deliveries ?? 0);
}

/** Whether a meta says nothing but what the facts of a dead job say already. */
function isStamps(meta: string): boolean {
  return Object.keys(JSON.parse(meta) as object).every((name) => name.startsWith("$dead_letter_"));
}

function Death({ job, deliveriesMax }: { job: JobItem; deliveriesMax: number }) {
  const delivered = deliveriesMax > 0 ? `delivery ${tries(job, deliveriesMax)}` : plural(job.deliveries ?? 0, "delivery", "deliveries");
  switch (endOf(job, deliveriesMax)) {
    case "moved":
      return <p>An operator moved it here{(job.deliveries ?? 0) > 0 ? `, after ${delivered}` : " before any worker had it"}.</p>;
    case "rejected":
      return <p>Its worker gave it up (rejected it) at {delivered}, so it was not tried again.</p>;
    case "exhausted":
      return <p>{deliveriesMax === 1 ? "Its only delivery failed." : `All ${count(deliveriesMax)} deliveries failed.`}{job.error === undefined ? " No reason is known: a worker that does not finish in time gives none." : ""}</p>;
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

/** The tag that all of these jobs have. */
function tagOf(jobs: JobItem[] | undefined): string | undefined {
  const tag = jobs?.[0]?.$tag;
  return jobs?.every((job) => job.$tag === tag) === true ? tag : undefined;
}

/** Whether the job is still in the state that is shown; a dead one is a record of the dead-letter topic. */
async function isStill(topic: StateReply, job: JobItem, signal: AbortSignal): Promise<boolean> {
  try {
    if (job.state !== "dead") {
      const found = await client.call("GET /v0/topics/{topic}/jobs/{seq}", { path: { topic: topic.topic, seq: String(job.$seq) }, signal });
      return found.state === job.state;
    }
    const letters = topic.config.dead_letter ?? "";
    const found = await client.call("POST /v0/topics/{topic}/diff", { path: { topic: letters }, body: { from_seq: job.$seq - 1, limit: 1 }, signal });
    return found.records[0]?.$seq === job.$seq;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return false;
    throw error;
  }
}

type JobProps = { topic: StateReply; job: JobItem; listed: boolean; onClose: () => void; onAct: ((choice: Choice) => void) | undefined };

function Job({ topic, job, listed, onClose, onAct }: JobProps) {
  const home = job.state === "dead" ? (topic.config.dead_letter ?? "") : topic.topic;
  // One that is not in the list may be on another page of it, or elsewhere by now: another person or a worker had it.
  const still = useResource(async (signal) => listed || (await isStill(topic, job, signal)), [job.$seq, listed], listed ? 0 : EVERY_MS);
  const gone = still.data === false;
  return (
    <section class="card detail" aria-label={`Job ${job.$seq}`}>
      <header>
        <h2 class="grow">Job {count(job.$seq)}</h2>
        <Button kind="quiet" label="Close the job" onClick={onClose}>✕</Button>
      </header>
      <div class="body stack">
        {gone && <p class="notice warn" role="status">This job is no longer {NAMES[job.state]}.</p>}
        {job.error !== undefined && job.error !== MOVED && <p class="notice bad"><Foreign text={job.error} /></p>}
        {job.state === "dead" && <Death job={job} deliveriesMax={topic.config.max_deliveries ?? 0} />}
        <dl class="facts">
          <dt>{job.state === "dead" ? "Died" : "Appended"}</dt><dd><Time ms={job.$ts} /></dd>
          <dt>Deliveries</dt><dd>{tries(job, topic.config.max_deliveries ?? 0)}</dd>
          {job.worker !== undefined && <><dt>Worker</dt><dd><Foreign text={job.worker} />{job.pushed === true ? " (pushed)" : ""}</dd></>}
          {job.claimed_ts !== undefined && <><dt>Claimed</dt><dd><Time ms={job.claimed_ts} /></dd></>}
          {job.deadline !== undefined && <><dt>Deadline</dt><dd><Relative ms={job.deadline} /></dd></>}
          {job.due !== undefined && <><dt>Due</dt><dd><Relative ms={job.due} /></dd></>}
          {job.src_seq !== undefined && <><dt>Seq in the queue</dt><dd>{count(job.src_seq)}</dd></>}
          {job.$tag !== undefined && <><dt>Tag</dt><dd><Foreign text={job.$tag} /></dd></>}
          <dt>Record</dt><dd><a href={to(["topics", home, "records"], { seq: job.$seq })}><Foreign text={home} /> #{job.$seq}</a></dd>
        </dl>
        {onAct !== undefined && !gone && (
          <div class="row">
            {CHOICES[job.state].filter((choice) => choice.action !== "bury" || topic.config.dead_letter !== null).map((choice) => (
              <Button kind={choice.danger === true ? "danger" : "primary"} onClick={() => onAct(choice)}>{choice.name}</Button>
            ))}
          </div>
        )}
        <h3>Data</h3>
        <Json source={job.data.source} label="Data" />
        {job.meta !== undefined && !isStamps(job.meta.source) && <><h3>Meta</h3><Json source={job.meta.source} label="Meta" /></>}
        <div class="row"><Copy text={() => job.data.source}>Copy the data</Copy></div>
      </div>
    </section>
  );
}

type ActProps = {
  topic: StateReply;
  state: JobState;
  choice: Choice;
  picked: Picked;
  tag: string;
  /** A tag that finds the jobs among the ready ones; empty: there is none. */
  afterwards: string;
  onClose: () => void;
  onDone: () => void;
};

/** Counts first, asks, then works in pieces with the number so far; can be stopped between two of them. */
function Act({ topic, state, choice, picked, tag, afterwards, onClose, onDone }: ActProps) {
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
  const none = picked !== "all" && picked.seqs.size === 1 ? `This job is no longer ${NAMES[state]}.` : `None of these jobs is ${NAMES[state]} any more.`;
  // Somebody else was faster: then there is nothing to confirm.
  const tooLate = hits !== undefined && hits.changed === 0 && !hits.more && done === undefined;
  const run = () =>
    void action.run(async () => {
      let changed = 0;
      for (let more = true; more && !stopped.current; ) {
        const step = await call({ limit: PIECE });
        changed += step.changed;
        setDone(changed);
        more = step.more && step.changed > 0;
      }
      const link = TO_WORKERS.includes(choice.action) ? { name: "Show", href: to(["topics", topic.topic, "ready"], { tag: afterwards || undefined }) } : undefined;
      if (changed === 0) say(none);
      else say(`${plural(changed, "job")} of ${topic.topic} ${changed === 1 ? "is" : "are"} ${choice.past}${stopped.current ? ", then it was stopped" : ""}`, "", link);
      onDone();
    });
  const shown = hits === undefined ? "…" : `${hits.more ? "at least " : ""}${plural(hits.changed, "job")}`;
  const options = tooLate ? <p>{none}</p> : (
    <>
      <p>
        <strong>{shown}</strong> of <strong class="foreign">{topic.topic}</strong>. {choice.explain[hits?.changed === 1 ? 0 : 1]}
      </p>
      {TO_WORKERS.includes(choice.action) && hits !== undefined && <Taken queue={topic.queue!} coming={hits.changed} />}
      {choice.action === "redrive" && hits !== undefined && (hits.changed > 1 || hits.more) && <Input label="Jobs a second, at most" value={rate} onInput={setRate} error={action.about("rate_per_s") ?? (rate === "" || /^\d+$/.test(rate) ? undefined : "A whole number")} hint="Empty: all at once. With a rate, the workers are not flooded." size={8} />}
      {choice.action === "extend" && <Input label="Seconds from now" value={lease} onInput={setLease} error={action.about("lease_ms")} size={8} />}
      {done !== undefined && (
        <p role="status">
          {choice.doing}: {count(done)}{hits !== undefined && !hits.more ? ` of ${count(hits.changed)}` : ""}
          {hits !== undefined && hits.changed > 1 && <span class="meter"><i style={{ width: `${Math.min(100, (100 * done) / hits.changed)}%` }} /></span>}
        </p>
      )}
      {choice.called !== undefined && <p class="muted small">The API and the command line call this <code>{choice.called}</code>.</p>}
    </>
  );
  const close = () => {
    stopped.current = true;
    if (tooLate) onDone();
    else onClose();
  };
  const verb = hits === undefined ? choice.name : choice.verb(plural(hits.changed, "job"));
  if (choice.danger === true) {
    return (
      <Confirm title={`${choice.name}?`} verb={verb} counting={hits === undefined} nothing={tooLate} busy={action.busy} error={action.error} onClose={close} onConfirm={run} {...(choice.action === "delete" && picked === "all" ? { name: topic.topic } : {})}>
        {options}
      </Confirm>
    );
  }
  return (
    <Dialog title={choice.name} onClose={close} {...(tooLate ? {} : { onSubmit: run, actions: <Button kind="primary" type="submit" disabled={action.busy || hits === undefined}>{action.busy && hits !== undefined ? "Working…" : verb}</Button> })}>
      {options}
      <Problem error={action.error} />
    </Dialog>
  );
}

/** Pause and resume, and what keeps jobs from moving. */
function Head({ topic, state, onChange }: { topic: StateReply; state: JobState; onChange: () => void }) {
  const queue = topic.queue!;
  const action = useAction();
  return (
    <>
      <Trouble text={queue.dead_letter_error == null ? undefined : `Jobs that belong to the dead letters cannot be moved there: ${queue.dead_letter_error}`} />
      <Trouble text={action.error?.message} />
      {state === "dead" && topic.config.dead_letter === null && <p class="notice warn">This queue has no dead-letter topic: a job that fails is tried for ever. Set <a href={to(["topics", topic.topic, "configuration"])}>dead_letter and max_deliveries</a>.</p>}
      <div class="row standing-row">
        {can("admin") && (
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
            <Steady rooms={["Resume the queue", "Pause the queue"]}>{queue.paused ? "Resume the queue" : "Pause the queue"}</Steady>
          </Button>
        )}
        <SteadyTaken topic={topic.topic} queue={queue} />
        {state === "leased" && <span class="muted">A worker has {span(topic.config.lease_ms ?? LEASE_MS)} for a job, unless it asks for another time.</span>}
      </div>
    </>
  );
}
