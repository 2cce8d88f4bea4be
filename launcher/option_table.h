// Options as a table: each row declares one option with all its properties. From the rows follow what CLI11 parses and --help
// shows, how texts become values, what nodes must agree on, which files a command reads and writes, and what a checkpoint keeps.
// A struct of options has a member for each option, with its default, and a function declare() that adds their rows:
//
//   void TrainOptions::declare(OptionTable& table) {
//     table.group("Training");
//     table.add("--lr RATE", peak_learning_rate, "learning rate", Number{…}).saved(&CheckpointState::learning_rate);
//
// Rows refer to the struct's members, so a table lives no longer than the struct.
#pragma once

#include "launcher/values.h"

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tsprun::detail {
struct CheckpointState;
}  // namespace tsprun::detail

namespace tsprun::detail::launcher {

/// The value of an option and the text that was typed for it. It converts to the value.
template <class T>
struct Given {
  T value{};         ///< the default, until it is parsed from the text
  std::string text;  ///< as typed; empty: it wasn't

  Given() = default;
  explicit Given(T usual) : value(std::move(usual)) {}
  Given& operator=(T other) {
    value = std::move(other);
    return *this;
  }
  bool given() const { return !text.empty(); }
  operator const T&() const { return value; }
  const T* operator->() const { return &value; }
};

/// The values of an option that takes several, and their texts.
template <class T>
struct GivenList {
  std::vector<T> values;
  std::vector<std::string> texts;
};

/// Properties of an option; combined with |.
enum class Trait : unsigned {
  none = 0,
  required = 1 << 0,         ///< must be typed
  computed = 1 << 1,         ///< its default isn't a fixed value, or its help says it
  per_node = 1 << 2,         ///< may differ between the nodes of a job: it says where a node is, or what it prints or writes
  all_or_none = 1 << 3,      ///< all nodes must have it or none, with whatever value
  reads = 1 << 4,            ///< names a file or folder that the command reads
  writes = 1 << 5,           ///< names a file that the command writes; "-" is stdout
  writes_in_place = 1 << 6,  ///< names a file into which all ranks write their parts at once, so it can't be stdout
  after_colon = 1 << 7,      ///< the file's name follows a colon: "goal:FILE"
  of_ranks = 1 << 8,         ///< only ranks heed it: refused by commands that start none
};
constexpr Trait operator|(Trait one, Trait other) {
  return static_cast<Trait>(static_cast<unsigned>(one) | static_cast<unsigned>(other));
}

/// Row of an option, without its value's type.
struct OptionRow {
  std::string names;    ///< "-n,--ranks"; "op" for an argument without a name
  std::string metavar;  ///< what stands for the value in --help; empty: there is none
  std::string help;
  std::string group;               ///< heading in --help
  std::string usual;               ///< the default, as --help shows it
  std::vector<std::string> words;  ///< those from which the value is chosen; empty: it isn't
  Trait traits = Trait::none;
  std::function<CLI::Option*(CLI::App&)> declare;
  std::function<void()> parse = [] {};
  std::function<std::string(const std::string& text)> spelled;  ///< the usual spelling of a value's text; empty: the text is it
  // Functions of options that a checkpoint keeps; empty for others.
  std::function<void(const CheckpointState&)> restore;
  std::function<void(CheckpointState&)> record;
  std::function<std::string(const CheckpointState& saved, const CheckpointState& now)> difference;
  CLI::Option* option = nullptr;  ///< what CLI11 knows of it, after bind()

  /// Returns the name in messages: "-n", "--lr", "op".
  std::string name() const { return names.substr(0, names.find(',')); }
  /// Returns the first long name, "--ranks"; empty: there is none.
  std::string long_name() const;
  /// Returns the texts that were typed for it, after CLI11 has parsed the words; of a flag, one.
  std::vector<std::string> typed() const;
  bool is(Trait trait) const { return (static_cast<unsigned>(traits) & static_cast<unsigned>(trait)) != 0; }
};

/// A row whose value's type is known; result of add().
template <class T>
struct TypedRow {
  OptionRow& row;
  Given<T>& given;
  std::function<std::string(const T&)> print;

  /// Makes checkpoints keep the value in this member. A resumed run takes it from there unless it is typed, and reports a
  /// difference.
  template <class Member>
  void saved(Member CheckpointState::*member) const {
    row.restore = [member, &to = given, show = print](const auto& state) {
      if (!to.given()) to.text = show(to.value = static_cast<T>(state.*member));
    };
    row.record = [member, &from = given](auto& state) { state.*member = static_cast<Member>(from.value); };
    row.difference = [member, show = print](const auto& then, const auto& now) {
      return then.*member == now.*member ? std::string()
                                         : fmt::format("{} now, {} in the checkpoint", show(static_cast<T>(now.*member)),
                                                       show(static_cast<T>(then.*member)));
    };
  }
};

/// The rows of one struct of options, or of several.
class OptionTable {
 public:
  OptionTable() = default;
  OptionTable(OptionTable&&) = default;
  OptionTable(const OptionTable&) = delete;
  /// Makes a table of a struct's options.
  template <class Options>
  requires(!std::same_as<std::remove_const_t<Options>, OptionTable>) explicit OptionTable(Options& options) {
    options.declare(*this);
  }

  /// Sets the heading of the rows that follow.
  void group(std::string name) { group_ = std::move(name); }

  /// Adds a flag. `usage`: its names.
  OptionRow& add(const std::string& usage, bool& flag, std::string help, Trait traits = Trait::none);
  /// Adds an option whose value is its text. `usage`: names, a blank, what stands for the value.
  OptionRow& add(const std::string& usage, std::string& text, std::string help, Trait traits = Trait::none);
  /// Adds an option with one of several words. "{}" in the help becomes their list.
  void add(const std::string& usage, std::string& text, std::string help, Choice<std::string> choice, Trait traits = Trait::none);
  /// Adds an option that may be given several times.
  void add(const std::string& usage, std::vector<std::string>& texts, std::string help, Trait traits = Trait::none);
  /// Adds an option whose text is parsed later, when it is validated.
  template <class T>
  TypedRow<T> add(const std::string& usage, Given<T>& given, std::string help, Trait traits = Trait::none) {
    return add(usage, given, std::move(help), nullptr, traits);
  }
  /// Adds an option with a parser (values.h). For a choice "{}" in the help becomes the list of its words; of numbers the refusal
  /// proposes the default.
  template <class T, class Parser>
  TypedRow<T> add(const std::string& usage, Given<T>& given, std::string help, Parser parser, Trait traits = Trait::none) {
    if constexpr (std::same_as<Parser, Number>)
      if (parser.range.usual == 0) parser.range.usual = given.value;
    std::vector<std::string> words;
    if constexpr (requires { parser.words(); }) words = parser.words();
    OptionRow& row = add(usage, given.text, with_words(std::move(help), words), traits);
    row.words = std::move(words);
    const auto print = [parser](const T& value) { return print_value(parser, value); };
    if (!row.is(Trait::computed)) row.usual = print(given.value);
    if constexpr (!std::same_as<Parser, std::nullptr_t>) {
      row.parse = [name = row.name(), &given, parser] {
        if (given.given()) given.value = static_cast<T>(parser(name, given.text));
      };
      row.spelled = [name = row.name(), parser, print](const std::string& text) {
        try {
          return print(static_cast<T>(parser(name, text)));
        } catch (const std::exception&) {
          return text;  // which parse() refuses
        }
      };
    }
    return {row, given, print};
  }

  /// Returns the row with this name, "--recompute". Precondition: there is one.
  OptionRow& operator[](const std::string& name);
  const std::deque<OptionRow>& rows() const& { return rows_; }
  void rows() const&& = delete;

  /// Declares all rows on CLI11's application or command. CLI11 then sets the texts.
  void bind(CLI::App& app);
  /// Turns texts into values. Throws Error(refused).
  void parse() const;

 private:
  OptionRow& append(const std::string& usage, std::string help, Trait traits);
  static std::string with_words(std::string help, const std::vector<std::string>& words);

  std::deque<OptionRow> rows_;  // adding a row doesn't move the others
  std::string group_ = "Options";
};

}  // namespace tsprun::detail::launcher

/// Prints an option's value.
template <class T>
struct fmt::formatter<tsprun::detail::launcher::Given<T>> : fmt::formatter<T> {
  auto format(const tsprun::detail::launcher::Given<T>& given, auto& context) const {
    return fmt::formatter<T>::format(given.value, context);
  }
};
