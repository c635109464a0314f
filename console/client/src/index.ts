/** A small client for the topics HTTP API. README.md shows how it is used. */

export type * from "./api.ts";
export { ApiError, Client, ConnectionError, withQuery, type ClientOptions } from "./client.ts";
export { JsonError, parseKeeping, placeOf, pretty, skipValue, type Token, type TokenKind } from "./json.ts";
export { follow, parseEvents, type StreamEvent, type StreamOptions, type StreamState } from "./stream.ts";
