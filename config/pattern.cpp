// See pattern.hpp.
#include "config/pattern.hpp"

#include <algorithm>
#include <cstddef>

namespace cupool::config {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// "", "a/", ".", "a/..": no file can have that name.
bool names_folder(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  return name.empty() || name == "." || name == "..";
}

bool is_variable_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && !is_digit(name.front()) && std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

/// One piece of a pattern: what follows a '%' (kind p h r q %), or plain text (kind 0).
struct Piece {
  char kind = 0;
  std::string_view text;  ///< plain text, or the variable of q
  const char* problem = nullptr;
};

/// Takes the first piece off `rest`, which is not empty.
Piece take_piece(std::string_view& rest) {
  Piece piece;
  if (rest.front() != '%') {
    piece.text = rest.substr(0, rest.find('%'));
    rest.remove_prefix(piece.text.size());
    return piece;
  }
  piece.kind = rest.size() > 1 ? rest[1] : '\0';
  if (std::string_view("phrq%").find(piece.kind) == std::string_view::npos) {
    piece.problem = "a % that starts none of %p %h %r %q{VAR} %%";
    return piece;
  }
  rest.remove_prefix(2);
  if (piece.kind != 'q') return piece;
  const std::size_t end = rest.find('}');
  if (!rest.starts_with('{') || end == std::string_view::npos || !is_variable_name(rest.substr(1, end - 1))) {
    piece.problem = "%q must be followed by {VARIABLE}";
    return piece;
  }
  piece.text = rest.substr(1, end - 1);
  rest.remove_prefix(end + 1);
  return piece;
}

/// `value` as a part of one file name: it can neither leave its folder nor garble a terminal.
std::string as_part_of_name(std::string value) {
  if (value == "." || value == "..") std::replace(value.begin(), value.end(), '.', '_');
  std::replace_if(
      value.begin(), value.end(), [](char c) { return c == '/' || is_control(c); }, '_');
  return value;
}

}  // namespace

const char* pattern_problem(std::string_view pattern) {
  if (pattern.empty()) return "empty";
  if (names_folder(pattern)) return "a folder, not a file";
  if (pattern.starts_with("~/")) return "~ is for shells to expand, which did not happen: write the folder out";
  if (std::any_of(pattern.begin(), pattern.end(), is_control)) return "a control character in a file name";
  while (!pattern.empty()) {
    if (const Piece piece = take_piece(pattern); piece.problem != nullptr) return piece.problem;
  }
  return nullptr;
}

std::optional<std::string> expand_pattern(std::string_view pattern, const PatternFacts& facts,
                                          std::optional<std::string> (*lookup)(std::string_view variable)) {
  if (pattern_problem(pattern) != nullptr) return std::nullopt;
  bool begins_with_nothing = false;
  std::string path;
  while (!pattern.empty()) {
    const Piece piece = take_piece(pattern);
    switch (piece.kind) {
      case 'p': path += std::to_string(facts.pid); break;
      case 'h': path += as_part_of_name(facts.host); break;
      case 'r': path += as_part_of_name(facts.rank); break;
      case 'q': {
        const std::string value = as_part_of_name(lookup(piece.text).value_or(std::string()));
        begins_with_nothing = begins_with_nothing || (value.empty() && (path.empty() || path.back() == '/'));
        path += value;
        break;
      }
      case '%': path += '%'; break;
      default: path += piece.text; break;
    }
  }
  // Nor ".json", of which a variable was to be the name
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  if (names_folder(path) || (name.starts_with('.') && begins_with_nothing)) return std::nullopt;
  return path;
}

std::string numbered_name(const std::string& report_path, const std::string& word, int k) {
  const std::size_t slash = report_path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  std::size_t dot = report_path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = report_path.size();  // none, or a hidden file's own dot
  return report_path.substr(0, dot) + "." + word + std::to_string(k) + report_path.substr(dot);
}

std::string oom_name(const std::string& report_path, int k) { return numbered_name(report_path, "oom", k); }

}  // namespace cupool::config
