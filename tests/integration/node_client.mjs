// The openai client for Node against a proxy: prints what it got, as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const entry = createRequire(folder + "/package.json").resolve("openai");
const { OpenAI } = await import(pathToFileURL(entry).href);
const messages = [{ role: "system", content: "find the mail" }, { role: "user", content: "when is the dentist for dana?" }];
const tools = [{ type: "function", function: { name: "search", parameters: { type: "object", properties: { keywords: { type: "string" } } } } }];
const client = (episode) => new OpenAI({ baseURL: `${url}/t/node/e/${episode}/v1`, apiKey: "any", maxRetries: 0 });
const got = {};

const { data, response } = await client("node-chat").chat.completions.create({ model: "gpt-4o-mini", messages, tools, max_tokens: 8 }).withResponse();
got.chat = { model: data.model, tokens: data.usage.completion_tokens, episode: response.headers.get("x-slipstream-episode") };

const stream = await client("node-stream").chat.completions.create({ model: "inbox", messages, max_tokens: 8, stream: true, stream_options: { include_usage: true } });
let last;
for await (const event of stream) last = event;
got.stream = { tokens: last.usage.completion_tokens };

const helper = client("node-helper").chat.completions.stream({ model: "inbox", messages, max_tokens: 8 });
got.helper = { choices: (await helper.finalChatCompletion()).choices.length };

const reply = await client("node-responses").responses.create({ model: "inbox", input: messages, max_output_tokens: 8 });
got.responses = { status: reply.status, tokens: reply.usage.output_tokens, text: typeof reply.output_text };

const kinds = [];
for await (const event of client("node-responses-stream").responses.stream({ model: "inbox", input: "hi", max_output_tokens: 8 })) kinds.push(event.type);
got.kinds = [kinds[0], kinds.at(-1)];

try {
  await client("node-error").chat.completions.create({ model: "no-such-model", messages });
} catch (e) {
  got.error = { status: e.status, name: e.constructor.name };
}
const aborted = new AbortController();
try {
  const long = await client("node-abort").chat.completions.create({ model: "inbox", messages, max_tokens: 300, stream: true, ignore_eos: true }, { signal: aborted.signal });
  for await (const _ of long) aborted.abort();
} catch (e) {
  if (e.constructor.name !== "APIUserAbortError") throw e;
}
console.log(JSON.stringify(got));
