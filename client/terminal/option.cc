// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/option.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/terminal/type_names.h"
#include "client/terminal/usage.h"
#include "kernels/option/decimal.h"
#include "kernels/option/number.h"

namespace gemmd {
namespace {

// "got 10y, want a number from 0 on".
std::string GotWant(const std::string& got, const std::string& want) {
  return absl::StrCat("got ", got, ", want ", want);
}

std::optional<std::vector<int64_t>> ShapeOf(const std::string& text, const ShapeRule& rule) {
  std::vector<int64_t> shape;
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(",x"))) {
    const auto extent = option::ParseDecimal<int64_t>({part.data(), part.size()});
    if (!extent || *extent < rule.least || *extent > rule.most) return std::nullopt;
    shape.push_back(*extent);
  }
  const bool is_right = rule.least_extents <= shape.size() && shape.size() <= rule.most_extents;
  return is_right ? std::make_optional(std::move(shape)) : std::nullopt;
}

std::string TextOf(const ShapeRule& rule) {
  const std::string count = rule.least_extents == rule.most_extents
                                ? absl::StrCat(rule.least_extents)
                                : absl::StrCat(rule.least_extents, " to ", rule.most_extents);
  const std::string most = rule.most == ShapeRule().most ? "on" : absl::StrCat("to ", rule.most);
  return absl::StrCat(count, " whole numbers from ", rule.least, " ", most,
                      " with commas or the letter x between them");
}

template <typename Number>
CommandOption AddNumber(CLI::App& app, const std::string& name, Number& value,
                        const std::string& help, Number least, Number most) {
  return CommandOption(app.add_option(name, value, help)
                           ->transform(option::NumberFrom(least, most).description("")));
}

}  // namespace

std::string TypeHelp() {
  std::vector<std::string> names = TypeNames();
  const std::string last = names.back();
  names.pop_back();
  return absl::StrCat("TYPE is ", absl::StrJoin(names, ", "), " or ", last, ".");
}

CommandOption& CommandOption::Group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

CommandOption& CommandOption::TypeName(const std::string& name) {
  option_->type_name(name);
  return *this;
}

CommandOption& CommandOption::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::Require() {
  option_->required();
  return *this;
}

CommandOption& CommandOption::Need(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption& CommandOption::Exclude(const CommandOption& other) {
  option_->excludes(other.option_);
  return *this;
}

CommandOption& CommandOption::Check(const std::function<std::string(const std::string&)>& refuse) {
  option_->check(refuse);
  return *this;
}

CommandOption AddOption(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, int& value, const std::string& help,
                        int least, int most) {
  return AddNumber(app, name, value, help, least, most);
}

CommandOption AddOption(CLI::App& app, const std::string& name, int64_t& value,
                        const std::string& help, int64_t least, int64_t most) {
  return AddNumber(app, name, value, help, least, most);
}

CommandOption AddOption(CLI::App& app, const std::string& name, uint64_t& value,
                        const std::string& help) {
  return AddNumber(app, name, value, help, uint64_t{0}, std::numeric_limits<uint64_t>::max());
}

CommandOption AddOption(CLI::App& app, const std::string& name, double& value,
                        const std::string& help, double least, double most) {
  return AddNumber(app, name, value, help, least, most);
}

CommandOption AddFlag(CLI::App& app, const std::string& name, bool& value,
                      const std::string& help) {
  return CommandOption(app.add_flag(name, value, help));
}

CommandOption AddShape(CLI::App& app, const std::string& name, std::vector<int64_t>& value,
                       const std::string& help, const ShapeRule& rule) {
  const auto refuse = [rule](const std::string& text) {
    return ShapeOf(text, rule) ? "" : GotWant(text, TextOf(rule));
  };
  const auto set = [&value, rule](const std::string& text) {
    value = ShapeOf(text, rule).value_or(std::vector<int64_t>());
  };
  return CommandOption(app.add_option_function<std::string>(name, set, help)).Check(refuse);
}

CommandOption AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                            const std::string& help) {
  // Sixteen names would drown the help of every such option; the commands' footers have
  // TypeHelp().
  return CommandOption(
      app.add_option(name, value, help)->check(OneOf(TypeNames()))->type_name("TYPE"));
}

CommandOption AddChoice(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help, const std::vector<std::string>& choices) {
  return CommandOption(app.add_option(name, value, help)
                           ->check(OneOf(choices))
                           ->type_name(absl::StrJoin(choices, "|")));
}

void SetFooter(CLI::App& app, const std::string& text) { app.footer(text); }

v1::Order OrderOf(const std::string& name) {
  return name == "column" ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
}

}  // namespace gemmd
