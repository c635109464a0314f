/** uPlot, set up the way all charts look. A part of its own: the numbers of a page do not wait for it. */

import uPlot from "uplot";
import { clock } from "../format.ts";
import type { Series } from "./chart.tsx";

const HEIGHT = 120;
const SPAN_S_MIN = 120;
const WIDTH_MIN = 100;
const LEFT_SHARE = 0.07;
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

export interface Drawing {
  setData: (ts: readonly number[], series: readonly Series[]) => void;
  destroy: () => void;
}

interface Options {
  series: readonly Series[];
  show: (value: number) => string;
  binary: boolean;
  onPoint: (index: number | null) => void;
}

// Asking the browser for a colour makes it compute the page's style: once for each colour and theme.
let colours = new Map<string, string>();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = new Map();
});

function colour(name: string): string {
  let found = colours.get(name);
  if (found === undefined) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    found = getComputedStyle(probe).color;
    probe.remove();
    colours.set(name, found);
  }
  return found;
}

export function draw(element: HTMLElement, ts: readonly number[], { series, show, binary, onPoint }: Options): Drawing {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const plot = new uPlot(
    {
      width: Math.max(element.clientWidth, WIDTH_MIN),
      height: HEIGHT,
      // On the right there is room for half of the last time.
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
      scales: {
        // At least two minutes, so that a young server does not look busy.
        x: { range: (_, min, max) => [Math.min(min, max - SPAN_S_MIN), max] },
        y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] },
      },
      axes: [
        { ...axis, size: 24, grid: { show: false }, space: 80, values: (self, splits) => times(splits, self.scales["x"]!) },
        { ...axis, size: 62, space: 34, ...(binary ? { incrs: BINARY } : {}), values: (_, splits) => splits.map((split) => show(split)) },
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
      hooks: { setCursor: [(self) => onPoint(self.cursor.idx ?? null)] },
    },
    columns(ts, series),
    element,
  );
  const resize = new ResizeObserver(() => plot.setSize({ width: Math.max(element.clientWidth, WIDTH_MIN), height: HEIGHT }));
  resize.observe(element);
  return {
    setData: (newer, values) => plot.setData(columns(newer, values)),
    destroy: () => {
      resize.disconnect();
      plot.destroy();
    },
  };
}

/** Without one at the left edge, which would stand below the numbers of the other axis. */
function times(splits: number[], { min, max }: uPlot.Scale): string[] {
  const first = min === undefined || max === undefined || min === null || max === null ? 0 : min + LEFT_SHARE * (max - min);
  const seconds = splits.some((one) => one % 60 !== 0);
  return splits.map((split) => (split < first ? "" : clock(split * 1_000, seconds)));
}

function columns(ts: readonly number[], series: readonly Series[]): uPlot.AlignedData {
  return [ts.map((ms) => ms / 1000), ...series.map((one) => [...one.values])];
}
