// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a command line, said so that the reader knows what would be right.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace gemmd {

// The name that looks most like `name`: fewest letters to insert, delete, replace or swap with
// their neighbour. Empty where none looks like it.
absl::string_view NearestName(absl::string_view name, absl::Span<const std::string> names);

// For the check of an option that takes one of some names, at least one: empty where it got one of
// them, otherwise what it got, what it takes and which of that looks most like it.
std::function<std::string(const std::string&)> OneOf(std::vector<std::string> names);

// The help that the arguments ask for, though others of them are wrong; empty where they ask for
// none.
std::string HelpAskedFor(const CLI::App& app);

// Why the program `app` refuses the arguments that it was to parse: "multiply: got option --randm,
// want one of its options, such as --random; gemmctl multiply --help lists them".
std::string DescribeUsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace gemmd
