// Guesses words and numbers with the model behind an OpenAI-compatible endpoint: the Vercel AI SDK's own loop, and one tool.
//
//     npm ci --prefix examples/words
//     OPENAI_BASE_URL=http://127.0.0.1:8100/v1 node examples/words/agent.mjs --games 64 --concurrency 8
//
// It knows nothing of Slipstream but what its README says: three headers, and a reward that is posted at the end. `--untagged`
// leaves both out. Elsewhere the headers mean nothing, and nobody wants the reward.
//
// With `--lines` it plays what it is told to, many games at once. It reads a JSON object a line,
//     {"run": 1, "item": {"kind", "secret", "first"}, "split": "train", "tagged": true, "post_reward": true}
// and writes one for each game as it ends: {"run": 1, "reward": 1, "calls": 4}, or {"run": 1, "error": "…"}.

import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, stepCountIs, tool } from 'ai';
import { drawItem, Game } from './game.mjs';

/** A tool that makes a guess. Its argument has the name of what is sought. */
function guessTool(game) {
  const type = game.kind === 'word' ? 'string' : 'integer';
  return tool({
    description: `Guess the ${game.kind}. Returns what is right about the guess.`,
    inputSchema: jsonSchema({ type: 'object', properties: { [game.kind]: { type } }, required: [game.kind] }),
    execute: async (input) => game.guess(String(input[game.kind])),
  });
}

/** One game. Where the agent tags, headers name the run, and the reward is posted at its end. */
async function play(endpoint, item, { split = 'train', tagged = true, post_reward: posts = true }) {
  const game = new Game(item);
  const episode = randomUUID();
  const tags = { 'x-slipstream-episode': episode, 'x-slipstream-task': game.id, 'x-slipstream-split': split };
  const result = await generateText({
    model: endpoint.model,
    tools: { guess: guessTool(game) },
    prompt: game.question,
    stopWhen: stepCountIs(game.left + 1), // after its guesses it reads how the game ended
    headers: tagged ? tags : {},
  });
  if (tagged) {
    const path = posts ? 'rewards' : 'done';
    const reply = await fetch(`${endpoint.root}/slipstream/v1/episodes/${episode}/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(posts ? { value: game.reward } : {}),
    });
    await reply.arrayBuffer();
    if (!reply.ok && reply.status !== 404) throw new Error(`the ${path} route answered ${reply.status}`);
  }
  return { reward: game.reward, calls: result.steps.length };
}

/** Play what the lines of standard input ask for, until it ends. */
async function playLines(endpoint) {
  const games = [];
  for await (const line of createInterface({ input: process.stdin })) {
    const { run, item, ...how } = JSON.parse(line);
    const game = play(endpoint, item, how).catch((error) => ({ error: String(error) }));
    games.push(game.then((played) => process.stdout.write(`${JSON.stringify({ run, ...played })}\n`)));
  }
  await Promise.all(games);
}

/** Play games drawn at random, `runs` of each in a row. Returns the exit code: 1 when a game failed. */
async function playAll(endpoint, { games, runs, concurrency, split, tagged }) {
  const ended = { games: 0, failed: 0, reward: 0, calls: 0 };
  let begun = 0;
  let item;
  const worker = async () => {
    while (begun < games) {
      if (begun % runs === 0) item = drawItem(split);
      begun += 1;
      try {
        const played = await play(endpoint, item, { split, tagged });
        ended.games += 1;
        ended.reward += played.reward;
        ended.calls += played.calls;
        if (ended.games % 64 === 0) console.error(`${ended.games} games, mean reward ${ended.reward / ended.games}`);
      } catch (error) {
        ended.failed += 1;
        console.error(`a game failed: ${error}`);
        await new Promise((resolve) => setTimeout(resolve, 200)); // an endpoint that is down is not hammered
      }
    }
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  console.log(JSON.stringify({ ...ended, reward: ended.reward / Math.max(1, ended.games) }));
  return ended.failed ? 1 : 0;
}

const { values } = parseArgs({
  options: {
    'base-url': { type: 'string', default: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8100/v1' },
    model: { type: 'string', default: 'model' },
    games: { type: 'string', default: 'Infinity' },
    runs: { type: 'string', default: '8' },
    concurrency: { type: 'string', default: '8' },
    split: { type: 'string', default: 'train' },
    untagged: { type: 'boolean', default: false },
    lines: { type: 'boolean', default: false },
  },
});
const url = values['base-url'].replace(/\/$/, '');
const provider = createOpenAICompatible({ name: 'openai', baseURL: url, apiKey: process.env.OPENAI_API_KEY ?? 'none' });
const endpoint = { model: provider(values.model), root: url.replace(/\/v1$/, '') };
if (values.lines) {
  await playLines(endpoint);
} else {
  const [games, runs, concurrency] = [values.games, values.runs, values.concurrency].map(Number);
  process.exitCode = await playAll(endpoint, { games, runs, concurrency, split: values.split, tagged: !values.untagged });
}
