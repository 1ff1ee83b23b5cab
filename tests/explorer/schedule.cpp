// Operations to text and back.
#include "schedule.hpp"

#include <istream>
#include <sstream>
#include <stdexcept>

namespace explorer {
namespace {

struct Row {
  const char* name;
  std::vector<const char*> arguments;
};

const std::array<Row, kKinds>& rows() {
  static const std::array<Row, kKinds> table = {
#define ROW(name, ...) Row{#name, {__VA_ARGS__}},
      EXPLORER_OPERATIONS(ROW)
#undef ROW
  };
  return table;
}

Kind kind_of(const std::string& name) {
  for (std::size_t i = 0; i < kKinds; ++i)
    if (name == rows()[i].name) return static_cast<Kind>(i);
  throw std::runtime_error("unknown operation " + name);
}

void read_argument(const std::string& word, Op* op) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) {
    const int number = std::stoi(word.substr(1));
    if (word[0] == 't') op->thread = static_cast<std::uint8_t>(number);
    else if (word[0] == 'c') op->context = static_cast<std::uint8_t>(number);
    else if (word[0] == '@') op->after_calls = static_cast<std::uint16_t>(number);
    else throw std::runtime_error("what is " + word + "?");
    return;
  }
  const std::vector<const char*>& names = rows()[static_cast<std::size_t>(op->kind)].arguments;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word.compare(0, equals, names[i]) != 0) continue;
    op->args[i] = static_cast<std::uint32_t>(std::stoul(word.substr(equals + 1)));
    return;
  }
  throw std::runtime_error("unknown argument " + word);
}

}  // namespace

const char* name_of(Kind kind) { return rows()[static_cast<std::size_t>(kind)].name; }

std::string to_text(const Op& op) {
  std::ostringstream text;
  text << name_of(op.kind) << " t" << int{op.thread} << " c" << int{op.context};
  if (op.after_calls != 0) text << " @" << op.after_calls;
  const std::vector<const char*>& names = rows()[static_cast<std::size_t>(op.kind)].arguments;
  for (std::size_t i = 0; i < names.size(); ++i) text << ' ' << names[i] << '=' << op.args[i];
  return text.str();
}

std::vector<Op> read_schedule(std::istream& in) {
  std::vector<Op> ops;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    try {
      Op op;
      op.kind = kind_of(word);
      while (words >> word) read_argument(word, &op);
      ops.push_back(op);
    } catch (const std::exception& error) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + error.what());
    }
  }
  return ops;
}

}  // namespace explorer
