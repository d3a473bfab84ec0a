// The rules of the two guessing games, as the agent knows them. `game.py` says the same; a test compares them.

import { readFileSync } from 'node:fs';

const data = JSON.parse(readFileSync(new URL('game.json', import.meta.url), 'utf8'));
const numbers = Array.from({ length: data.highest }, (_, i) => String(i + 1));

export const kinds = ['word', 'number'];

/** Everything that may be guessed in this kind of game. */
export const guessable = (kind) => (kind === 'word' ? data.words : numbers);

/** What the player is told of a guess: "s~1 a- l- t=4" for a word, "higher" or "lower" for a number, or "right". */
export function answer(kind, secret, guess) {
  if (guess === secret) return data.right;
  if (!guessable(kind).includes(guess)) return data.unknown;
  if (kind === 'number') return Number(secret) > Number(guess) ? 'higher' : 'lower';
  const mark = (letter, i) => (secret[i] === letter ? `=${i + 1}` : secret.includes(letter) ? `~${i + 1}` : '-');
  return [...guess].map((letter, i) => letter + mark(letter, i)).join(' ');
}

/** "train" or "eval": a quarter of the pairs of secret and first guess are held out. */
export function splitOf({ kind, secret, first }) {
  const [s, f] = [secret, first].map((text) => guessable(kind).indexOf(text));
  return ((37 * s + 61 * f + 11 * s * f) % 97) % 4 ? 'train' : 'eval';
}

/** A game of a split, at random. */
export function drawItem(split) {
  const draw = (list) => list[Math.floor(Math.random() * list.length)];
  for (;;) {
    const kind = draw(kinds);
    const item = { kind, secret: draw(guessable(kind)), first: draw(guessable(kind)) };
    if (item.secret !== item.first && splitOf(item) === split) return item;
  }
}

/** One game: `guess()` until `left` is 0. `reward` is 1 if the secret was found. */
export class Game {
  constructor({ kind, secret, first }) {
    Object.assign(this, { kind, secret, first, left: data.guesses[kind], reward: 0 });
  }

  get id() {
    return `${this.kind}-${this.secret}-${this.first}`;
  }

  /** What the player is asked. */
  get question() {
    return `${data.rules[this.kind]} ${this.first} ${answer(this.kind, this.secret, this.first)}`;
  }

  /** Make a guess. Returns what the player is told; after the last guess, what it was. */
  guess(guess) {
    const out = `${data.over} ${this.secret}`;
    if (!this.left) return out;
    const said = answer(this.kind, this.secret, guess);
    const found = said === data.right;
    this.left = found ? 0 : this.left - 1;
    this.reward = Number(found);
    return this.left || found ? said : out;
  }
}
