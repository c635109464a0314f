/** Small pictures for the navigation: lines in the colour of their text. */

const PATHS: { [name: string]: string } = {
  overview: "M2.5 2.5h4.5v4.5H2.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5H2.5zM9 9h4.5v4.5H9z",
  topics: "M2.5 4h11M2.5 8h11M2.5 12h7",
  queues: "M2.5 4.5h3v7h-3zM7 4.5h3v7H7zM11.5 8h3M13 6.3 14.7 8 13 9.7",
  routers: "M1.5 8h4l3.5-4h5M5.5 8 9 12h5M12.3 2.3 14 4l-1.7 1.7M12.3 10.3 14 12l-1.7 1.7",
  groups: "M6 7.2a2.4 2.4 0 1 0 0-4.8 2.4 2.4 0 0 0 0 4.8zM1.5 13.6c.2-2.5 1.9-4 4.5-4s4.3 1.5 4.5 4M10.6 2.7a2.4 2.4 0 0 1 0 4.2M12 9.9c1.5.6 2.3 1.8 2.5 3.7",
  webhooks: "M2 4h12v8H2zM2.3 4.4 8 8.8l5.7-4.4",
  schedules: "M8 14a6 6 0 1 0 0-12 6 6 0 0 0 0 12zM8 4.8V8l2.4 1.6",
  transactions: "M2.5 5.5h11L10.5 2.5M13.5 10.5h-11l3 3",
  pipelines: "M2 3h12L9.6 8.4V13l-3.2-1.6v-3z",
  server: "M2.5 3h11v4.2h-11zM2.5 8.8h11V13h-11zM5 5.1h.01M5 10.9h.01",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
