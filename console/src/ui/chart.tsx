/** A line chart of a few series over time. The numbers it ends with stand beside it as text. */

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

const HEIGHT = 120;
const SPAN_S_MIN = 300;
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export interface Series {
  name: string;
  values: readonly number[];
  /** A variable of the stylesheet. */
  colour: string;
}

type Props = { title: string; ts: readonly number[]; series: Series[]; show: (value: number) => string; binary?: boolean };

export function Chart({ title, ts, series, show, binary }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState<number | null>(null);
  const names = series.map((one) => one.name).join();
  const [theme, setTheme] = useState(0);

  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((old) => old + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);

  useEffect(() => {
    const element = box.current!;
    const colour = (name: string) => {
      const probe = document.createElement("i");
      probe.style.color = `var(${name})`;
      element.append(probe);
      const found = getComputedStyle(probe).color;
      probe.remove();
      return found;
    };
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot.current = new uPlot(
      {
        width: Math.max(element.clientWidth, 100),
        height: HEIGHT,
        padding: [8, 4, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
        scales: {
          // At least five minutes, so that a young server does not look busy.
          x: { range: (_, min, max) => [Math.min(min, max - SPAN_S_MIN), max] },
          y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] },
        },
        axes: [
          { ...axis, size: 24, grid: { show: false }, space: 80, values: (_, splits) => splits.map((split) => clock.format(split * 1_000)) },
          { ...axis, size: 62, space: 34, ...(binary === true ? { incrs: BINARY } : {}), values: (_, splits) => splits.map((split) => show(split)) },
        ],
        series: [
          {},
          ...series.map((one) => ({
            label: one.name,
            stroke: colour(one.colour),
            width: 1.5,
            points: { show: false },
            fill: series.length === 1 ? `color-mix(in srgb, ${colour(one.colour)} 12%, transparent)` : "transparent",
          })),
        ],
        hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? null)] },
      },
      data(ts, series),
      element,
    );
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(element.clientWidth, 100), height: HEIGHT }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      plot.current?.destroy();
    };
  }, [names, theme]);

  useEffect(() => plot.current?.setData(data(ts, series)), [ts, series]);

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
      <div class="plot" ref={box} aria-hidden="true" />
    </figure>
  );
}

function data(ts: readonly number[], series: Series[]): uPlot.AlignedData {
  return [ts.map((ms) => ms / 1000), ...series.map((one) => [...one.values])];
}
