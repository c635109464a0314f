/** The server: settings and where they come from, keys, files, its log, a backup, and every endpoint to try. */

import { useEffect, useState } from "preact/hooks";
import type { ServerReply } from "topics-client";
import { ApiError } from "topics-client";
import { bytes, count, plural, span } from "../format.ts";
import { to } from "../route.ts";
import { can, client, has, readOnly, type Scope } from "../session.ts";
import { Badge, Button, Confirm, Empty, Field, Foreign, HeldNote, Input, Json, Problem, Tabs, Tile, Time, Trouble, download } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 5_000;

export function Server({ tab }: { tab: string }) {
  const look = useResource((signal) => client.call("GET /v0/server", { query: { log_lines: 200 }, signal }), [], EVERY_MS);
  const held = useHeld(look.data, tab);
  const server = held.shown;
  const link = (key: string, name: string) => ({ name, href: to(["server", key]), on: tab === key });
  return (
    <>
      <div class="head"><h1>Server</h1><HeldNote behind={held.behind && tab !== "api"} /></div>
      <Trouble text={look.error?.message} />
      {server !== undefined && (
        <dl class="tiles">
          <Tile name="Version" value={server.version} note={`Python ${server.python}`} />
          <Tile name="Up for" value={span(Math.floor(server.uptime_ms / 1_000) * 1_000)} note={`pid ${server.pid}`} />
          <Tile name="Memory" value={bytes(server.memory_bytes)} />
          <Tile name="Files" value={bytes(server.files.reduce((sum, group) => sum + group.bytes, 0))} />
          <Tile name="Free disk" value={bytes(server.disk_free_bytes)} note={`of ${bytes(server.disk_bytes)}`} />
        </dl>
      )}
      <Tabs label="Parts of the server" items={[link("settings", "Settings"), link("keys", "Keys"), link("files", "Files and backup"), link("log", "Log"), link("api", "API")]} />
      {server !== undefined && <div class="sections" {...held.on}><Body tab={tab} server={server} /></div>}
    </>
  );
}

function Body({ tab, server }: { tab: string; server: ServerReply }) {
  switch (tab) {
    case "keys":
      return <Keys server={server} />;
    case "files":
      return <Files server={server} />;
    case "log":
      return <Log server={server} />;
    case "api":
      return <Api />;
    default:
      return <Settings server={server} />;
  }
}

function Settings({ server }: { server: ServerReply }) {
  const [text, setText] = useState("");
  const rows = server.settings.filter((row) => `${row.name} ${row.help}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <section class="card">
      <div class="toolbar"><Input label="Search" type="search" value={text} onInput={setText} /></div>
      <div class="scroll">
        <table aria-label="Settings">
          <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">Origin</th><th scope="col" class="wide-only">Meaning</th></tr></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <td class="mono nowrap">{row.name}</td>
                <td class="mono value">{row.secret ? (row.origin === "default" ? <span class="muted">not set</span> : "•••••• not shown") : row.value === null ? <span class="muted">not set</span> : typeof row.value === "object" ? JSON.stringify(row.value) : typeof row.value === "number" ? count(row.value) : String(row.value)}</td>
                <td>{row.origin === "default" ? <span class="muted">default</span> : <Badge kind="accent">{row.origin}</Badge>}</td>
                <td class="muted small wide-only"><Ticks text={row.help} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Help texts mark names by backticks. */
function Ticks({ text }: { text: string }) {
  return <>{text.split("`").map((piece, index) => (index % 2 === 1 ? <code>{piece}</code> : piece))}</>;
}

function Keys({ server }: { server: ServerReply }) {
  return (
    <section class="card">
      {server.keys.length === 0 ? (
        <Empty title="No API keys"><p>Everyone who reaches this server may do everything. Set <code>TOPICS_API_KEYS</code> to change that.</p></Empty>
      ) : (
        <div class="scroll">
          <table aria-label="API keys">
            <thead><tr><th scope="col">Key</th><th scope="col">Scopes</th><th scope="col">Names</th><th scope="col" class="right">Requests now</th><th scope="col" class="right">Streams</th></tr></thead>
            <tbody>
              {server.keys.map((key) => (
                <tr><td>{key.key}</td><td>{key.scopes.map((scope) => <Badge>{scope}</Badge>)}</td><td class="foreign">{key.prefixes.length === 0 ? <span class="muted">all</span> : key.prefixes.map((prefix) => `${prefix}*`).join(", ")}</td><td class="right number">{count(key.in_flight)}</td><td class="right number">{count(key.streams)}</td></tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Files({ server }: { server: ServerReply }) {
  return (
    <>
      <section class="card">
        <header><h2 class="grow">Data files</h2><span class="muted mono foreign">{server.data_dir}</span></header>
        <div class="scroll">
          <table aria-label="Data files">
            <thead><tr><th scope="col">Kind</th><th scope="col" class="right">Files</th><th scope="col" class="right">Size</th><th scope="col">Where</th></tr></thead>
            <tbody>{server.files.map((group) => <tr><td>{group.kind}</td><td class="right number">{count(group.files)}</td><td class="right number">{bytes(group.bytes)}</td><td class="mono small foreign">{group.path}</td></tr>)}</tbody>
          </table>
        </div>
      </section>
      {can("admin") && <Backup />}
    </>
  );
}

interface SavePicker {
  showSaveFilePicker?: (options: { suggestedName: string }) => Promise<{ createWritable: () => Promise<WritableStream<Uint8Array>> }>;
}

function Backup() {
  const action = useAction();
  const [got, setGot] = useState<{ done: number; of: number }>();
  const [stop, setStop] = useState<AbortController>();
  const run = () =>
    void action.run(async () => {
      const name = `topics-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.tar`;
      // With a picker the copy goes to disk as it comes; without one it is collected first.
      const picked = await (window as unknown as SavePicker).showSaveFilePicker?.({ suggestedName: name });
      const control = new AbortController();
      setStop(control);
      const response = await client.request("GET", "/v0/backup", undefined, { signal: control.signal });
      const of = Number(response.headers.get("Topics-Backup-Bytes") ?? 0);
      let done = 0;
      const counted = response.body!.pipeThrough(
        new TransformStream<Uint8Array, Uint8Array>({
          transform(piece, controller) {
            done += piece.byteLength;
            setGot({ done, of });
            controller.enqueue(piece);
          },
        }),
      );
      if (picked !== undefined) await counted.pipeTo(await picked.createWritable());
      else download(name, await new Response(counted).blob(), "application/x-tar");
    }).finally(() => setStop(undefined));
  return (
    <section class="card">
      <header><h2>Backup</h2></header>
      <div class="body stack">
        <p class="muted">A copy of everything that was acknowledged up to now. <code>topics restore</code> checks it and makes a data directory of it.</p>
        <div class="row">
          <Button kind="primary" disabled={action.busy} onClick={run}>Download a backup</Button>
          {stop !== undefined && <Button onClick={() => stop.abort()}>Cancel</Button>}
          <span role="status" class="muted number">{got !== undefined && `${bytes(got.done)}${got.of > 0 ? ` of ${bytes(got.of)}` : ""}`}</span>
        </div>
        <Problem error={action.error?.name === "AbortError" ? undefined : action.error} />
      </div>
    </section>
  );
}

function Log({ server }: { server: ServerReply }) {
  const kinds: { [level: string]: "" | "warn" | "bad" } = { warning: "warn", error: "bad", critical: "bad" };
  return (
    <section class="card">
      <div class="scroll">
        <table aria-label="The last lines of the log">
          <thead><tr><th scope="col">Time</th><th scope="col">Level</th><th scope="col">Message</th></tr></thead>
          <tbody>{[...server.log].reverse().map((line) => <tr><td><Time ms={line.ts} /></td><td><Badge kind={kinds[line.level] ?? ""}>{line.level}</Badge></td><td class="small text"><Foreign text={line.message} /> <span class="muted">{line.logger}</span></td></tr>)}</tbody>
        </table>
      </div>
    </section>
  );
}

interface Operation {
  method: string;
  path: string;
  summary: string;
  scopes: string[];
  parameters: { name: string; in: string; required: boolean; description?: string; schema: unknown }[];
  body: unknown;
  /** By status: what it means, and the schema of its body if it has one. */
  replies: { status: string; means: string; schema: unknown }[];
}

interface Content {
  content?: { "application/json"?: { schema: unknown } };
}

interface Document {
  paths: { [path: string]: { [method: string]: { summary: string; security?: { [name: string]: string[] }[]; parameters?: Operation["parameters"]; requestBody?: Content; responses?: { [status: string]: Content & { description: string } } } } };
  components: { schemas: { [name: string]: unknown } };
}

/** A schema with the others that it names in their places; one within itself stays a name. */
function resolved(schema: unknown, schemas: Document["components"]["schemas"], within: string[] = []): unknown {
  if (Array.isArray(schema)) return schema.map((part) => resolved(part, schemas, within));
  if (typeof schema !== "object" || schema === null) return schema;
  const ref = (schema as { $ref?: string }).$ref?.split("/").at(-1);
  if (ref !== undefined) return within.includes(ref) ? { $ref: ref } : resolved(schemas[ref], schemas, [...within, ref]);
  return Object.fromEntries(Object.entries(schema).map(([name, part]) => [name, resolved(part, schemas, within)]));
}

/** A body to begin with: the required fields, each with an empty value of its kind. */
function example(schema: unknown): unknown {
  const { type, properties, required, items, anyOf, enum: choices, minItems } = schema as { type?: string; properties?: { [name: string]: unknown }; required?: string[]; items?: unknown; anyOf?: unknown[]; enum?: unknown[]; minItems?: number };
  if (choices !== undefined) return choices[0];
  if (anyOf !== undefined) return example(anyOf[0]);
  if (type === "object") return Object.fromEntries((required ?? []).map((name) => [name, example(properties?.[name] ?? {})]));
  if (type === "array") return minItems === undefined ? [] : [example(items ?? {})];
  return { string: "", integer: 0, number: 0, boolean: false }[type ?? ""] ?? null;
}

function Api() {
  const [document, setDocument] = useState<Document>();
  const [text, setText] = useState("");
  const [open, setOpen] = useState("");
  useEffect(() => {
    void client.text("GET", "/v0/openapi.json").then((found) => setDocument(JSON.parse(found) as Document), () => undefined);
  }, []);
  if (document === undefined) return <p class="muted">Loading…</p>;
  const operations: Operation[] = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, found]) => {
      const schemaOf = (content: Content | undefined) => {
        const schema = content?.content?.["application/json"]?.schema;
        return schema === undefined ? undefined : resolved(schema, document.components.schemas);
      };
      return {
        method: method.toUpperCase(),
        path,
        summary: found.summary,
        scopes: Object.values(found.security?.[0] ?? {})[0] ?? [],
        parameters: found.parameters ?? [],
        body: schemaOf(found.requestBody),
        replies: Object.entries(found.responses ?? {}).map(([status, reply]) => ({ status, means: reply.description, schema: schemaOf(reply) })),
      };
    }),
  );
  const shown = operations.filter((one) => `${one.method} ${one.path} ${one.summary}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <section class="card">
      <div class="toolbar"><Input label="Search" type="search" value={text} onInput={setText} /><span class="muted number hint-line">{plural(shown.length, "endpoint")}</span></div>
      <ul>
        {shown.map((one) => {
          const key = `${one.method} ${one.path}`;
          return (
            <li class="attention-like">
              <details open={open === key} onToggle={(event) => event.currentTarget.open && setOpen(key)}>
                <summary class="endpoint">
                  <span class="method"><Badge kind={one.method === "GET" ? "ok" : one.method === "DELETE" ? "bad" : "accent"}>{one.method}</Badge></span>
                  <code>{one.path}</code>
                  <span class="muted small">{one.summary}</span>
                  <span class="muted small scopes">{one.scopes.join(" + ")}</span>
                </summary>
                {open === key && <Try operation={one} />}
              </details>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function Try({ operation }: { operation: Operation }) {
  const [values, setValues] = useState<{ [name: string]: string }>({});
  const [body, setBody] = useState(operation.body === undefined ? "" : JSON.stringify(example(operation.body), null, 2));
  const [answer, setAnswer] = useState<{ status: number; text: string; ms: number }>();
  const action = useAction();
  const inPlace = (where: string) => operation.parameters.filter((parameter) => parameter.in === where);
  const reads = operation.method === "GET" || operation.path.endsWith("/diff");
  const streams = /stream$|\/work$|\/ws$|\/backup$|\/watch/.test(operation.path);
  const held = operation.scopes as Scope[];
  const allowed = !streams && (reads ? held.every(has) : !readOnly.value && can(...held));
  const [asking, setAsking] = useState(false);
  const good = operation.replies.filter((reply) => reply.status < "400");
  const send = () =>
    void action.run(async () => {
      const path = operation.path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(values[name] ?? ""));
      const query = new URLSearchParams(inPlace("query").flatMap(({ name }) => (values[name] === undefined || values[name] === "" ? [] : [[name, values[name]]])));
      const began = performance.now();
      try {
        const response = await client.request(operation.method, path + (query.size > 0 ? `?${query.toString()}` : ""), body === "" ? undefined : body);
        setAnswer({ status: response.status, text: await response.text(), ms: performance.now() - began });
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        setAnswer({ status: error.status, text: JSON.stringify({ code: error.code, message: error.message, detail: error.detail }), ms: performance.now() - began });
      }
    });
  return (
    <form class="try stack" onSubmit={(event) => { event.preventDefault(); if (reads) send(); else setAsking(true); }}>
      <div class="row end">
        {[...inPlace("path"), ...inPlace("query")].map((parameter) => (
          <Input label={`${parameter.name}${parameter.required ? " *" : ""}`} value={values[parameter.name] ?? ""} onInput={(value) => setValues({ ...values, [parameter.name]: value })} hint={parameter.description} />
        ))}
      </div>
      {operation.body !== undefined && (
        <>
          <Field label="Body">{(id) => <textarea id={id} rows={5} value={body} spellcheck={false} onInput={(event) => setBody(event.currentTarget.value)} />}</Field>
          <details><summary class="small">Schema of the body</summary><Json source={JSON.stringify(operation.body)} label="Schema of the body" /></details>
        </>
      )}
      {good.map((reply) => (
        <details>
          <summary class="small">Schema of the reply {reply.status}</summary>
          {reply.schema === undefined ? <p class="muted small">{reply.means}, without JSON.</p> : <Json source={JSON.stringify(reply.schema)} label={`Schema of the reply ${reply.status}`} />}
        </details>
      ))}
      <details>
        <summary class="small">Errors</summary>
        <dl class="facts small">
          {operation.replies.filter((reply) => !good.includes(reply)).map((reply) => <><dt>{reply.status}</dt><dd class="mono">{reply.means}</dd></>)}
        </dl>
      </details>
      <div class="row">
        <Button type="submit" kind={reads ? "primary" : "danger"} disabled={action.busy || !allowed}>Send</Button>
        {streams && <span class="muted small">A stream is not shown here.</span>}
        {answer !== undefined && <span role="status"><Badge kind={answer.status < 400 ? "ok" : "bad"}>{answer.status}</Badge> <span class="muted number">{span(answer.ms)}</span></span>}
      </div>
      <Problem error={action.error} />
      {answer !== undefined && <Json source={answer.text} label="Answer" />}
      {asking && (
        <Confirm title="Send it?" verb={`Send ${operation.method}`} onClose={() => setAsking(false)} onConfirm={() => { setAsking(false); send(); }}>
          <p>{operation.summary} This may change or delete data: <code class="foreign">{operation.method} {operation.path.replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? "")}</code></p>
        </Confirm>
      )}
    </form>
  );
}
