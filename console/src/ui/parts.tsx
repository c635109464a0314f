/** Small parts that every page is made of. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { pretty } from "topics-client";
import * as format from "../format.ts";

const SHOWN_CHARS_MAX = 60_000;
const LINE_CHARS_MAX = 220;

// --- values ---

/** Text that came from somebody else: text and nothing but text, with what cannot be seen made visible. */
export function Foreign({ text, max = 0 }: { text: string; max?: number }) {
  const shown = max > 0 && text.length > max ? `${text.slice(0, max)}…` : text;
  if (!format.hasHidden(shown)) return <span class="foreign">{shown}</span>;
  return (
    <span class="foreign">
      {format.pieces(shown).map((piece, index) => (index % 2 === 1 ? <span class="escape">{piece}</span> : piece))}
    </span>
  );
}

export function Time({ ms }: { ms: number }) {
  return (
    <time class="number nowrap" dateTime={new Date(ms).toISOString()} title={format.utc(ms)}>
      {format.time(ms)}
    </time>
  );
}

/** How long ago, or how long until: counts by itself. */
export function Relative({ ms, past = "ago" }: { ms: number; past?: string }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((old) => old + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
  const left = ms - Date.now();
  const rounded = Math.round(Math.abs(left) / 1_000) * 1_000;
  return (
    <time class="number nowrap" dateTime={new Date(ms).toISOString()} title={`${format.time(ms)} · ${format.utc(ms)}`}>
      {rounded === 0 ? "now" : left > 0 ? `in ${format.span(rounded)}` : `${format.span(rounded)} ${past}`}
    </time>
  );
}

export function Count({ value }: { value: number }) {
  return <span class="number">{format.count(value)}</span>;
}

/** A payload on one line. */
export function Preview({ source }: { source: string }) {
  return (
    <span class="mono">
      <Foreign text={source.length > LINE_CHARS_MAX ? source.slice(0, LINE_CHARS_MAX) : source} />
      {source.length > LINE_CHARS_MAX ? "…" : ""}
    </span>
  );
}

/** JSON with its own numbers and strings, indented; a very long one is cut until it is asked for. */
export function Json({ source, label }: { source: string; label: string }) {
  const [whole, setWhole] = useState(false);
  let shown: { tokens: { kind: string; text: string }[]; cut: boolean };
  try {
    shown = pretty(source, whole ? 4_000_000 : SHOWN_CHARS_MAX);
  } catch {
    shown = { tokens: [{ kind: "string", text: source.slice(0, SHOWN_CHARS_MAX) }], cut: source.length > SHOWN_CHARS_MAX };
  }
  return (
    <>
      <pre class="json" tabIndex={0} aria-label={label}>
        {shown.tokens.map((token) =>
          token.kind === "space" ? token.text : (
            <span class={token.kind}>
              {token.text.length > SHOWN_CHARS_MAX && !whole ? (
                <Foreign text={token.text} max={SHOWN_CHARS_MAX} />
              ) : (
                <Foreign text={token.text} />
              )}
            </span>
          ),
        )}
      </pre>
      {(shown.cut || source.length > SHOWN_CHARS_MAX) && !whole && (
        <p class="row small">
          <span class="muted">Only the beginning of {format.bytes(source.length)} is shown.</span>
          {source.length <= 4_000_000 && <Button kind="link" onClick={() => setWhole(true)}>Show all of it</Button>}
          <Button kind="link" onClick={() => download("payload.json", source, "application/json")}>Download</Button>
        </p>
      )}
    </>
  );
}

export function download(name: string, content: BlobPart, type: string): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// --- controls ---

type ButtonProps = {
  children: ComponentChildren;
  kind?: "plain" | "primary" | "danger" | "danger fill" | "quiet" | "link";
  type?: "button" | "submit";
  label?: string;
  disabled?: boolean;
  pressed?: boolean;
  onClick?: () => void;
};

export function Button({ children, kind = "plain", type = "button", label, pressed, ...rest }: ButtonProps) {
  return (
    <button type={type} class={kind === "plain" ? undefined : kind} aria-label={label} aria-pressed={pressed} {...rest}>
      {children}
    </button>
  );
}

type FieldProps = {
  label: string;
  error?: string | undefined;
  hint?: ComponentChildren;
  /** Keep a line for what is wrong: it changes while somebody types. */
  steady?: boolean;
  children: (id: string, described: string | undefined) => ComponentChildren;
};

/** A control with its label, and beside it what is wrong with it. */
export function Field({ label, error, hint, steady, children }: FieldProps) {
  const id = useId();
  return (
    <div class={`field ${steady === true ? "keeps-line" : ""}`}>
      <label for={id}>{label}</label>
      {children(id, error !== undefined ? `${id}-error` : undefined)}
      {error !== undefined && <span class="error" id={`${id}-error`} role="alert">{error}</span>}
      {hint !== undefined && <span class="hint">{hint}</span>}
    </div>
  );
}

type InputProps = {
  label: string;
  value: string;
  onInput: (value: string) => void;
  error?: string | undefined;
  hint?: ComponentChildren;
  type?: "text" | "search" | "password" | "datetime-local";
  placeholder?: string;
  required?: boolean;
  autoFocus?: boolean;
  size?: number;
  step?: number;
  list?: string[];
};

export function Input({ label, value, onInput, error, hint, list, autoFocus, type = "text", ...rest }: InputProps) {
  const listId = useId();
  const control = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (autoFocus === true) control.current?.focus();
  }, []);
  return (
    <Field label={label} error={error} hint={hint}>
      {(id, described) => (
        <>
          <input
            id={id}
            ref={control}
            // The types allow each kind of input other attributes; these are the same for all.
            type={type as "text"}
            value={value}
            autocomplete="off"
            spellcheck={false}
            list={list === undefined ? undefined : listId}
            aria-invalid={error !== undefined}
            aria-describedby={described}
            onInput={(event) => onInput(event.currentTarget.value)}
            {...rest}
          />
          {list !== undefined && (
            <datalist id={listId}>
              {list.map((item) => <option value={item} />)}
            </datalist>
          )}
        </>
      )}
    </Field>
  );
}

type SelectProps<T extends string> = {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
};

export function Select<T extends string>({ label, value, options, onChange }: SelectProps<T>) {
  return (
    <Field label={label}>
      {(id) => (
        <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
          {options.map(([key, text]) => <option value={key}>{text}</option>)}
        </select>
      )}
    </Field>
  );
}

export function Check({ label, checked, onChange }: { label: string; checked: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="row">
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} /> {label}
    </label>
  );
}

/** A check box in a table; on small screens all of its cell is its target. */
export function Tick({ label, checked, onChange }: { label: string; checked: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="tick">
      <input type="checkbox" aria-label={label} checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
    </label>
  );
}

// --- parts of pages ---

export function Tabs({ label, items }: { label: string; items: { name: string; href: string; on: boolean; count?: number | undefined }[] }) {
  return (
    <nav class="tabs" aria-label={label}>
      {items.map((item) => (
        <a href={item.href} aria-current={item.on ? "page" : undefined}>
          {item.name}
          {item.count !== undefined && <span class="count">{format.short(item.count)}</span>}
        </a>
      ))}
    </nav>
  );
}

export function Tile({ name, value, note }: { name: string; value: ComponentChildren; note?: ComponentChildren }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        {value} {note !== undefined && <small>{note}</small>}
      </dd>
    </div>
  );
}

type PagerProps = { cursors: string[]; next: string | null | undefined; onChange: (cursors: string[]) => void };

/** The way to the next page of a list, and back by the cursors of the pages before; nothing if there is one page. */
export function Pager({ cursors, next, onChange }: PagerProps) {
  const last = next === undefined || next === null;
  if (cursors.length === 0 && last) return null;
  return (
    <div class="pager">
      <Button disabled={cursors.length === 0} onClick={() => onChange(cursors.slice(0, -1))}>Previous</Button>
      <span class="muted small">Page {format.count(cursors.length + 1)}</span>
      <Button disabled={last} onClick={() => !last && onChange([...cursors, next])}>Next</Button>
    </div>
  );
}

/** Says that a list has news, in a place that is always there. */
export function HeldNote({ behind }: { behind: boolean }) {
  return <span class="held muted small" role="status">{behind ? "Held while the pointer is on the list" : ""}</span>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** A label of which another one may take the place, in the room that the longest of them needs. */
export function Steady({ children, rooms }: { children: ComponentChildren; rooms: ComponentChildren[] }) {
  return (
    <span class="steady">
      <span>{children}</span>
      {rooms.map((room) => <span class="room" aria-hidden="true">{room}</span>)}
    </span>
  );
}

/** What to type in a shell. */
export function Commands({ lines }: { lines: string[] }) {
  const text = lines.join("\n");
  return (
    <>
      <pre class="commands" tabIndex={0} aria-label="Commands"><code class="foreign">{text}</code></pre>
      <Copy text={() => text}>Copy the commands</Copy>
    </>
  );
}

export function Problem({ error }: { error: Error | undefined }) {
  return error === undefined ? null : <p class="notice bad" role="alert">{error.message}</p>;
}

export function Badge({ kind = "", children }: { kind?: "" | "ok" | "warn" | "bad" | "accent"; children: ComponentChildren }) {
  return <span class={`badge ${kind}`}>{children}</span>;
}

export function Copy({ text, kind = "quiet", children }: { text: () => string; kind?: "quiet" | "link"; children: ComponentChildren }) {
  return (
    <Button
      kind={kind}
      onClick={() => {
        void navigator.clipboard.writeText(text()).then(
          () => say("Copied"),
          () => say("The browser did not allow copying", "bad"),
        );
      }}
    >
      {children}
    </Button>
  );
}

// --- dialogs ---

type DialogProps = {
  title: string;
  onClose: () => void;
  onSubmit?: () => void;
  wide?: boolean;
  children: ComponentChildren;
  actions?: ComponentChildren;
};

/** A dialog of the browser's own: it keeps the focus, and Escape closes it. */
export function Dialog({ title, onClose, onSubmit, wide, children, actions }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={box} class={wide === true ? "wide" : undefined} aria-labelledby={titleId} onClose={onClose} onCancel={onClose}>
      <form
        method="dialog"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          onSubmit?.();
        }}
      >
        <h2 id={titleId}>{title}</h2>
        {children}
        <div class="actions">
          <Button onClick={onClose}>{onSubmit === undefined && actions === undefined ? "Close" : "Cancel"}</Button>
          {actions}
        </div>
      </form>
    </dialog>
  );
}

type ConfirmProps = {
  title: string;
  /** What must be typed before the button works. */
  name?: string;
  verb: string;
  /** What it would hit is not known yet. */
  counting?: boolean;
  /** It would hit nothing: there is only something to close. */
  nothing?: boolean;
  busy?: boolean;
  error?: Error | undefined;
  onConfirm: () => void;
  onClose: () => void;
  children: ComponentChildren;
};

/** Before anything is lost: says what and how much, and wants the name typed where everything goes. */
export function Confirm({ title, name, verb, counting, nothing, busy, error, onConfirm, onClose, children }: ConfirmProps) {
  const [typed, setTyped] = useState("");
  if (nothing === true) return <Dialog title={title} onClose={onClose}>{children}</Dialog>;
  const ready = (name === undefined || typed === name) && busy !== true && counting !== true;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={() => {
        if (ready) onConfirm();
      }}
      actions={<Button kind="danger fill" type="submit" disabled={!ready}>{busy === true && counting !== true ? "Working…" : verb}</Button>}
    >
      {children}
      {name !== undefined && <Input label={`Type ${name} to confirm`} value={typed} onInput={setTyped} autoFocus />}
      <Problem error={error} />
    </Dialog>
  );
}

// --- what happened ---

interface Link {
  name: string;
  href: string;
}

const messages = signal<{ id: number; text: string; kind: string; link: Link | undefined }[]>([]);
let lastId = 0;

export function say(text: string, kind: "" | "bad" = "", link?: Link): void {
  const id = ++lastId;
  messages.value = [...messages.value.slice(-3), { id, text, kind, link }];
  setTimeout(() => dismiss(id), kind === "bad" || link !== undefined ? 10_000 : 5_000);
}

function dismiss(id: number): void {
  messages.value = messages.value.filter((message) => message.id !== id);
}

const troubles = signal<readonly { text: string }[]>([]);

/** What is wrong, for as long as it is, at the lower edge: a notice that comes by itself must not move the page. */
export function Trouble({ text }: { text: string | null | undefined }) {
  useEffect(() => {
    if (text === null || text === undefined) return undefined;
    const trouble = { text };
    troubles.value = [...troubles.value, trouble];
    return () => {
      troubles.value = troubles.value.filter((one) => one !== trouble);
    };
  }, [text]);
  return null;
}

export function Toasts() {
  const wrong = [...new Set(troubles.value.map((one) => one.text))];
  return (
    <div class="toasts">
      {wrong.map((text) => (
        <div class="toast trouble" role="alert" key={text}>
          <Foreign text={text} />
          <Button kind="quiet" label="Dismiss" onClick={() => (troubles.value = troubles.value.filter((one) => one.text !== text))}>✕</Button>
        </div>
      ))}
      <div class="messages" role="status" aria-live="polite">
        {messages.value.map((message) => (
          <div class={`toast ${message.kind}`} key={message.id}>
            <span>{message.text}</span>
            {message.link !== undefined && <a href={message.link.href}>{message.link.name}</a>}
            <Button kind="quiet" label="Dismiss" onClick={() => dismiss(message.id)}>✕</Button>
          </div>
        ))}
      </div>
    </div>
  );
}
