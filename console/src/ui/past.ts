/** The past that the server keeps, as columns that grow: only what is new is fetched. */

import { useEffect, useState } from "preact/hooks";
import { useResource } from "./resource.ts";

const EVERY_MS = 5_000;

interface Past {
  ts: number[];
  series: { [name: string]: number[] };
}

export function usePast<T extends Past>(ask: (since: number, signal: AbortSignal) => Promise<T>, deps: unknown[], pointsMax: number): T | undefined {
  const [past, setPast] = useState<T>();
  const since = past?.ts.at(-1) ?? 0;
  const news = useResource((signal) => ask(since, signal), deps, EVERY_MS);
  useEffect(() => {
    const fresh = news.data;
    if (fresh === undefined) return;
    setPast((old) => {
      if (old === undefined || (fresh.ts.length > 0 && fresh.ts[0]! <= (old.ts.at(-1) ?? 0))) return fresh;
      if (fresh.ts.length === 0) return old;
      const series: Past["series"] = {};
      for (const [name, values] of Object.entries(fresh.series)) series[name] = [...(old.series[name] ?? []), ...values].slice(-pointsMax);
      return { ...fresh, ts: [...old.ts, ...fresh.ts].slice(-pointsMax), series };
    });
  }, [news.data]);
  return past;
}
