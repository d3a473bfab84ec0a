// Two texts beside each other: equal lines face each other, the others stand alone.

export interface Pair {
  left: string | null;
  right: string | null;
}

/** More cells than this are not compared one by one: only the equal beginnings and ends are found. */
const CELLS = 4_000_000;

export function diff(left: string[], right: string[]): Pair[] {
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let tail = 0;
  while (
    tail < left.length - start &&
    tail < right.length - start &&
    left[left.length - 1 - tail] === right[right.length - 1 - tail]
  )
    tail += 1;
  const [a, b] = [left.slice(start, left.length - tail), right.slice(start, right.length - tail)];
  const equal = (line: string): Pair => ({ left: line, right: line });
  return [
    ...left.slice(0, start).map(equal),
    ...(a.length * b.length > CELLS ? apart(a, b) : middle(a, b)),
    ...left.slice(left.length - tail).map(equal),
  ];
}

function apart(a: string[], b: string[]): Pair[] {
  return [...a.map((line) => ({ left: line, right: null })), ...b.map((line) => ({ left: null, right: line }))];
}

/** Lines that stand in each other's place face each other; where one side has more, the rest stands alone. */
export function facing(pairs: Pair[]): Pair[] {
  const found: Pair[] = [];
  let [less, more]: [string[], string[]] = [[], []];
  const flush = (): void => {
    for (let n = 0; n < Math.max(less.length, more.length); n += 1) found.push({ left: less[n] ?? null, right: more[n] ?? null });
    [less, more] = [[], []];
  };
  for (const pair of pairs) {
    if (pair.left !== null && pair.left === pair.right) {
      flush();
      found.push(pair);
      continue;
    }
    if (pair.left !== null) less.push(pair.left);
    if (pair.right !== null) more.push(pair.right);
  }
  flush();
  return found;
}

/** By the longest common subsequence. */
function middle(a: string[], b: string[]): Pair[] {
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const skip = Math.max(table[(i + 1) * width + j] as number, table[i * width + j + 1] as number);
      table[i * width + j] = a[i] === b[j] ? (table[(i + 1) * width + j + 1] as number) + 1 : skip;
    }
  }
  const found: Pair[] = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) found.push({ left: a[i++] as string, right: b[j++] as string });
    else if ((table[(i + 1) * width + j] as number) >= (table[i * width + j + 1] as number))
      found.push({ left: a[i++] as string, right: null });
    else found.push({ left: null, right: b[j++] as string });
  }
  return [...found, ...apart(a.slice(i), b.slice(j))];
}
