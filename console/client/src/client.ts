/** Calls of the HTTP API: typed by its routes, with the key in a header and never in an address. */

import type { ErrorReply, Routes } from "./api.ts";
import { parseKeeping } from "./json.ts";

const PAYLOADS: ReadonlySet<string> = new Set(["data", "meta"]);
const KEEPS_PAYLOADS = /\/(diff|jobs|claim)$/;

/** An error that the server reports. `detail.field` names the field of a bad request. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly detail: { [key: string]: unknown } = {},
  ) {
    super(message);
  }

  get field(): string | undefined {
    return typeof this.detail["field"] === "string" ? this.detail["field"] : undefined;
  }
}

/** The server was not reached, or went away before it answered. */
export class ConnectionError extends Error {}

type Values = { [name: string]: string | number | boolean | null | undefined };
type Options<R extends keyof Routes> = {
  signal?: AbortSignal;
  path?: Routes[R]["path"];
  query?: Routes[R]["query"];
  body?: Routes[R]["body"];
};

export interface ClientOptions {
  /** Where the server is: `http://127.0.0.1:4000`, or a path on the same host. */
  url: string;
  key?: string | undefined;
  fetch?: typeof fetch;
  /** Told of every answer (true) and of every failure to get one (false). */
  onReach?: (reached: boolean) => void;
}

export class Client {
  readonly url: string;
  key: string | undefined;
  private readonly send: typeof fetch;
  private readonly onReach: (reached: boolean) => void;

  constructor(options: ClientOptions) {
    this.url = options.url.replace(/\/$/, "");
    this.key = options.key;
    this.send = options.fetch ?? ((input, init) => fetch(input, init));
    this.onReach = options.onReach ?? (() => undefined);
  }

  /** Call a route: `call("GET /v0/topics/{topic}", { path: { topic: "orders" } })`. */
  async call<R extends keyof Routes>(route: R, options: Options<R> = {}): Promise<Routes[R]["reply"]> {
    const body = options.body === undefined ? undefined : JSON.stringify(options.body);
    const text = await this.reply(route, options, body);
    const parsed: unknown = KEEPS_PAYLOADS.test(route) ? parseKeeping(text, PAYLOADS) : JSON.parse(text);
    return parsed as Routes[R]["reply"];
  }

  /** The same with a body that is JSON already, as text like the reply: for payloads whose numbers must stay as they are. */
  async reply<R extends keyof Routes>(route: R, options: Omit<Options<R>, "body"> = {}, body?: string): Promise<string> {
    const [method, pattern] = route.split(" ") as [string, string];
    const path = fill(pattern, (options.path ?? {}) as Values);
    return this.text(method, withQuery(path, (options.query ?? {}) as Values), body, options.signal);
  }

  /** The body of a reply as text; a body to send is JSON already. */
  async text(method: string, path: string, body?: string, signal?: AbortSignal): Promise<string> {
    const response = await this.request(method, path, body, { signal, accept: "application/json" });
    try {
      return await response.text();
    } catch (error) {
      throw this.unreached(error, signal);
    }
  }

  /** The reply itself, if the server is content with the request. */
  async request(
    method: string,
    path: string,
    body?: string,
    options: { signal?: AbortSignal | undefined; accept?: string; headers?: { [name: string]: string } } = {},
  ): Promise<Response> {
    const headers: { [name: string]: string } = { Accept: options.accept ?? "*/*", ...options.headers };
    if (this.key !== undefined) headers["Authorization"] = `Bearer ${this.key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response: Response;
    try {
      response = await this.send(this.url + path, {
        method,
        headers,
        body: body ?? null,
        signal: options.signal ?? null,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      throw this.unreached(error, options.signal);
    }
    this.onReach(response.status !== 502 && response.status !== 504);
    if (response.ok) return response;
    throw await errorOf(response);
  }

  private unreached(error: unknown, signal?: AbortSignal): unknown {
    if (signal?.aborted === true) return error;
    this.onReach(false);
    return new ConnectionError("The server cannot be reached");
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as ErrorReply;
    return new ApiError(response.status, error.code, error.message, error.detail);
  } catch {
    return new ApiError(response.status, "unknown", `The server answered ${response.status}`);
  }
}

function fill(pattern: string, values: Values): string {
  return pattern.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values[name])));
}

export function withQuery(path: string, values: Values): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}
