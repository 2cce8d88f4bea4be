// Hugging Face's tokenizers, by npm's package, with the protocol of tokenize_strings.cpp:
// node oracle.mjs TOKENIZER.json encode|special|decode STRINGS RESULTS, with the folder of node_modules as NODE_HOME.
import { createRequire } from 'node:module';
import { openSync, readFileSync, writeSync, closeSync } from 'node:fs';

const { Tokenizer } = createRequire(process.env.NODE_HOME + '/')('tokenizers');
const [file, mode, strings, results] = process.argv.slice(2);
const tokenizer = Tokenizer.fromFile(file);
const input = readFileSync(strings);
const output = openSync(results, 'w');
const lists = [];
for (let at = 0; at < input.length;) {
  const count = input.readUInt32LE(at);
  const bytes = mode === 'decode' ? 4 * count : count;
  at += 4;
  lists.push([at, at + bytes]);
  at += bytes;
}
const ids_of = ([begin, end]) => Array.from({ length: (end - begin) / 4 }, (_, i) => input.readUInt32LE(begin + 4 * i));
const write = (count, bytes) => {
  const head = Buffer.alloc(4);
  head.writeUInt32LE(count);
  writeSync(output, Buffer.concat([head, bytes]));
};
const write_text = (text) => { const bytes = Buffer.from(text, 'utf8'); write(bytes.length, bytes); };
const kBatch = 2000;
for (let first = 0; first < lists.length; first += kBatch) {
  const batch = lists.slice(first, first + kBatch);
  if (mode === 'decode') {
    (await tokenizer.decodeBatch(batch.map(ids_of), false)).forEach(write_text);
    continue;
  }
  const texts = batch.map(([begin, end]) => input.toString('utf8', begin, end));
  const encodings = await tokenizer.encodeBatch(texts, { addSpecialTokens: mode === 'special' });
  const ids = encodings.map((encoding) => encoding.getIds());
  const decoded = await tokenizer.decodeBatch(ids, false);
  ids.forEach((each, i) => {
    write(each.length, Buffer.from(Uint32Array.from(each).buffer));
    write_text(decoded[i]);
  });
}
closeSync(output);
