import { render } from "preact";
import { App } from "./app";
import { follow } from "./live";
import "./page.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
void follow();
