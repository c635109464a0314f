/**
 * JSON that is read without loss: payloads stay the text that was sent, so integers of any size, `1.0` and `1e3`
 * look on the page as they do in the log.
 */

import type { RawJson } from "./api.ts";

const SPACE = /[ \t\n\r]*/y;
const LITERAL = /-?[0-9][0-9.eE+-]*|true|false|null/y;

/** A fault in the text, and where. */
export class JsonError extends Error {
  constructor(
    message: string,
    readonly at: number,
  ) {
    super(message);
  }
}

/** The position after the white space at `at`. */
function skipSpace(text: string, at: number): number {
  SPACE.lastIndex = at;
  SPACE.exec(text);
  return SPACE.lastIndex;
}

/** The position after the string that begins at `at`. */
function skipString(text: string, at: number): number {
  for (let end = at + 1; ; end++) {
    end = text.indexOf('"', end);
    if (end < 0) throw new JsonError("the string has no end", at);
    let escapes = 0;
    while (text[end - 1 - escapes] === "\\") escapes++;
    if (escapes % 2 === 0) return end + 1;
  }
}

/** The position after the value that begins at `at`; the value is not checked further than that needs. */
export function skipValue(text: string, at: number): number {
  let depth = 0;
  for (;;) {
    at = skipSpace(text, at);
    const char = text[at];
    if (char === '"') at = skipString(text, at);
    else if (char === "{" || char === "[") {
      depth++;
      at++;
      continue;
    } else if (char === "}" || char === "]") {
      depth--;
      at++;
    } else if (char === "," || char === ":") {
      at++;
      continue;
    } else {
      LITERAL.lastIndex = at;
      if (LITERAL.exec(text) === null) throw new JsonError("not JSON", at);
      at = LITERAL.lastIndex;
    }
    if (depth === 0) return at;
  }
}

/** Parse JSON, but keep the text of every field whose name is in `raw`. */
export function parseKeeping(text: string, raw: ReadonlySet<string>): unknown {
  let at = 0;

  function value(): unknown {
    at = skipSpace(text, at);
    const char = text[at];
    if (char === "{") return object();
    if (char === "[") return array();
    const end = skipValue(text, at);
    const found: unknown = JSON.parse(text.slice(at, end));
    at = end;
    return found;
  }

  function object(): { [key: string]: unknown } {
    const found: { [key: string]: unknown } = {};
    at = skipSpace(text, at + 1);
    while (text[at] !== "}") {
      const end = skipString(text, at);
      const key = JSON.parse(text.slice(at, end)) as string;
      at = skipSpace(text, end) + 1;
      if (raw.has(key)) {
        at = skipSpace(text, at);
        const stop = skipValue(text, at);
        found[key] = { source: text.slice(at, stop) } satisfies RawJson;
        at = stop;
      } else found[key] = value();
      at = skipSpace(text, at);
      if (text[at] === ",") at = skipSpace(text, at + 1);
    }
    at++;
    return found;
  }

  function array(): unknown[] {
    const found: unknown[] = [];
    at = skipSpace(text, at + 1);
    while (text[at] !== "]") {
      found.push(value());
      at = skipSpace(text, at);
      if (text[at] === ",") at = skipSpace(text, at + 1);
      else if (text[at] !== "]") throw new JsonError("not JSON", at);
    }
    at++;
    return found;
  }

  return value();
}

export type TokenKind = "key" | "string" | "number" | "literal" | "mark" | "space";

export interface Token {
  kind: TokenKind;
  text: string;
}

/** The text as tokens, indented anew; strings, numbers and keys are what they were. At most `limit` characters. */
export function pretty(source: string, limit = Infinity): { tokens: Token[]; cut: boolean } {
  const tokens: Token[] = [];
  let at = 0;
  let depth = 0;
  let size = 0;
  const put = (kind: TokenKind, text: string) => {
    tokens.push({ kind, text });
    size += text.length;
  };
  const newline = () => put("space", "\n" + "  ".repeat(depth));
  while ((at = skipSpace(source, at)) < source.length) {
    if (size > limit) return { tokens, cut: true };
    const char = source[at]!;
    if (char === "{" || char === "[") {
      const next = skipSpace(source, at + 1);
      if (source[next] === "}" || source[next] === "]") {
        put("mark", char + source[next]);
        at = next + 1;
        continue;
      }
      put("mark", char);
      depth++;
      newline();
      at++;
    } else if (char === "}" || char === "]") {
      depth--;
      newline();
      put("mark", char);
      at++;
    } else if (char === ",") {
      put("mark", ",");
      newline();
      at++;
    } else if (char === ":") {
      put("mark", ": ");
      at++;
    } else if (char === '"') {
      const end = skipString(source, at);
      const isKey = source[skipSpace(source, end)] === ":";
      put(isKey ? "key" : "string", source.slice(at, end));
      at = end;
    } else {
      LITERAL.lastIndex = at;
      const found = LITERAL.exec(source);
      if (found === null) throw new JsonError("not JSON", at);
      put(/^[tfn]/.test(found[0]) ? "literal" : "number", found[0]);
      at = LITERAL.lastIndex;
    }
  }
  return { tokens, cut: false };
}

/** Where JSON.parse found its fault, by line and column, if its message tells. */
export function placeOf(source: string, error: unknown): { line: number; column: number } | undefined {
  const message = error instanceof Error ? error.message : "";
  const byPosition = /position (\d+)/.exec(message);
  if (byPosition === null) return undefined;
  const before = source.slice(0, Number(byPosition[1])).split("\n");
  return { line: before.length, column: before[before.length - 1]!.length + 1 };
}
