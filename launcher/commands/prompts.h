// The prompts of `generate`: one from the command line, or the lines of a file.
#pragma once

#include "launcher/commands/command.h"
#include "launcher/model/model_options.h"
#include "launcher/model/model_text.h"
#include "layers/io/data.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tsprun::detail::launcher {

/// Beginning of a text.
struct Prompt {
  std::string name;  ///< in messages: "--prompt", "prompts.txt, line 3"
  std::vector<Token> ids;
};

/// Returns true if the prompt names a file of token ids instead of being a text.
bool prompt_is_file(const std::string& prompt);

/// Returns --prompt's tokens: a text's, or the ids of a .bin, .u32 or .npy file. Throws Error(refused) for a text that the model
/// can't take, and for ids that aren't in its vocabulary.
Prompt read_prompt(const std::string& prompt, const ModelCommandOptions& model, const ModelText& text);

/// Returns the tokens of each line of --prompts' file, without "\n" or "\r\n". Throws Error(refused) like read_prompt(), and if
/// the file can't be read, has no line or an empty one.
std::vector<Prompt> read_prompts(const std::filesystem::path& file, const ModelCommandOptions& model, const ModelText& text);

/// Throws Error(refused) if a prompt and `tokens` more are over the model's positions.
void check_room(std::span<const Prompt> prompts, std::size_t tokens, std::size_t positions);

}  // namespace tsprun::detail::launcher
