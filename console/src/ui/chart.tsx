/** A line chart of a few series over time. The numbers it ends with stand beside it as text. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Drawing } from "./plot.ts";

export interface Series {
  name: string;
  values: readonly number[];
  /** A variable of the stylesheet. */
  colour: string;
}

const plots = () => import("./plot.ts");

type Props = { title: string; ts: readonly number[]; series: Series[]; show: (value: number) => string; binary?: boolean };

export function Chart({ title, ts, series, show, binary }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const drawing = useRef<Drawing | undefined>(undefined);
  const latest = useRef({ ts, series });
  latest.current = { ts, series };
  const [at, setAt] = useState<number | null>(null);
  const names = series.map((one) => one.name).join();
  const [theme, setTheme] = useState(0);
  // Before the first point there is its room and nothing else: what is below must not move.
  const drawn = ts.length > 0;

  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((old) => old + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);

  useEffect(() => {
    if (!drawn) return undefined;
    let gone = false;
    void plots().then(({ draw }) => {
      if (!gone) drawing.current = draw(box.current!, latest.current.ts, { series: latest.current.series, show, binary: binary === true, onPoint: setAt });
    }, () => undefined);
    return () => {
      gone = true;
      drawing.current?.destroy();
      drawing.current = undefined;
    };
  }, [names, theme, drawn]);

  useEffect(() => drawing.current?.setData(ts, series), [ts, series]);

  const shown = at ?? ts.length - 1;
  return (
    <figure class="card chart">
      <figcaption>
        <h2>{title}</h2>
        <span class="legend">
          {series.map((one) => (
            <span>
              <i style={{ background: `var(${one.colour})` }} />
              {series.length > 1 ? `${one.name} ` : ""}
              {one.values[shown] === undefined ? "–" : show(one.values[shown])}
            </span>
          ))}
        </span>
      </figcaption>
      <div class="plot" ref={box} aria-hidden="true" hidden={!drawn} />
      {!drawn && <p class="plot muted small">The first points come within twenty seconds.</p>}
    </figure>
  );
}
