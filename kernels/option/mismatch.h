// SPDX-License-Identifier: Apache-2.0
//
// What programs say of an option without a value, or with too many, in the form of all other
// refusals. CLI11 says "--batch-most: 1 required COUNT:1 to 4096 missing".
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace gemmd::option {

// "--rate: got nothing, want R,...", "--type: got 2 values, want 1"; CLI11's words for all else.
inline std::string TextOf(const CLI::Error& error) {
  const std::string text = error.what();
  const size_t end = text.find(": ");
  if (error.get_name() != "ArgumentMismatch" || end == text.npos) return text;
  const std::string name = text.substr(0, end);
  const std::string rest = text.substr(end);
  const std::string missing = " missing";
  const std::string one = ": 1 required ";  // A type follows, and after a colon its range.
  if (rest.starts_with(one) && rest.ends_with(missing)) {
    const std::string type = rest.substr(one.size(), rest.size() - one.size() - missing.size());
    return name + ": got nothing, want " + type.substr(0, type.find(':'));
  }
  const std::string most = ": At Most 1 required but received ";
  if (rest.starts_with(most)) {
    return name + ": got " + rest.substr(most.size()) + " values, want 1";
  }
  return text;
}

// For CLI::App::failure_message.
inline std::string FailureText(const CLI::App* app, const CLI::Error& error) {
  std::string text = CLI::FailureMessage::simple(app, error);
  return text.replace(0, std::string(error.what()).size(), TextOf(error));
}

}  // namespace gemmd::option
