/** Numbers, bytes, spans and times as people read them. Without `Intl`: its first use takes longer than the rest of a page. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 1,234,567 */
export function count(value: number): string {
  return grouped(String(Math.round(value)));
}

/** At most two digits after the point: 12.5, 0.07 */
function precise(value: number): string {
  return grouped(String(Number(value.toFixed(2))));
}

function grouped(digits: string): string {
  return digits.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
}

/** 12.5, 1,234 */
export function rate(value: number): string {
  return Math.abs(value) >= 100 ? count(value) : precise(value);
}

/** 12.3k: where there is little room. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${precise(value / 1e9)}G`;
  if (size >= 1e6) return `${precise(value / 1e6)}M`;
  if (size >= 1e4) return `${precise(Math.round(value / 100) / 10)}k`;
  return rate(value);
}

export function bytes(value: number): string {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 ? count(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** 3 d 2 h, 4 min, 12 s, 80 ms, 0.4 ms */
export function span(ms: number): string {
  const size = Math.abs(ms);
  if (size < 10) return `${precise(ms)} ms`;
  if (size < 1_000) return `${Math.round(ms)} ms`;
  if (size < 60_000) return `${precise(Math.round(ms / 100) / 10)} s`;
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
  const day = dayOf(date);
  return `${day === dayOf(new Date()) ? "" : `${day} `}${clock(ms, true)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

function dayOf(date: Date): string {
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

/** 14:05, 14:05:30 */
export function clock(ms: number, seconds: boolean): string {
  const date = new Date(ms);
  return [date.getHours(), date.getMinutes(), ...(seconds ? [date.getSeconds()] : [])].map(pad).join(":");
}

function pad(part: number): string {
  return String(part).padStart(2, "0");
}

export function utc(ms: number): string {
  return new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC");
}

export function plural(value: number, noun: string, many = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : many}`;
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
