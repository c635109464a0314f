/** What a page shows comes from calls: repeated at intervals, stopped with the page, kept while the server is away. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ConnectionError } from "topics-client";
import { returns } from "../session.ts";

export interface Resource<T> {
  data: T | undefined;
  error: Error | undefined;
  loading: boolean;
  reload: () => void;
}

/** Ask now, whenever `deps` change, when the server returns, and every `everyMs` while the page is looked at. */
export function useResource<T>(ask: (signal: AbortSignal) => Promise<T>, deps: unknown[], everyMs = 0): Resource<T> {
  const [state, setState] = useState<{ data?: T; error?: Error; loading: boolean }>({ loading: true });
  const [turn, setTurn] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  const came = returns.value;
  const key = useRef("");
  const depsKey = JSON.stringify(deps);

  useEffect(() => {
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    if (key.current !== depsKey) {
      key.current = depsKey;
      setState({ loading: true });
    }
    const run = async () => {
      if (!document.hidden) {
        try {
          const data = await latest.current(stop.signal);
          if (!stop.signal.aborted) setState({ data, loading: false });
        } catch (error) {
          if (stop.signal.aborted) return;
          // Without a connection the old state stays, and the corner says so.
          if (!(error instanceof ConnectionError)) setState((old) => ({ ...old, error: asError(error), loading: false }));
        }
      }
      if (everyMs > 0 && !stop.signal.aborted) timer = setTimeout(() => void run(), everyMs);
    };
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [depsKey, turn, everyMs, came]);

  return { data: state.data, error: state.error, loading: state.loading, reload: () => setTurn((old) => old + 1) };
}

export function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

/** An action of a form: whether it runs, and what the server said against it, by field. */
export interface Action {
  busy: boolean;
  error: Error | undefined;
  /** The error, if it is about this field. */
  about: (field: string) => string | undefined;
  run: (work: () => Promise<void>) => Promise<boolean>;
  clear: () => void;
}

export function useAction(fields: string[] = []): Action {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const named = error instanceof ApiError && error.field !== undefined && fields.includes(error.field) ? error.field : "";
  return {
    busy,
    error: named === "" ? error : undefined,
    about: (field) => (named === field ? error?.message : undefined),
    clear: () => setError(undefined),
    run: async (work) => {
      setBusy(true);
      setError(undefined);
      try {
        await work();
        return true;
      } catch (problem) {
        setError(asError(problem));
        return false;
      } finally {
        setBusy(false);
      }
    },
  };
}
