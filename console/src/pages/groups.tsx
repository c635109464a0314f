/** Consumer groups: lag by partition, what is claimed, and a reset that shows first what it does. */

import { useState } from "preact/hooks";
import type { GroupItem, GroupResetReply } from "topics-client";
import { count, plural } from "../format.ts";
import { place, to } from "../route.ts";
import { can, client } from "../session.ts";
import { Badge, Button, Dialog, Empty, Foreign, HeldNote, Input, Pager, Problem, Relative, Select, Trouble, say } from "../ui/parts.tsx";
import { useHeld } from "../ui/held.ts";
import { useAction, useResource } from "../ui/resource.ts";

const EVERY_MS = 2_000;
const PAGE = 200;

export function Groups() {
  const query = place.value.query;
  const [topic, setTopic] = useState(query.get("topic") ?? "");
  const [group, setGroup] = useState(query.get("group") ?? "");
  const [behind, setBehind] = useState(false);
  const [cursors, setCursors] = useState<string[]>([]);
  const [resetting, setResetting] = useState<GroupItem>();
  const cursor = cursors.at(-1);
  const asked = { ...(topic === "" ? {} : { topic }), ...(group === "" ? {} : { group }), lag_min: behind ? 1 : 0, page_size: PAGE, ...(cursor === undefined ? {} : { cursor }) };
  const list = useResource((signal) => client.call("GET /v0/groups", { query: asked, signal }), [topic, group, behind, cursor], EVERY_MS);
  const held = useHeld(list.data?.groups, JSON.stringify([topic, group, behind, cursor]));
  const groups = held.shown;
  const most = Math.max(1, ...(groups ?? []).map((item) => item.lag));
  return (
    <>
      <div class="head"><h1>Consumer groups</h1></div>
      <section class="card">
        <div class="toolbar">
          <Input label="Topic" type="search" value={topic} onInput={setTopic} />
          <Input label="Group" type="search" value={group} onInput={setGroup} />
          <Button pressed={behind} kind={behind ? "primary" : "plain"} onClick={() => setBehind(!behind)}>Only those behind</Button>
          <HeldNote behind={held.behind} />
        </div>
        <Trouble text={list.error?.message} />
        {groups !== undefined && groups.length === 0 ? (
          <Empty title={topic === "" && group === "" && !behind ? "No groups yet" : "Nothing matches"}>
            <p>Consumers that read a topic under a common name share its records; the server remembers how far they are.</p>
          </Empty>
        ) : (
          <div class="scroll" {...held.on}>
            <table aria-label="Consumer groups">
              <thead><tr><th scope="col">Group</th><th scope="col">Topic</th><th scope="col" class="right wide-only">Partition</th><th scope="col" class="right">Lag</th><th scope="col" class="wide-only"><span class="sr">Lag as a bar</span></th><th scope="col" class="right wide-only">Committed</th><th scope="col" class="wide-only">Claimed by</th>{can("admin") && <th scope="col"><span class="sr">Actions</span></th>}</tr></thead>
              <tbody>
                {groups?.map((item) => (
                  <tr key={`${item.topic} ${item.partition} ${item.group}`}>
                    <td><Foreign text={item.group} />{item.open_claims > 0 && <span class="narrow-only muted small">{plural(item.open_claims, "claim")} open</span>}</td>
                    <td><a href={to(["topics", item.partition === 0 ? item.topic : `${item.topic}:p${item.partition}`])}><Foreign text={item.topic} /></a></td>
                    <td class="right number wide-only">{item.partition}</td>
                    <td class="right number">{item.lag === 0 ? <Badge kind="ok">up to date</Badge> : count(item.lag)}</td>
                    <td class="wide-only"><span class="meter"><i style={{ width: `${(100 * item.lag) / most}%` }} /></span></td>
                    <td class="right number wide-only">{item.committed_offset === null ? "–" : count(item.committed_offset)} / {item.last_offset === null ? "–" : count(item.last_offset)}</td>
                    <td class="small wide-only">
                      {item.claims.length === 0 ? <span class="muted">none open</span> : item.claims.slice(0, 3).map((claim) => <Claim claim={claim} />)}
                      {item.open_claims > 3 && <div class="muted">and {item.open_claims - 3} more</div>}
                      {item.expired_claims > 0 && <div class="warn">{plural(item.expired_claims, "expired claim")}</div>}
                    </td>
                    {can("admin") && <td class="right"><Button kind="quiet" label={`Reset ${item.group} in ${item.topic}`} onClick={() => setResetting(item)}>Reset…</Button></td>}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <Pager cursors={cursors} next={list.data?.next_cursor} onChange={setCursors} />
      </section>
      {resetting !== undefined && <Reset item={resetting} onClose={() => setResetting(undefined)} onDone={list.reload} />}
    </>
  );
}

/** What one consumer holds, and until when. */
function Claim({ claim }: { claim: GroupItem["claims"][number] }) {
  return (
    <div>
      {claim.member === null ? <span class="muted">a consumer without a name</span> : <Foreign text={claim.member} max={40} />}:{" "}
      <span class="number nowrap">{count(claim.from_offset)} – {count(claim.to_offset)}</span>, ends <Relative ms={claim.deadline} />
    </div>
  );
}

function Reset({ item, onClose, onDone }: { item: GroupItem; onClose: () => void; onDone: () => void }) {
  const [where, setWhere] = useState<"Earliest" | "Latest" | "Offset" | "forget">("Earliest");
  const [offset, setOffset] = useState("0");
  const [all, setAll] = useState<"all" | "one">("all");
  const [preview, setPreview] = useState<GroupResetReply>();
  const action = useAction(["start"]);
  const body = (dryRun: boolean) => ({
    topic: item.topic,
    group: item.group,
    dry_run: dryRun,
    ...(all === "one" ? { partition: item.partition } : {}),
    ...(where === "forget" ? { forget: true } : { start: where === "Offset" ? { Offset: Number(offset) } : where }),
  });
  const change = <T,>(set: (value: T) => void) => (value: T) => {
    set(value);
    setPreview(undefined);
  };
  const submit = () =>
    void action.run(async () => {
      if (preview === undefined) return setPreview(await client.call("POST /v0/groups/reset", { body: body(true) }));
      await client.call("POST /v0/groups/reset", { body: body(false) });
      say(where === "forget" ? `Forgot ${item.group} in ${item.topic}` : `Reset ${item.group} in ${item.topic}`);
      onDone();
      onClose();
    });
  return (
    <Dialog title={`Reset ${item.group}`} onClose={onClose} onSubmit={submit} actions={<Button kind={preview === undefined ? "primary" : "danger fill"} type="submit" disabled={action.busy}>{preview === undefined ? "Preview" : where === "forget" ? "Forget the group" : "Reset the group"}</Button>}>
      <p class="muted">Stop the group's consumers first: what they hold now is void after a reset.</p>
      <Select label="Go on" value={where} options={[["Earliest", "at the earliest record"], ["Latest", "with what comes next"], ["Offset", "at an offset"], ["forget", "nowhere: forget the group"]]} onChange={change(setWhere)} />
      {where === "Offset" && <Input label="Offset" value={offset} onInput={change(setOffset)} error={action.about("start") ?? (/^\d+$/.test(offset) ? undefined : "A whole number")} />}
      <Select label="Partitions" value={all} options={[["all", "all of the topic"], ["one", `only partition ${item.partition}`]]} onChange={change(setAll)} />
      {preview !== undefined && (
        <table aria-label="What the reset does">
          <thead><tr><th scope="col">Partition</th><th scope="col" class="right">Offset</th><th scope="col" class="right">Records to read</th></tr></thead>
          <tbody>
            {preview.partitions.map((one) => (
              <tr><td>{one.partition}</td><td class="right number">{count(one.offset_before)} → {count(one.next_offset)}</td><td class="right number">{count(one.lag_before)} → {count(one.lag)}</td></tr>
            ))}
          </tbody>
        </table>
      )}
      <Problem error={action.error} />
    </Dialog>
  );
}
