/** Webhooks: how far each is, what fails and when it is tried again; test, pause, resume, rotate, create and remove. */

import { useState } from "preact/hooks";
import type { AttemptItem, WebhookItem, WebhookReply, WebhookRequest, WebhookTestReply } from "topics-client";
import { count, plural, span } from "../format.ts";
import { go, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Button, Commands, Confirm, Copy, Dialog, Empty, Foreign, HeldNote, Input, Pager, Problem, Relative, Select, Steady, Time, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const PAGE = 100;
// The server's reason for a pause that somebody wanted.
const BY_REQUEST = "by request";
const GRACE = [["86400000", "a day"], ["604800000", "a week"], ["0", "no time: it ends at once"]] as const;

export function Webhooks({ name }: { name: string | undefined }) {
  return name === undefined ? <List /> : <One key={name} name={name} />;
}

function State({ item }: { item: WebhookItem }) {
  if (item.paused) return <Badge kind="warn">paused</Badge>;
  if (item.last_error !== null) return <Badge kind="bad">stopped</Badge>;
  if (item.retrying > 0) return <Badge kind="warn">retrying</Badge>;
  return <Badge kind="ok">{item.lag === 0 ? "up to date" : "delivers"}</Badge>;
}

/** What keeps it from delivering, in words; nothing if it delivers. */
function obstacle(item: WebhookItem): string | undefined {
  if (item.paused) return item.paused_reason === BY_REQUEST ? "paused by request" : (item.paused_reason ?? "paused");
  if (item.last_error !== null) return item.last_error;
  return item.failures_in_a_row > 0 ? `${plural(item.failures_in_a_row, "failure")} in a row` : undefined;
}

function isWrong(item: WebhookItem): boolean {
  return item.last_error !== null || (item.paused && item.paused_reason !== BY_REQUEST);
}

function List() {
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState<string[]>([]);
  const [creating, setCreating] = useState(false);
  const cursor = cursors.at(-1);
  const list = useResource((signal) => client.call("GET /v0/webhooks", { query: { prefix, page_size: PAGE, ...(cursor === undefined ? {} : { cursor }) }, signal }), [prefix, cursor], EVERY_MS);
  const held = useHeld(list.data?.webhooks, JSON.stringify([prefix, cursor]));
  const webhooks = held.shown;
  return (
    <>
      <div class="head">
        <h1 class="grow">Webhooks</h1>
        {can("admin", "read") && <Button kind="primary" onClick={() => setCreating(true)}>Create a webhook</Button>}
      </div>
      <section class="card">
        <div class="toolbar"><Input label="Name starts with" type="search" value={prefix} onInput={(value) => { setPrefix(value); setCursors([]); }} /><HeldNote behind={held.behind} /></div>
        <Trouble text={list.error?.message} />
        {webhooks !== undefined && webhooks.length === 0 ? (
          <Empty title={prefix === "" ? "No webhooks" : "Nothing matches"}><p>A webhook posts each record of a topic to a URL, signed, in order, and again until it is accepted.</p><Commands lines={["topics webhook create shop orders https://shop.example.org/hook", "topics webhook test shop"]} /></Empty>
        ) : (
          <div class="scroll" {...held.on}>
            <table aria-label="Webhooks">
              <thead><tr><th scope="col">Webhook</th><th scope="col" class="wide-only">Topic</th><th scope="col" class="wide-only">To</th><th scope="col">State</th><th scope="col" class="right">Lag</th><th scope="col">Next attempt</th><th scope="col" class="wide-only">What is wrong</th></tr></thead>
              <tbody>
                {webhooks?.map((item) => (
                  <tr key={item.webhook}>
                    <td><a href={to(["webhooks", item.webhook])}><Foreign text={item.webhook} /></a></td>
                    <td class="wide-only"><a href={to(["topics", item.topic])}><Foreign text={item.topic} /></a></td>
                    <td class="wide-only clip long muted"><Foreign text={item.url} max={80} /></td>
                    <td><State item={item} /></td>
                    <td class="right number">{count(item.lag)}</td>
                    <td class="muted nowrap">{item.next_retry_ts === null || item.paused ? "–" : <Relative ms={item.next_retry_ts} />}</td>
                    <td class={`wide-only clip long ${isWrong(item) ? "bad" : "muted"}`}><Foreign text={obstacle(item) ?? "–"} max={120} /></td>
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

type Doing = "pause" | "rotate" | "remove";

function One({ name }: { name: string }) {
  const path = { webhook: name };
  const look = useResource((signal) => client.call("GET /v0/webhooks/{webhook}", { path, signal }), [name], EVERY_MS);
  // Rises with what is done here: that is shown at once.
  const [turn, setTurn] = useState(0);
  const held = useHeld(look.data, String(turn));
  const [doing, setDoing] = useState<Doing>();
  const [outcome, setOutcome] = useState<WebhookTestReply>();
  const action = useAction();
  const item = held.shown;
  if (item === undefined) return <><h1><Foreign text={name} /></h1><Problem error={look.error} /></>;
  const done = () => {
    setDoing(undefined);
    setTurn(turn + 1);
    look.reload();
  };
  const resume = () =>
    void action.run(async () => {
      await client.call("POST /v0/webhooks/{webhook}/resume", { path, body: {} });
      say(`${name} delivers again; what has failed is tried at once`);
      done();
    });
  const wrong = obstacle(item);
  return (
    <>
      <div>
        <p class="crumbs"><span><a href={to(["webhooks"])}>Webhooks</a> /</span><HeldNote behind={held.behind} /></p>
        <h1><Foreign text={name} /></h1>
        <div class="under">
          <span class="grow"><State item={item} /></span>
          {can("admin") && (
            <>
              <Button disabled={action.busy} onClick={() => void action.run(async () => setOutcome(await client.call("POST /v0/webhooks/{webhook}/test", { path, body: {} })))}>Test</Button>
              {/* Always there, so that none of them moves another one. */}
              <Button disabled={action.busy || (!item.paused && item.retrying === 0)} onClick={resume}><Steady rooms={["Try again now"]}>{item.paused ? "Resume" : "Try again now"}</Steady></Button>
              {can("read") && <Button disabled={item.paused} onClick={() => setDoing("pause")}>Pause…</Button>}
              <Button onClick={() => setDoing("rotate")}>Rotate…</Button>
              <Button kind="danger" onClick={() => setDoing("remove")}>Remove…</Button>
            </>
          )}
        </div>
      </div>
      <Trouble text={(action.error ?? look.error)?.message} />
      <div class="sections" {...held.on}>
        <section class="card" aria-label="Status">
          <div class="body">
            <dl class="facts">
              <dt>What is wrong</dt><dd>{wrong === undefined ? <span class="muted">nothing</span> : <span class={isWrong(item) ? "bad" : item.paused ? "" : "warn"}><Foreign text={wrong} /></span>}{item.paused_ts !== null && <>, since <Relative ms={item.paused_ts} past="" /></>}</dd>
              <dt>Next attempt</dt><dd>{item.next_retry_ts === null || item.paused ? <span class="muted">{item.paused ? "after it is resumed" : "none is waiting"}</span> : <><Relative ms={item.next_retry_ts} />, for {plural(item.retrying, "record")}</>}</dd>
              <dt>Lag</dt><dd class="number">{plural(item.lag, "record")}, everything up to seq {count(item.cursor)} is done</dd>
              <dt>Topic</dt><dd><a href={to(["topics", item.topic])}><Foreign text={item.topic} /></a>{item.tag !== null && <>, only the tag <Foreign text={item.tag} /></>}</dd>
              <dt>To</dt><dd><Foreign text={item.url} /></dd>
              <dt>Body</dt><dd>{item.format}</dd>
              {Object.keys(item.headers).length > 0 && <><dt>Headers</dt><dd><Foreign text={Object.keys(item.headers).join(", ")} /> <span class="muted">(values are not shown)</span></dd></>}
              <dt>Order</dt><dd>by {item.order}, {plural(item.concurrency, "message")} at a time</dd>
              <dt>Given up after</dt><dd>{plural(item.max_attempts, "attempt")} of {span(item.timeout_ms)}, pauses of {span(item.backoff_ms)} to {span(item.backoff_ms_max)}</dd>
              <dt>Dead letters</dt><dd>{item.dead_letter === null ? <span class="muted">none: it pauses instead</span> : <a href={to(["topics", item.dead_letter])}><Foreign text={item.dead_letter} /></a>}</dd>
              <dt>Delivered</dt><dd class="number">{count(item.delivered_total)}, {plural(item.failed_total, "failed attempt")}, {count(item.dead_total)} given up{item.lost_total > 0 && <span class="bad">, {count(item.lost_total)} removed before they were delivered</span>}</dd>
              <dt>Secrets</dt><dd>{item.secrets.map((secret) => <div><span class="mono">{secret.hint}</span>{secret.until_ts !== null && <span class="muted"> signs as well, ends <Relative ms={secret.until_ts} /></span>}</div>)}</dd>
            </dl>
          </div>
        </section>
        <Attempts attempts={item.attempts} topic={item.topic} />
      </div>
      {doing === "pause" && <Pause item={item} onClose={() => setDoing(undefined)} onDone={done} />}
      {doing === "rotate" && <Rotate name={name} onClose={() => setDoing(undefined)} onDone={done} />}
      {doing === "remove" && <Remove item={item} onClose={() => setDoing(undefined)} />}
      {outcome !== undefined && (
        <Dialog title={outcome.delivered ? "The test was accepted" : "The test was not accepted"} onClose={() => setOutcome(undefined)}>
          <p><Badge kind={outcome.delivered ? "ok" : "bad"}>{outcome.status === 0 ? "no answer" : `status ${outcome.status}`}</Badge> after {span(outcome.took_ms)}{outcome.error !== null && <>: <Foreign text={outcome.error} /></>}</p>
          {outcome.answer !== "" && <pre class="json" tabIndex={0} aria-label="Answer"><Foreign text={outcome.answer} max={2_000} /></pre>}
          <p class="muted small">The message of a test is no record: its position stays.</p>
        </Dialog>
      )}
    </>
  );
}

/** The newest on top. */
function Attempts({ attempts, topic }: { attempts: AttemptItem[]; topic: string }) {
  return (
    <section class="card" aria-label="Last attempts">
      <header><h2>Last attempts</h2></header>
      {attempts.length === 0 ? (
        <p class="body muted">None since the server started.</p>
      ) : (
        <div class="scroll">
          <table aria-label="Last attempts">
            <thead><tr><th scope="col">Time</th><th scope="col" class="right">Seq</th><th scope="col" class="right wide-only">Attempt</th><th scope="col">Answer</th><th scope="col" class="right wide-only">Took</th><th scope="col">Next</th></tr></thead>
            <tbody>
              {[...attempts].sort((one, other) => other.ts - one.ts).map((attempt) => (
                <tr>
                  <td><Time ms={attempt.ts} /></td>
                  <td class="right number"><a href={to(["topics", topic, "records"], { seq: attempt.seq })}>{count(attempt.seq)}</a></td>
                  <td class="right number wide-only">{count(attempt.attempt)}</td>
                  <td><Badge kind={attempt.status >= 200 && attempt.status < 300 ? "ok" : "bad"}>{attempt.status === 0 ? "none" : attempt.status}</Badge> {attempt.error !== null && <span class="small"><Foreign text={attempt.error} max={200} /></span>}</td>
                  <td class="right number nowrap wide-only">{span(attempt.took_ms)}</td>
                  <td class="muted nowrap">{attempt.next_ts === null ? "–" : <Relative ms={attempt.next_ts} />}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

type DialogProps = { item: WebhookReply; onClose: () => void };

/** A pause is a PUT of all that it is: the values of headers, which nobody is shown, have to be said again. */
function Pause({ item, onClose, onDone }: DialogProps & { onDone: () => void }) {
  const names = Object.keys(item.headers);
  const [values, setValues] = useState<{ [name: string]: string }>({});
  const action = useAction();
  const { topic, url, tag, format, timeout_ms, concurrency, order, max_attempts, backoff_ms, backoff_ms_max, dead_letter, pause_after } = item;
  const submit = () =>
    void action.run(async () => {
      const body: WebhookRequest = { topic, url, tag, format, timeout_ms, concurrency, order, max_attempts, backoff_ms, backoff_ms_max, dead_letter, pause_after, paused: true, headers: values };
      await client.call("PUT /v0/webhooks/{webhook}", { path: { webhook: item.webhook }, body });
      say(`${item.webhook} is paused; resumed, it goes on where it was`);
      onDone();
    });
  const ready = names.every((name) => (values[name] ?? "") !== "") && !action.busy;
  return (
    <Dialog title={`Pause ${item.webhook}`} onClose={onClose} onSubmit={() => ready && submit()} actions={<Button kind="primary" type="submit" disabled={!ready}>Pause the webhook</Button>}>
      <p>Nothing is delivered until it is resumed; then it goes on with {item.lag === 0 ? "what came in between" : `the ${plural(item.lag, "record")} that wait and what came in between`}.</p>
      {names.length > 0 && <p class="muted">The values of its headers are not shown to anybody. To keep them, enter them again.</p>}
      {names.map((name) => <Input label={name} type="password" value={values[name] ?? ""} onInput={(value) => setValues({ ...values, [name]: value })} required />)}
      <Problem error={action.error} />
    </Dialog>
  );
}

/** A secret is shown once: by whoever makes it. */
function Secret({ secret, title, onClose }: { secret: string; title: string; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose}>
      <p>The receiver checks signatures with this secret. <strong>It is not shown again.</strong></p>
      <pre class="commands" tabIndex={0} aria-label="Secret"><code class="foreign">{secret}</code></pre>
      <div><Copy text={() => secret}>Copy the secret</Copy></div>
    </Dialog>
  );
}

function Rotate({ name, onClose, onDone }: { name: string; onClose: () => void; onDone: () => void }) {
  const [grace, setGrace] = useState<(typeof GRACE)[number][0]>("86400000");
  const [secret, setSecret] = useState<string>();
  const action = useAction(["grace_ms"]);
  if (secret !== undefined) return <Secret secret={secret} title={`The new secret of ${name}`} onClose={onDone} />;
  const submit = () =>
    void action.run(async () => {
      const made = await client.call("POST /v0/webhooks/{webhook}/rotate", { path: { webhook: name }, body: { grace_ms: Number(grace) } });
      setSecret(made.secret ?? "");
    });
  return (
    <Dialog title={`Rotate the secret of ${name}`} onClose={onClose} onSubmit={submit} actions={<Button kind="primary" type="submit" disabled={action.busy}>Make a new secret</Button>}>
      <p>The server makes a new secret. Until the old one ends, messages are signed with both: change the receiver in that time.</p>
      <Select label="The old one signs as well for" value={grace} options={GRACE} onChange={setGrace} />
      <Problem error={action.error} />
    </Dialog>
  );
}

function Remove({ item, onClose }: DialogProps) {
  const action = useAction();
  const run = () =>
    void action.run(async () => {
      await client.call("DELETE /v0/webhooks/{webhook}", { path: { webhook: item.webhook } });
      say(`Removed ${item.webhook}`);
      go(["webhooks"]);
    });
  return (
    <Confirm title="Remove the webhook?" name={item.webhook} verb="Remove the webhook" busy={action.busy} error={action.error} onClose={onClose} onConfirm={run}>
      <p><strong class="foreign">{item.webhook}</strong> stops delivering <strong class="foreign">{item.topic}</strong>, and its position and secrets are gone. {item.lag === 0 ? "Nothing waits for delivery." : <><strong>{plural(item.lag, "record")}</strong> that {item.lag === 1 ? "waits" : "wait"} for delivery {item.lag === 1 ? "stays" : "stay"} in the topic, undelivered.</>}</p>
    </Confirm>
  );
}

function Create({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [topic, setTopic] = useState("");
  const [url, setUrl] = useState("");
  const [from, setFrom] = useState<"head" | "earliest">("head");
  const [tag, setTag] = useState("");
  const [letters, setLetters] = useState("");
  const [made, setMade] = useState<WebhookReply>();
  const action = useAction(["webhook", "topic", "url", "tag", "dead_letter"]);
  const leave = () => {
    onClose();
    go(["webhooks", name]);
  };
  if (made !== undefined) return <Secret secret={made.secret ?? ""} title={`Created ${made.webhook}`} onClose={leave} />;
  const ready = name !== "" && topic !== "" && url !== "" && !action.busy;
  const submit = () =>
    void action.run(async () => {
      const body: WebhookRequest = { topic, url, from, ...(tag === "" ? {} : { tag }), ...(letters === "" ? {} : { dead_letter: letters }) };
      const reply = await client.call("PUT /v0/webhooks/{webhook}", { path: { webhook: name }, body });
      if (reply.secret === undefined) return leave();
      setMade(reply);
    });
  return (
    <Dialog title="Create a webhook" onClose={onClose} onSubmit={() => ready && submit()} actions={<Button kind="primary" type="submit" disabled={!ready}>Create</Button>}>
      <Input label="Name" value={name} onInput={setName} error={action.about("webhook")} hint="A webhook of this name is replaced." autoFocus required />
      <Input label="Topic" value={topic} onInput={setTopic} error={action.about("topic")} hint="A log that exists." required />
      <Input label="URL" value={url} onInput={setUrl} error={action.about("url")} placeholder="https://shop.example.org/hook" required />
      <Select label="Start" value={from} options={[["head", "with what comes next"], ["earliest", "at the earliest record"]]} onChange={setFrom} />
      <Input label="Only records with this tag" value={tag} onInput={setTag} error={action.about("tag")} />
      {can("write") && <Input label="Dead-letter topic" value={letters} onInput={setLetters} error={action.about("dead_letter")} hint="Where records go that are given up. Empty: the webhook pauses instead." />}
      <Problem error={action.error} />
    </Dialog>
  );
}
