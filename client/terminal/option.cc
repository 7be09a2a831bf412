// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/option.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  const google::protobuf::EnumDescriptor& types = *v1::ElementType_descriptor();
  for (int i = 0; i < types.value_count(); ++i) {
    const auto type = static_cast<v1::ElementType>(types.value(i)->number());
    if (type != v1::ELEMENT_TYPE_UNSPECIFIED) names.emplace_back(ElementTypeName(type));
  }
  return names;
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

CommandOption& CommandOption::Separate(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

CommandOption& CommandOption::Expect(int least, int most) {
  option_->expected(least, most);
  return *this;
}

CommandOption& CommandOption::TakeOneArgument() {
  option_->allow_extra_args(false);
  return *this;
}

CommandOption& CommandOption::BeNonNegative() {
  option_->check(CLI::NonNegativeNumber.description(""));
  return *this;
}

CommandOption& CommandOption::BePositive() {
  option_->check(CLI::PositiveNumber.description(""));
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

CommandOption AddOption(CLI::App& app, const std::string& name, int& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, int64_t& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, uint64_t& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, double& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddOption(CLI::App& app, const std::string& name, std::vector<int64_t>& value,
                        const std::string& help) {
  return CommandOption(app.add_option(name, value, help));
}

CommandOption AddFlag(CLI::App& app, const std::string& name, bool& value,
                      const std::string& help) {
  return CommandOption(app.add_flag(name, value, help));
}

CommandOption AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                            const std::string& help) {
  // Sixteen names would drown the help of every such option; the commands' footers have
  // TypeHelp().
  return CommandOption(app.add_option(name, value, help)
                           ->check(CLI::IsMember(TypeNames()).description(""))
                           ->type_name("TYPE"));
}

CommandOption AddChoice(CLI::App& app, const std::string& name, std::string& value,
                        const std::string& help, const std::vector<std::string>& choices) {
  return CommandOption(app.add_option(name, value, help)
                           ->check(CLI::IsMember(choices).description(""))
                           ->type_name(absl::StrJoin(choices, "|")));
}

void SetFooter(CLI::App& app, const std::string& text) { app.footer(text); }

v1::Order OrderOf(const std::string& name) {
  return name == "column" ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
}

}  // namespace gemmd
