/** Routers as a graph from left to right, with lag and rate on its edges, and as a table below. */

import { useRef, useState } from "preact/hooks";
import type { RouterItem } from "topics-client";
import { count, plural, short } from "../format.ts";
import { to } from "../route.ts";
import { can, client } from "../session.ts";
import { Graph } from "../ui/graph.tsx";
import { Badge, Button, Check, Commands, Confirm, Dialog, Empty, Foreign, HeldNote, Input, Problem, Select, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const SHOWN_MAX = 1_000;

export function Routers() {
  const list = useResource(
    async (signal) => {
      const found: RouterItem[] = [];
      let cursor: string | undefined;
      do {
        const page = await client.call("GET /v0/routers", { query: { page_size: 500, ...(cursor === undefined ? {} : { cursor }) }, signal });
        found.push(...page.routers);
        cursor = page.next_cursor;
      } while (cursor !== undefined && found.length < SHOWN_MAX);
      return { routers: found, at: Date.now() };
    },
    [],
    EVERY_MS,
  );
  const [creating, setCreating] = useState(false);
  const [removing, setRemoving] = useState<RouterItem>();
  const rates = useRates(list.data);
  const action = useAction();
  const held = useHeld(list.data?.routers, "");
  const routers = held.shown;
  return (
    <>
      <div class="head">
        <h1 class="grow">Routers</h1>
        <HeldNote behind={held.behind} />
        {can("admin") && <Button kind="primary" onClick={() => setCreating(true)}>Create a router</Button>}
      </div>
      <Trouble text={list.error?.message} />
      {routers !== undefined && routers.length === 0 && (
        <section class="card"><Empty title="No routers"><p>A router copies what is appended to one topic into another, at once and without a program.</p><Commands lines={["topics router create orders orders.audit --backfill"]} /></Empty></section>
      )}
      {routers !== undefined && routers.length > 0 && (
        <div class="sections" {...held.on}>
          <section class="card" aria-label="Graph">
            <header><h2 class="grow">{plural(routers.length, "router")}</h2><span class="muted small">Lag and records a second stand on the arrows</span></header>
            <Drawn routers={routers} rates={rates} />
          </section>
          <section class="card">
            <div class="scroll">
              <table aria-label="Routers">
                <thead><tr><th scope="col">Router</th><th scope="col">From</th><th scope="col">To</th><th scope="col" class="right">Lag</th><th scope="col" class="right wide-only">Forwarded</th><th scope="col" class="wide-only">Guarantee</th><th scope="col">State</th>{can("delete") && <th scope="col"><span class="sr">Actions</span></th>}</tr></thead>
                <tbody>
                  {routers.map((router) => (
                    <tr key={router.router}>
                      <td><Foreign text={router.router} /></td>
                      <td><a href={to(["topics", router.source])}><Foreign text={router.source} /></a></td>
                      <td><a href={to(["topics", router.dest])}><Foreign text={router.dest} /></a></td>
                      <td class="right number">{count(router.lag)}</td>
                      <td class="right number wide-only">{count(router.forwarded_total)}</td>
                      <td class="muted wide-only">{router.guarantee.replaceAll("_", " ")}</td>
                      <td>{router.last_error === null ? <Badge kind="ok">runs</Badge> : <span class="bad"><Foreign text={router.last_error} /></span>}</td>
                      {can("delete") && <td class="right"><Button kind="quiet" label={`Remove ${router.router}`} onClick={() => setRemoving(router)}>Remove</Button></td>}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </section>
        </div>
      )}
      {creating && <Create onClose={() => setCreating(false)} onDone={list.reload} />}
      {removing !== undefined && (
        <Confirm
          title="Remove the router?"
          verb="Remove the router"
          busy={action.busy}
          error={action.error}
          onClose={() => setRemoving(undefined)}
          onConfirm={() =>
            void action.run(async () => {
              await client.call("DELETE /v0/routers/{router}", { path: { router: removing.router } });
              say(`Removed ${removing.router}`);
              setRemoving(undefined);
              list.reload();
            })
          }
        >
          <p><strong class="foreign">{removing.router}</strong> stops copying from {removing.source} to {removing.dest}. The {plural(removing.forwarded_total, "record")} that it copied stay.</p>
        </Confirm>
      )}
    </>
  );
}

function useRates(data: { routers: RouterItem[]; at: number } | undefined): Map<string, number> {
  const before = useRef<{ totals: Map<string, number>; at: number } | undefined>(undefined);
  const rates = useRef(new Map<string, number>());
  if (data !== undefined && before.current?.at !== data.at) {
    const last = before.current;
    if (last !== undefined && data.at > last.at) {
      rates.current = new Map(data.routers.map((router) => [router.router, (1_000 * (router.forwarded_total - (last.totals.get(router.router) ?? router.forwarded_total))) / (data.at - last.at)]));
    }
    before.current = { totals: new Map(data.routers.map((router) => [router.router, router.forwarded_total])), at: data.at };
  }
  return rates.current;
}

function Drawn({ routers, rates }: { routers: RouterItem[]; rates: Map<string, number> }) {
  const names = [...new Set(routers.flatMap((router) => [router.source, router.dest]))];
  const nodes = names.map((name) => ({ id: name, text: name, label: `Topic ${name}`, href: to(["topics", name]) }));
  const edges = routers.map((router) => ({
    id: router.router,
    from: router.source,
    to: router.dest,
    title: `${router.router}: ${router.source} → ${router.dest}`,
    text: router.last_error !== null ? "stopped" : `${router.lag > 0 ? `${short(router.lag)} behind · ` : ""}${short(rates.get(router.router) ?? 0)}/s`,
    ...(router.last_error === null ? {} : { kind: "stopped" }),
  }));
  return <Graph nodes={nodes} edges={edges} label="Graph of routers; the table below has the same" summary={`${plural(routers.length, "router")} between ${plural(names.length, "topic")}`} />;
}

function Create({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [name, setName] = useState("");
  const [source, setSource] = useState("");
  const [dest, setDest] = useState("");
  const [tag, setTag] = useState("");
  const [guarantee, setGuarantee] = useState<"at_least_once" | "exactly_once">("at_least_once");
  const [backfill, setBackfill] = useState(false);
  const [cycle, setCycle] = useState(false);
  const action = useAction(["router", "source", "dest", "filter"]);
  const shown = name === "" && source !== "" && dest !== "" ? `${source}>${dest}` : name;
  const submit = () =>
    void action
      .run(async () => {
        const filter = tag === "" ? {} : { filter: tag.endsWith("*") ? ["tag", "Glob", tag] : tag };
        await client.call("PUT /v0/routers/{router}", { path: { router: shown }, body: { source, dest, guarantee, backfill, allow_cycle: cycle, ...filter } });
        say(`Created ${shown}`);
        onDone();
      })
      .then((done) => done && onClose());
  return (
    <Dialog title="Create a router" onClose={onClose} onSubmit={submit} actions={<Button kind="primary" type="submit" disabled={action.busy || source === "" || dest === ""}>Create</Button>}>
      <Input label="From topic" value={source} onInput={setSource} error={action.about("source")} autoFocus required />
      <Input label="To topic" value={dest} onInput={setDest} error={action.about("dest")} hint="It is created if it does not exist." required />
      <Input label="Name" value={name} onInput={setName} error={action.about("router")} placeholder={shown} />
      <Input label="Only records with this tag" value={tag} onInput={setTag} error={action.about("filter")} placeholder="user-*" />
      <Select label="Guarantee" value={guarantee} options={[["at_least_once", "at least once"], ["exactly_once", "exactly once"]]} onChange={setGuarantee} />
      <Check label="Also copy what is there already" checked={backfill} onChange={setBackfill} />
      <Check label="Allow a cycle" checked={cycle} onChange={setCycle} />
      <Problem error={action.error} />
    </Dialog>
  );
}
