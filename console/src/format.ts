/** Numbers, bytes, spans and times as people read them. */

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const day = new Intl.DateTimeFormat("sv", { year: "numeric", month: "2-digit", day: "2-digit" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 1,234,567 */
export function count(value: number): string {
  return plain.format(value);
}

/** 12.5, 1,234 */
export function rate(value: number): string {
  return Math.abs(value) >= 100 ? plain.format(value) : precise.format(value);
}

/** 12.3k: where there is little room. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${precise.format(value / 1e9)}G`;
  if (size >= 1e6) return `${precise.format(value / 1e6)}M`;
  if (size >= 1e4) return `${precise.format(Math.round(value / 100) / 10)}k`;
  return rate(value);
}

export function bytes(value: number): string {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 ? plain.format(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** 3 days, 4 min, 12 s, 80 ms */
export function span(ms: number): string {
  const size = Math.abs(ms);
  if (size < 1_000) return `${Math.round(ms)} ms`;
  if (size < 60_000) return `${precise.format(Math.round(ms / 100) / 10)} s`;
  if (size < 3_600_000) return pair(ms, 60_000, "min", 1_000, "s");
  if (size < 86_400_000) return pair(ms, 3_600_000, "h", 60_000, "min");
  return pair(ms, 86_400_000, "d", 3_600_000, "h");
}

function pair(ms: number, large: number, largeName: string, small: number, smallName: string): string {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeName}${rest === 0 ? "" : ` ${rest} ${smallName}`}`;
}

/** Local time; the day is left out if it is today. */
export function time(ms: number): string {
  const date = new Date(ms);
  const fraction = String(date.getMilliseconds()).padStart(3, "0");
  const today = day.format(date) === day.format(new Date());
  return `${today ? "" : `${day.format(date)} `}${clock.format(date)}.${fraction}`;
}

export function utc(ms: number): string {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// Characters that cannot be seen, or that change how their neighbours look: shown as the escapes they would have in JSON.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]/;
const HIDDEN_ALL = new RegExp(HIDDEN, "g");

export function hasHidden(text: string): boolean {
  return HIDDEN.test(text);
}

/** The text in pieces; every second one is an escape for a character that would not be seen. */
export function pieces(text: string): string[] {
  const found: string[] = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN_ALL)) {
    found.push(text.slice(from, match.index), `\\u${match[0].charCodeAt(0).toString(16).padStart(4, "0")}`);
    from = match.index + 1;
  }
  found.push(text.slice(from));
  return found;
}
