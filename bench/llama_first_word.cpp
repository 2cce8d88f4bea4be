// llama.cpp as compare_first_word.py's peer: from a GGUF file to the first greedy token of a prompt. The script builds it with
// the headers and libraries of npm's node-llama-cpp.
//
// llama_first_word FOLDER MODEL.gguf THREADS PROMPT: FOLDER has llama.cpp's backends. Prints the token's id.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ggml-backend.h>
#include <llama.h>
#include <vector>

namespace {

int fail(const char* what) {
  std::fprintf(stderr, "llama_first_word: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return fail("expected FOLDER MODEL.gguf THREADS PROMPT");
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  ggml_backend_load_all_from_path(argv[1]);
  llama_model* const model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (model == nullptr) return fail("the model can't be loaded");
  const llama_vocab* const vocabulary = llama_model_get_vocab(model);

  const char* const prompt = argv[4];
  const auto bytes = static_cast<int>(std::strlen(prompt));
  std::vector<llama_token> ids(static_cast<std::size_t>(bytes) + 2);
  const int count = llama_tokenize(vocabulary, prompt, bytes, ids.data(), static_cast<int>(ids.size()), true, true);
  if (count < 1) return fail("the prompt can't be tokenized");

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<unsigned>(count) + 1;
  params.n_batch = static_cast<unsigned>(count);
  params.n_threads = params.n_threads_batch = std::atoi(argv[3]);
  llama_context* const context = llama_init_from_model(model, params);
  if (context == nullptr) return fail("no context");
  if (llama_decode(context, llama_batch_get_one(ids.data(), count)) != 0) return fail("the prompt can't be computed");
  const float* const logits = llama_get_logits_ith(context, -1);
  std::printf("%td\n", std::max_element(logits, logits + llama_vocab_n_tokens(vocabulary)) - logits);
  std::fflush(stdout);
  std::_Exit(0);  // the kernel frees memory sooner than llama.cpp does
}
