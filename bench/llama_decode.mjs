// llama.cpp as compare_decode.py's peer: the time of a prompt and of the tokens that follow it, by npm's node-llama-cpp.
//
// node llama_decode.mjs PEER MODEL.gguf THREADS TOKENS ID…: PEER is the folder into which npm installed it. Prints JSON:
// prefill_s until the first token is there, decode_s for the TOKENS − 1 after it, and ids.
import path from "node:path";
import {pathToFileURL} from "node:url";

const [peer, modelPath, threadsText, countText, ...prompt] = process.argv.slice(2);
const threads = Number(threadsText);
const count = Number(countText);
const entry = path.resolve(peer, "node_modules/node-llama-cpp/dist/index.js");
const {getLlama} = await import(pathToFileURL(entry).href);

const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({contextSize: prompt.length + count + 8, batchSize: 512, threads});
const sequence = context.getSequence();
const now = () => performance.now() * 1e-3;

async function run() {
  await sequence.clearHistory();
  const begun = now();
  await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1).map(Number));
  const ids = [];
  let first = begun;
  for await (const id of sequence.evaluate([Number(prompt.at(-1))], {temperature: 0, yieldEogToken: true})) {
    ids.push(id);
    if (ids.length === 1) first = now();
    if (ids.length === count) break;
  }
  return {prefill_s: first - begun, decode_s: now() - first, ids};
}

await run();  // touches the mapped file and all buffers
console.log(JSON.stringify({system: llama.systemInfo, ...await run()}));
process.exit(0);
