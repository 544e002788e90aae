// SPDX-License-Identifier: Apache-2.0
// A TOML table read strictly: typed values, and a key that is not read is an error.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// Include this header in few files: it costs seconds of compilation.
//
// toml++ asserts, and under NDEBUG has the compiler assume, that the name of a table begins as a
// key may. Text from outside need not ("[}x]"): its own error for that comes a line later, so
// neither.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace rode::lab {

// Throws "[operation] file 'source': line N: ..." where the text is not TOML.
toml::table parse_toml(std::string_view text, std::string_view source, std::string_view operation);

class TomlTable {
 public:
  // `path` names the table in errors: "train", "optimizers.rode", "" for the root.
  TomlTable(const toml::table& table, std::string source, std::string path, std::string operation)
      : table_(&table),
        source_(std::move(source)),
        path_(std::move(path)),
        operation_(std::move(operation)) {}

  bool has(std::string_view key);
  // The value where the key is there; a wrong type or a value out of range throws.
  std::optional<std::string> text(std::string_view key);
  std::optional<std::string> name(std::string_view key);  // by the rule of name.h
  std::optional<std::string> word(std::string_view key, const std::vector<std::string>& allowed);
  std::optional<std::int64_t> whole(std::string_view key, std::int64_t least,
                                    std::int64_t most = std::numeric_limits<std::int64_t>::max());
  std::optional<double> number(std::string_view key, double least, double most);
  std::optional<bool> truth(std::string_view key);
  std::optional<TomlTable> table(std::string_view key);
  std::vector<TomlTable> tables(std::string_view key);  // [[key]]

  // Keys and values as text, all of them: "0.001", "true", "0.9,0.95". For open sets of keys.
  std::vector<std::pair<std::string, std::string>> rest_as_text();
  std::vector<std::string> keys() const;

  // The value of a key that must be there.
  template <class T>
  T required(std::string_view key, std::optional<T> value) {
    if (!value) throw_missing(key);
    return *std::move(value);
  }

  // Throws for the first key that no call above has named, with the nearest that one has.
  void finish() const;

  // An error at the line of `key`, or of the table where the key is empty.
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;

 private:
  const toml::node* find(std::string_view key);
  [[noreturn]] void throw_missing(std::string_view key) const;
  [[noreturn]] void throw_type(std::string_view key, std::string_view expected) const;
  std::string place() const;  // " in [train]"

  const toml::table* table_;
  std::string source_;
  std::string path_;
  std::string operation_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace rode::lab
