/** Apps that write transactions, and their stages that are neither committed nor aborted. */

import { useState } from "preact/hooks";
import type { StageItem } from "topics-client";
import { bytes, count, plural } from "../format.ts";
import { to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Button, Confirm, Empty, Foreign, HeldNote, Input, Pager, Relative, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const PAGE = 100;

export function Transactions({ app }: { app: string | undefined }) {
  return app === undefined ? <Apps /> : <App key={app} name={app} />;
}

function Apps() {
  const [prefix, setPrefix] = useState("");
  const [cursors, setCursors] = useState<string[]>([]);
  const cursor = cursors.at(-1);
  const list = useResource((signal) => client.call("GET /v0/txns", { query: { prefix, page_size: PAGE, ...(cursor === undefined ? {} : { cursor }) }, signal }), [prefix, cursor], EVERY_MS);
  const held = useHeld(list.data?.apps, JSON.stringify([prefix, cursor]));
  const apps = held.shown;
  return (
    <>
      <div class="head"><h1>Transactions</h1></div>
      <section class="card">
        <div class="toolbar"><Input label="App starts with" type="search" value={prefix} onInput={setPrefix} /><HeldNote behind={held.behind} /></div>
        <Trouble text={list.error?.message} />
        {apps !== undefined && apps.length === 0 ? (
          <Empty title="No transactions"><p>Programs that stage records and commit them to several topics at once appear here, with what they have not committed yet.</p></Empty>
        ) : (
          <div class="scroll" {...held.on}>
            <table aria-label="Apps">
              <thead><tr><th scope="col">App</th><th scope="col" class="right">Committed version</th><th scope="col" class="right wide-only">Fence</th><th scope="col" class="right">Open stages</th><th scope="col" class="right">Size</th></tr></thead>
              <tbody>
                {apps?.map((item) => (
                  <tr key={item.app}>
                    <td><a href={to(["transactions", item.app])}><Foreign text={item.app} /></a></td>
                    <td class="right number">{item.version === null ? "none" : count(item.version)}</td>
                    <td class="right number wide-only">{count(item.fence)}</td>
                    <td class="right number">{item.stages === 0 ? "0" : <Badge kind="warn">{count(item.stages)}</Badge>}</td>
                    <td class="right number">{bytes(item.bytes)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <Pager cursors={cursors} next={list.data?.next_cursor} onChange={setCursors} />
      </section>
    </>
  );
}

function App({ name }: { name: string }) {
  const look = useResource((signal) => client.call("GET /v0/txns/{app}", { path: { app: name }, signal }), [name], EVERY_MS);
  const [aborting, setAborting] = useState<StageItem>();
  // Rises with what is done here: that is shown at once.
  const [turn, setTurn] = useState(0);
  const action = useAction();
  const held = useHeld(look.data, String(turn));
  const app = held.shown;
  return (
    <>
      <div>
        <p class="crumbs"><a href={to(["transactions"])}>Transactions</a> /</p>
        <div class="head"><h1><Foreign text={name} /></h1>{app !== undefined && <span class="muted number">{app.version === null ? "nothing committed yet" : `committed version ${count(app.version)}`} · fence {count(app.fence)}</span>}<HeldNote behind={held.behind} /></div>
      </div>
      <Trouble text={look.error?.message} />
      {app !== undefined && (
        <section class="card">
          {app.stages.length === 0 ? (
            <Empty title="No open stages"><p>Everything that this app staged is committed or aborted.</p></Empty>
          ) : (
            <div class="scroll" {...held.on}>
              <table aria-label="Open stages">
                <thead><tr><th scope="col">Stage</th><th scope="col" class="right">Version</th><th scope="col" class="right">Parts</th><th scope="col" class="right">Records</th><th scope="col" class="right">Size</th><th scope="col">Since</th><th scope="col" class="wide-only">Owner</th><th scope="col">Expires</th>{can("write") && <th scope="col"><span class="sr">Actions</span></th>}</tr></thead>
                <tbody>
                  {app.stages.map((stage) => (
                    <tr key={`${stage.version} ${stage.stage}`}>
                      <td><Foreign text={stage.stage} /></td>
                      <td class="right number">{count(stage.version)}</td>
                      <td class="right number">{count(stage.parts)}</td>
                      <td class="right number">{count(stage.records)}</td>
                      <td class="right number">{bytes(stage.bytes)}</td>
                      <td><Relative ms={stage.created_ms} /></td>
                      <td class="wide-only">{stage.owner === null ? <span class="muted">no token</span> : <Foreign text={stage.owner} />}</td>
                      <td><Relative ms={stage.expires_ms} /></td>
                      {can("write") && <td class="right"><Button kind="danger" onClick={() => setAborting(stage)}>Abort…</Button></td>}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </section>
      )}
      {aborting !== undefined && (
        <Confirm
          title="Abort the stage?"
          verb="Abort the stage"
          busy={action.busy}
          error={action.error}
          onClose={() => setAborting(undefined)}
          onConfirm={() =>
            void action.run(async () => {
              await client.call("POST /v0/txns/{app}/{version}/abort", { path: { app: name, version: aborting.version }, body: { stages: [aborting.stage], ...(app!.fence > 0 ? { fence: app!.fence } : {}) } });
              say(`Aborted ${aborting.stage}`);
              setAborting(undefined);
              setTurn(turn + 1);
              look.reload();
            })
          }
        >
          <p>Stage <strong class="foreign">{aborting.stage}</strong> of version {count(aborting.version)} is dropped with <strong>{plural(aborting.records, "record")}</strong>. Its writer{aborting.owner === null ? "" : <>, <strong class="foreign">{aborting.owner}</strong>,</>} has to begin again.</p>
        </Confirm>
      )}
    </>
  );
}
