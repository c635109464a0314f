import { render } from "preact";
import { App } from "./app.tsx";
import { enter } from "./session.ts";
import "./style.css";

void enter();
render(<App />, document.getElementById("app")!);
