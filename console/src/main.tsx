import { render } from "preact";
import { App } from "./app.tsx";
import { askAhead } from "./pages/overview.tsx";
import { place } from "./route.ts";
import { enter } from "./session.ts";
import "./style.css";

void enter();
if ((place.value.path[0] ?? "overview") === "overview") askAhead();
render(<App />, document.getElementById("app")!);

// While there is nothing else to do: a server that is upgraded later does not have this file any more.
setTimeout(() => void import("./ui/plot.ts").catch(() => undefined), 3_000);
