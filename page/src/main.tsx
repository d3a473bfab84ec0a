import { render } from "preact";
import { App } from "./app";
import { follow } from "./live";
import { drawPrintable } from "./printable";
import "./page.css";

const root = document.getElementById("app");
drawPrintable();
if (root) render(<App />, root);
void follow();
