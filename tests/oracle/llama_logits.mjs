// The probabilities that llama.cpp gives after each token of a text, for compare_llama_cpp.py.
//
// node llama_logits.mjs PEER JOBS.json: PEER is the folder into which npm installed node-llama-cpp; JOBS is a list of {model, ids}.
// Writes MODEL.json: for each position a list of [id, probability].
import fs from "node:fs";
import path from "node:path";
import {pathToFileURL} from "node:url";

const [peer, jobs] = process.argv.slice(2);
const entry = path.resolve(peer, "node_modules/node-llama-cpp/dist/index.js");
const {getLlama} = await import(pathToFileURL(entry).href);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});
// Everything that could round is off or f32.
const options = {temperature: 1, topK: 0, topP: 1, minP: 0};

for (const {model: modelPath, ids} of JSON.parse(fs.readFileSync(jobs))) {
  const model = await llama.loadModel({modelPath});
  const context = await model.createContext({contextSize: 64, batchSize: 64, threads: 1, flashAttention: false,
                                             experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"});
  const outputs = await context.getSequence().controlledEvaluate(ids.map(id => [id, {generateNext: {probabilities: true, options}}]));
  fs.writeFileSync(modelPath + ".json", JSON.stringify(outputs.map(output => [...output.next.probabilities])));
  await context.dispose();
  await model.dispose();
}
process.exit(0);
