/** The search for topics at the top: as you type, over all names, with arrows and Enter. */

import { useEffect, useState } from "preact/hooks";
import { go } from "./route.ts";
import { client } from "./session.ts";
import { Foreign } from "./ui/parts.tsx";

const SHOWN = 8;
const PAUSE_MS = 120;

export function Find() {
  const [text, setText] = useState("");
  const [found, setFound] = useState<{ topic: string; type: string }[]>([]);
  const [at, setAt] = useState(0);
  const [open, setOpen] = useState(false);

  useEffect(() => {
    if (text.trim() === "") return setFound([]);
    const stop = new AbortController();
    const timer = setTimeout(() => {
      client
        .call("GET /v0/topics", { query: { contains: text.trim(), page_size: SHOWN }, signal: stop.signal })
        .then((page) => {
          setFound(page.topics);
          setAt(0);
        })
        .catch(() => undefined);
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);

  const pick = (name: string) => {
    setOpen(false);
    setText("");
    (document.activeElement as HTMLElement | null)?.blur();
    go(["topics", name]);
  };
  const shown = open && found.length > 0;
  return (
    <div class="find">
      <input
        id="find"
        type="search"
        role="combobox"
        list={undefined}
        aria-label="Find a topic"
        aria-expanded={shown}
        aria-controls="found"
        aria-activedescendant={shown ? `found-${at}` : undefined}
        aria-autocomplete="list"
        placeholder="Find a topic"
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setOpen(true);
        }}
        onFocus={() => setOpen(true)}
        onBlur={() => setTimeout(() => setOpen(false), 150)}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt((old) => Math.min(found.length - 1, old + 1));
          else if (event.key === "ArrowUp") setAt((old) => Math.max(0, old - 1));
          else if (event.key === "Enter" && found[at] !== undefined) pick(found[at].topic);
          else if (event.key === "Escape") event.currentTarget.blur();
          else return;
          event.preventDefault();
        }}
      />
      {text === "" && <kbd aria-hidden="true">/</kbd>}
      <ul id="found" role="listbox" aria-label="Topics" hidden={!shown}>
        {found.map((item, index) => (
          <li
            id={`found-${index}`}
            role="option"
            aria-selected={index === at}
            onMouseDown={(event) => {
              event.preventDefault();
              pick(item.topic);
            }}
          >
            <Foreign text={item.topic} /> {item.type === "queue" && <span class="muted small">queue</span>}
          </li>
        ))}
      </ul>
    </div>
  );
}
