/** The frame around every page: navigation, search, keys, and whether the server answers. */

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Find } from "./find.tsx";
import { Login } from "./login.tsx";
import { Groups } from "./pages/groups.tsx";
import { Overview } from "./pages/overview.tsx";
import { Pipelines } from "./pages/pipelines.tsx";
import { Routers } from "./pages/routers.tsx";
import { Schedules } from "./pages/schedules.tsx";
import { Server } from "./pages/server.tsx";
import { TopicPage } from "./pages/topic.tsx";
import { Topics } from "./pages/topics.tsx";
import { Transactions } from "./pages/transactions.tsx";
import { Webhooks } from "./pages/webhooks.tsx";
import { Icon } from "./icons.tsx";
import { go, inQueues, place, to } from "./route.ts";
import { client, forget, has, me, needsKey, reach, readOnly, seesAll } from "./session.ts";
import { Button, Dialog, Toasts } from "./ui/parts.tsx";

interface Item {
  name: string;
  path: string;
  key: string;
  allowed: () => boolean;
}

const ITEMS: readonly Item[] = [
  { name: "Overview", path: "overview", key: "o", allowed: () => has("read") },
  { name: "Topics", path: "topics", key: "t", allowed: () => has("read") },
  { name: "Queues", path: "queues", key: "q", allowed: () => has("read") },
  { name: "Routers", path: "routers", key: "r", allowed: () => has("read") },
  { name: "Groups", path: "groups", key: "g", allowed: () => has("read") },
  { name: "Webhooks", path: "webhooks", key: "w", allowed: () => has("read") },
  { name: "Schedules", path: "schedules", key: "c", allowed: () => has("read") },
  { name: "Transactions", path: "transactions", key: "x", allowed: () => has("write") },
  { name: "Pipelines", path: "pipelines", key: "p", allowed: () => has("read") },
  { name: "Server", path: "server", key: "s", allowed: () => has("admin") && seesAll() },
];

export function App() {
  if (needsKey.value !== null) return <Login />;
  if (me.value === null) {
    return (
      <main class="login">
        <p class="muted">{reach.value === "lost" ? "Waiting for the server…" : "Connecting…"}</p>
        <Corner />
      </main>
    );
  }
  return <Shell />;
}

function Shell() {
  const help = useSignal(false);
  const open = useSignal(false);
  useKeys(() => {
    help.value = true;
  });
  const section = place.value.path[0] ?? "overview";
  const current = section === "topics" && inQueues.value ? "queues" : section;
  useEffect(() => {
    open.value = false;
    document.title = [...place.value.path].reverse().concat("topics").join(" · ");
  }, [place.value]);
  return (
    <div class="shell">
      <header class={`side ${open.value ? "open" : ""}`}>
        <a class="brand" href={to(["overview"])} aria-label="topics, overview">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="7" fill="var(--accent-fill)" />
            <path d="M8 10h16M8 16h11M8 22h6" stroke="#fff" stroke-width="3" stroke-linecap="round" />
            <circle cx="23" cy="22" r="3" fill="#fff" />
          </svg>
          <span>topics</span>
        </a>
        {has("read") && <Find />}
        <span class="menu-button">
          <button type="button" aria-expanded={open.value} onClick={() => (open.value = !open.value)}>Menu</button>
        </span>
        <nav aria-label="Main">
          <ul>
            {ITEMS.filter((item) => item.allowed()).map((item) => (
              <li>
                <a href={to([item.path])} aria-current={current === item.path ? "page" : undefined}>
                  <Icon name={item.path} /> {item.name} <kbd aria-hidden="true">g {item.key}</kbd>
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="foot small muted">
          {readOnly.value && <span>This console only reads.</span>}
          {me.value!.prefixes.length > 0 && <span>Names that start with {me.value!.prefixes.join(" or ")}</span>}
          <span class="row">
            <span>topics {me.value!.version}</span>
            <Button kind="link" onClick={() => (help.value = true)}>Shortcuts</Button>
            {client.key !== undefined && (
              <Button
                kind="link"
                onClick={() => {
                  forget();
                  needsKey.value = {};
                }}
              >
                Forget key
              </Button>
            )}
          </span>
        </div>
      </header>
      <main class="page" id="main">
        <Page />
      </main>
      <Corner />
      <Toasts />
      {help.value && <Help onClose={() => (help.value = false)} />}
    </div>
  );
}

function Page(): ComponentChildren {
  const [section = "overview", ...rest] = place.value.path;
  if (!has("read")) return <p class="notice warn">This key may not read: the console has nothing to show.</p>;
  switch (section) {
    case "overview":
      return <Overview />;
    case "topics":
    case "queues":
      return rest[0] === undefined ? (
        <Topics key={section} queues={section === "queues"} />
      ) : (
        <TopicPage key={rest[0]} name={rest[0]} tab={rest[1]} />
      );
    case "routers":
      return <Routers />;
    case "groups":
      return <Groups />;
    case "webhooks":
      return <Webhooks name={rest[0]} />;
    case "schedules":
      return <Schedules name={rest[0]} />;
    case "transactions":
      return <Transactions app={rest[0]} />;
    case "pipelines":
      return <Pipelines name={rest[0]} />;
    case "server":
      return <Server tab={rest[0] ?? "settings"} />;
    default:
      return <p class="notice">There is no such page. <a href={to(["overview"])}>Overview</a></p>;
  }
}

function Corner() {
  if (reach.value === "ok") return <div role="status" />;
  return (
    <div role="status" class={`corner ${reach.value === "back" ? "ok" : ""}`}>
      <span class={`dot ${reach.value === "lost" ? "pulse" : ""}`} />
      {reach.value === "lost" ? "The server does not answer; trying again" : "The server is back"}
    </div>
  );
}

/** `/` searches, `g t` goes to topics, `?` shows this; not while somebody types. */
function useKeys(onHelp: () => void): void {
  useEffect(() => {
    let went = 0;
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") !== null) return;
      const target = event.target as HTMLElement;
      if (target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
      if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("#find")?.focus();
      } else if (event.key === "?") onHelp();
      else if (event.key === "g" && Date.now() - went > 1_000) went = Date.now();
      else if (Date.now() - went <= 1_000) {
        const item = ITEMS.find((one) => one.key === event.key && one.allowed());
        went = 0;
        if (item !== undefined) {
          event.preventDefault();
          go([item.path]);
        }
      }
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}

function Help({ onClose }: { onClose: () => void }) {
  const rows: [string, string][] = [
    ["/", "Find a topic"],
    ...ITEMS.filter((item) => item.allowed()).map((item): [string, string] => [`g ${item.key}`, item.name]),
    ["↑ ↓", "Walk through records and jobs"],
    ["Enter", "Open what is selected"],
    ["Esc", "Close"],
    ["?", "This list"],
  ];
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="facts">
        {rows.map(([key, what]) => (
          <>
            <dt><kbd>{key}</kbd></dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
    </Dialog>
  );
}
