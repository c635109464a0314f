/** Asks for an API key, once. It stays in memory, or in this tab if the person says so. */

import { useState } from "preact/hooks";
import { needsKey, useKey } from "./session.ts";
import { Button, Check, Input } from "./ui/parts.tsx";

export function Login() {
  const [key, setKey] = useState("");
  const [keep, setKeep] = useState(false);
  const [busy, setBusy] = useState(false);
  return (
    <main class="login">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          setBusy(true);
          void useKey(key.trim(), keep).finally(() => setBusy(false));
        }}
      >
        <header><h1>topics</h1></header>
        <div class="body stack">
          <p class="muted">This server asks for an API key. It is sent in a header and never becomes part of an address.</p>
          <Input label="API key" type="password" value={key} onInput={setKey} error={needsKey.value?.reason} required autoFocus />
          <Check label="Keep it until this tab is closed" checked={keep} onChange={setKeep} />
          <div><Button kind="primary" type="submit" disabled={busy || key.trim() === ""}>Open the console</Button></div>
        </div>
      </form>
    </main>
  );
}
