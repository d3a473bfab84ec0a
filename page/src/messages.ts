// One shape for messages of every wire format (chat, completions, messages, responses).

import type { Call, Json, JsonObject, Message } from "./types";

export interface ToolUse {
  id: string;
  name: string;
  args: string;
}

export interface Said {
  role: string;
  text: string;
  thought: string;
  uses: ToolUse[];
  /** The tool call that this message answers. */
  answers: string;
  /** Pictures and other parts that are no text, by kind. */
  others: string[];
  /** Pictures whose bytes stand in the message, as addresses of kind data:. The page asks no other host for one. */
  images: string[];
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function textOf(value: Json | undefined): string {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function pretty(value: Json | undefined): string {
  if (typeof value !== "string") return textOf(value);
  try {
    return JSON.stringify(JSON.parse(value), null, 1);
  } catch {
    return value;
  }
}

export function read(message: Message): Said {
  const said: Said = { role: "", text: "", thought: "", uses: [], answers: "", others: [], images: [] };
  if (!isObject(message)) return { ...said, role: "text", text: textOf(message) };
  const type = typeof message.type === "string" ? message.type : "";
  said.role = typeof message.role === "string" ? message.role : roleOf(type);
  said.thought = [message.reasoning_content, message.reasoning].filter((t) => typeof t === "string").join("\n");
  if (type.endsWith("call") && message.name !== undefined) addUse(said, message, message.arguments ?? message.input);
  else if (type.endsWith("call_output")) {
    said.answers = textOf(message.call_id);
    addPart(said, message.output ?? null);
  } else if (type === "reasoning") {
    for (const part of Array.isArray(message.summary) ? message.summary : []) {
      said.thought += isObject(part) ? textOf(part.text) : textOf(part);
    }
  }
  if (message.tool_call_id !== undefined) said.answers = textOf(message.tool_call_id);
  for (const use of Array.isArray(message.tool_calls) ? message.tool_calls : []) {
    if (!isObject(use)) continue;
    const inner = isObject(use.function) ? use.function : use;
    said.uses.push({ id: textOf(use.id), name: textOf(inner.name), args: pretty(inner.arguments ?? inner.input) });
  }
  const content = message.content;
  for (const part of Array.isArray(content) ? content : [content ?? null]) addPart(said, part);
  if (typeof message.text === "string" && content === undefined) addText(said, message.text);
  if (typeof message.refusal === "string") addText(said, message.refusal);
  return said;
}

function roleOf(type: string): string {
  if (type.endsWith("call_output")) return "tool";
  if (type.endsWith("call") || type === "reasoning" || type === "message") return "assistant";
  return type || "assistant";
}

function addText(said: Said, text: string): void {
  said.text += (said.text && text ? "\n" : "") + text;
}

function addUse(said: Said, use: JsonObject, args: Json | undefined): void {
  said.uses.push({ id: textOf(use.call_id ?? use.id), name: textOf(use.name), args: pretty(args) });
}

function addPart(said: Said, part: Json): void {
  if (part === null) return;
  if (!isObject(part)) return addText(said, textOf(part));
  if (part.type === "tool_use") addUse(said, part, part.input);
  else if (part.type === "tool_result") {
    said.answers = textOf(part.tool_use_id);
    said.role = "tool";
    for (const inner of Array.isArray(part.content) ? part.content : [part.content ?? null]) addPart(said, inner);
  } else if (part.type === "thinking") said.thought += textOf(part.thinking);
  else if (typeof part.text === "string") addText(said, part.text);
  else {
    said.others.push(typeof part.type === "string" ? part.type : textOf(part).slice(0, 80));
    const source = pictureIn(part);
    if (source !== null) said.images.push(source);
  }
}

/** In the forms of chat completions, responses and messages. */
function pictureIn(part: JsonObject): string | null {
  const { source } = part;
  if (isObject(source) && source.type === "base64") return pictureOf(`data:${textOf(source.media_type)};base64,${textOf(source.data)}`);
  return pictureOf(textOf(isObject(part.image_url) ? part.image_url.url : part.image_url));
}

function pictureOf(address: string): string | null {
  return /^data:image\/[a-z0-9.+-]+;base64,[A-Za-z0-9+/=]+$/i.test(address) ? address : null;
}

export function isAssistant(message: Message): boolean {
  return isObject(message) && (message.role === "assistant" || roleOf(String(message.type ?? "x")) === "assistant");
}

export function isSystem(message: Message): boolean {
  return isObject(message) && (message.role === "system" || message.role === "developer");
}

export function systemOf(call: Call): string {
  return call.messages.filter(isSystem).map(textOf).join("\n");
}

export function toolName(tool: Json): string {
  if (!isObject(tool)) return textOf(tool);
  const inner = isObject(tool.function) ? tool.function : tool;
  return textOf(inner.name ?? inner.type);
}

/** A line that says what a message is about. */
export function headline(message: Message | undefined, length = 90): string {
  if (message === undefined) return "";
  const said = read(message);
  const text = said.text || said.uses.map((u) => `${u.name}(${u.args})`).join(" ") || said.thought || said.others.join(", ");
  return text.slice(0, length * 4).replace(/\s+/g, " ").trim().slice(0, length);
}

/** What a refusal says, where its body has one of the usual shapes; else all of it. */
export function errorText(body: string): string {
  try {
    const whole = JSON.parse(body) as Json;
    const error = isObject(whole) && isObject(whole.error) ? whole.error : whole;
    return isObject(error) && typeof error.message === "string" ? error.message : body;
  } catch {
    return body;
  }
}
