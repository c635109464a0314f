/** Who uses the console, what they may do, and whether the server answers. One for the whole page. */

import { computed, effect, signal } from "@preact/signals";
import { ApiError, Client, ConnectionError, type MeReply } from "topics-client";

const STORED = "topics.key";
const PROBE_MS = 1_000;

export type Scope = "read" | "write" | "delete" | "admin";

/** The server's own root: what stands before `/console/`, which is more than `/` behind some proxies. */
const root = location.pathname.replace(/\/console\/.*$/, "").replace(/\/$/, "");

export const me = signal<MeReply | null>(null);
/** Whether a key must be asked for, and why the last one was refused. */
export const needsKey = signal<{ reason?: string } | null>(null);
export const reach = signal<"ok" | "lost" | "back">("ok");
/** Rises when the server is there again: what is shown is asked for anew. */
export const returns = signal(0);

export const client = new Client({
  url: location.origin + root,
  key: sessionStorage.getItem(STORED) ?? undefined,
  onReach: (reached) => {
    if (!reached && reach.peek() !== "lost") lose();
  },
});

let probe: ReturnType<typeof setTimeout> | undefined;

function lose(): void {
  reach.value = "lost";
  clearTimeout(probe);
  probe = setTimeout(() => void look(), PROBE_MS);
}

async function look(): Promise<void> {
  try {
    await client.request("GET", "/v0/ready");
  } catch (error) {
    // An answer other than "not ready" comes from a server that is there: it may want a key for this.
    if (error instanceof ConnectionError || (error instanceof ApiError && error.status >= 500)) {
      probe = setTimeout(() => void look(), PROBE_MS);
      return;
    }
  }
  reach.value = "back";
  returns.value++;
  if (me.peek() === null) void enter();
  setTimeout(() => {
    if (reach.peek() === "back") reach.value = "ok";
  }, 3_000);
}

/** Find out who we are; without a key that counts, one is asked for. */
export async function enter(): Promise<void> {
  try {
    me.value = await client.call("GET /v0/me");
    needsKey.value = null;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      needsKey.value = client.key === undefined ? {} : { reason: error.message };
      forget();
    } else if (error instanceof ApiError && error.status === 503) lose();
    else if (error instanceof ApiError) needsKey.value = { reason: error.message };
  }
}

/** Use a key: in memory, and in the tab's session storage only if that was asked for. */
export async function useKey(key: string, keep: boolean): Promise<void> {
  client.key = key;
  if (keep) sessionStorage.setItem(STORED, key);
  else sessionStorage.removeItem(STORED);
  await enter();
}

export function forget(): void {
  client.key = undefined;
  sessionStorage.removeItem(STORED);
  me.value = null;
}

export const readOnly = computed(() => me.value?.console === "read");

/** Whether the key may do this at all; changes are not offered by a console that only reads. */
export function can(...scopes: Scope[]): boolean {
  const held = me.value?.scopes ?? [];
  if (readOnly.value && scopes.some((scope) => scope !== "read")) return false;
  return scopes.every((scope) => held.includes(scope));
}

/** Whether the key has a scope, for looking; a console that only reads may still look at everything. */
export function has(scope: Scope): boolean {
  return me.value?.scopes.includes(scope) ?? false;
}

export function seesAll(): boolean {
  return me.value?.prefixes.length === 0;
}

effect(() => {
  document.documentElement.dataset["reach"] = reach.value;
});
