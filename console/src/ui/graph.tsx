/** A graph from left to right: boxes in columns, arrows between them with a text each. */

const WIDTH = 176;
const HEIGHT = 34;
const GAP_X = 150;
const GAP_Y = 22;
const PAD = 24;
const CHARS_MAX = 24;

/** `label` is what a box is called when it is read aloud; without `href` it leads nowhere. */
export type GraphNode = { id: string; text: string; label: string; kind?: string; href?: string };
export type GraphEdge = { id: string; from: string; to: string; title: string; text?: string; kind?: string };

/** Columns by the longest way from a box that nothing leads to; an arrow that closes a cycle goes back and is marked. */
function layout(nodes: GraphNode[], edges: GraphEdge[]): { at: Map<string, { x: number; y: number }>; cycles: Set<string>; width: number; height: number } {
  const out = new Map<string, GraphEdge[]>();
  for (const edge of edges) out.set(edge.from, [...(out.get(edge.from) ?? []), edge]);
  const ids = nodes.map((node) => node.id).sort();
  const cycles = new Set<string>();
  const state = new Map<string, "open" | "done">();
  const order: string[] = [];
  const visit = (id: string) => {
    state.set(id, "open");
    for (const edge of out.get(id) ?? []) {
      const seen = state.get(edge.to);
      if (seen === "open") cycles.add(edge.id);
      else if (seen === undefined) visit(edge.to);
    }
    state.set(id, "done");
    order.push(id);
  };
  const fed = new Set(edges.map((edge) => edge.to));
  for (const id of ids) if (!fed.has(id) && !state.has(id)) visit(id);
  for (const id of ids) if (!state.has(id)) visit(id);
  const rank = new Map<string, number>();
  for (const id of order.reverse()) {
    const own = rank.get(id) ?? 0;
    rank.set(id, own);
    for (const edge of out.get(id) ?? []) if (!cycles.has(edge.id)) rank.set(edge.to, Math.max(rank.get(edge.to) ?? 0, own + 1));
  }
  const columns: string[][] = [];
  for (const id of order) (columns[rank.get(id)!] ??= []).push(id);
  const at = new Map<string, { x: number; y: number }>();
  const tallest = Math.max(...columns.map((column) => column.length));
  columns.forEach((column, index) => {
    const offset = ((tallest - column.length) * (HEIGHT + GAP_Y)) / 2;
    column.forEach((id, row) => at.set(id, { x: PAD + index * (WIDTH + GAP_X), y: PAD + offset + row * (HEIGHT + GAP_Y) }));
  });
  const back = cycles.size > 0 ? 44 : 0;
  return { at, cycles, width: 2 * PAD + columns.length * (WIDTH + GAP_X) - GAP_X, height: 2 * PAD + tallest * (HEIGHT + GAP_Y) - GAP_Y + back };
}

export function Graph({ nodes, edges, label, summary }: { nodes: GraphNode[]; edges: GraphEdge[]; label: string; summary: string }) {
  const { at, cycles, width, height } = layout(nodes, edges);
  return (
    <div class="graph" tabIndex={0} role="region" aria-label={label}>
      <svg width={width} height={height} role="group" aria-label={summary}>
        <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
        {edges.map((edge) => {
          const from = at.get(edge.from)!;
          const dest = at.get(edge.to)!;
          const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, dest.x - 2, dest.y + HEIGHT / 2];
          const cycle = cycles.has(edge.id);
          const bend = (x2 - x1) / 2;
          const path = cycle
            ? `M${x1} ${y1} h18 V${height - 14} H${dest.x - 18} V${y2} H${x2}`
            : `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
          const [lx, ly] = cycle ? [(from.x + dest.x + WIDTH) / 2, height - 18] : [x1 + Math.min(bend, GAP_X / 2), (y1 + y2) / 2 - 6];
          const text = [...(cycle ? ["cycle"] : []), ...(edge.text === undefined ? [] : [edge.text])].join(" · ");
          return (
            <g>
              <path class={`edge ${cycle ? "cycle" : ""} ${edge.kind ?? ""}`} d={path} marker-end="url(#tip)"><title>{`${edge.title}${cycle ? " (closes a cycle)" : ""}`}</title></path>
              {text !== "" && <text class="label" x={lx} y={ly} text-anchor="middle">{text}</text>}
            </g>
          );
        })}
        {nodes.map((node) => <Box node={node} {...at.get(node.id)!} />)}
      </svg>
    </div>
  );
}

function Box({ node, x, y }: { node: GraphNode; x: number; y: number }) {
  const shown = node.text.length > CHARS_MAX ? `${node.text.slice(0, CHARS_MAX - 1)}…` : node.text;
  const box = (
    <>
      <rect class={node.kind ?? ""} x={x} y={y} width={WIDTH} height={HEIGHT} rx={node.kind === "pipeline" ? HEIGHT / 2 : 6} />
      <text x={x + WIDTH / 2} y={y + HEIGHT / 2 + 4} text-anchor="middle">{shown}<title>{node.label}</title></text>
    </>
  );
  return node.href === undefined ? <g role="img" aria-label={node.label}>{box}</g> : <a href={node.href} aria-label={node.label}>{box}</a>;
}
