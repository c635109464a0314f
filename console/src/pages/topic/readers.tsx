/** Who reads a topic: followers, groups, routers, workers; and how far behind each of them is. */

import type { ComponentChildren } from "preact";
import type { StateReply } from "topics-client";
import { count } from "../../format.ts";
import { to } from "../../route.ts";
import { client } from "../../session.ts";
import { Badge, Foreign, Problem, Relative } from "../../ui/parts.tsx";
import { useHeld } from "../../ui/held.ts";
import { useResource } from "../../ui/resource.ts";

const EVERY_MS = 2_000;

export function Readers({ topic }: { topic: StateReply }) {
  const list = useResource((signal) => client.call("GET /v0/topics/{topic}/readers", { path: { topic: topic.topic }, signal }), [topic.topic], EVERY_MS);
  const held = useHeld(list.data, topic.topic);
  const readers = held.shown;
  if (readers === undefined) return <Problem error={list.error} />;
  const lag = (value: number) => (value === 0 ? <Badge kind="ok">up to date</Badge> : <span class="number">{count(value)} behind</span>);
  return (
    <div class="charts" {...held.on}>
      <List title="Followers" total={readers.followers_total} none="Nobody follows this topic over a stream or a WebSocket.">
        {readers.followers.slice(0, 200).map((follower, index) => (
          <tr><td class="muted">Connection {index + 1}</td><td class="right number">seq {count(follower.seq)}</td><td class="right">{lag(follower.lag)} {follower.paced && <Badge kind="warn">held back</Badge>}</td></tr>
        ))}
      </List>
      <List title="Consumer groups" total={readers.groups.length} none="No group has read this topic.">
        {readers.groups.map((group) => (
          <tr><td><a href={to(["groups"], { topic: topic.topic, group: group.group })}><Foreign text={group.group} /></a></td><td class="right">{lag(group.lag)}</td></tr>
        ))}
      </List>
      <List title="Routers out" total={readers.routers_out.length} none="No router copies from this topic.">
        {readers.routers_out.map((router) => (
          <tr><td><Foreign text={router.router} /></td><td>to <a href={to(["topics", router.dest])}><Foreign text={router.dest} /></a></td><td class="right">{router.last_error === null ? lag(router.lag) : <Badge kind="bad">{router.last_error}</Badge>}</td></tr>
        ))}
      </List>
      <List title="Routers in" total={readers.routers_in.length} none="No router copies into this topic.">
        {readers.routers_in.map((router) => (
          <tr><td><Foreign text={router.router} /></td><td>from <a href={to(["topics", router.source])}><Foreign text={router.source} /></a></td><td class="right">{lag(router.lag)}</td></tr>
        ))}
      </List>
      {topic.type === "queue" && (
        <List title="Workers" total={readers.workers.length} none="No worker has claimed a job since the server started.">
          {readers.workers.map((worker) => (
            <tr><td><Foreign text={worker.worker} /></td><td class="right muted">last claim <Relative ms={worker.last_claim_ts} /></td></tr>
          ))}
        </List>
      )}
    </div>
  );
}

function List({ title, total, none, children }: { title: string; total: number; none: string; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={title}>
      <header><h2 class="grow">{title}</h2><span class="muted number">{count(total)}</span></header>
      {total === 0 ? <p class="body muted">{none}</p> : <div class="scroll"><table aria-label={title}><tbody>{children}</tbody></table></div>}
    </section>
  );
}
