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

CLI::Option* AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help) {
  // Sixteen names would drown the help of every such option; the commands' footers have
  // TypeHelp().
  return app.add_option(name, value, help)
      ->check(CLI::IsMember(TypeNames()).description(""))
      ->type_name("TYPE");
}

CLI::Option* AddChoice(CLI::App& app, const std::string& name, std::string& value,
                       const std::string& help, const std::vector<std::string>& choices) {
  return app.add_option(name, value, help)
      ->check(CLI::IsMember(choices).description(""))
      ->type_name(absl::StrJoin(choices, "|"));
}

v1::Order OrderOf(const std::string& name) {
  return name == "column" ? v1::ORDER_COLUMN_MAJOR : v1::ORDER_ROW_MAJOR;
}

}  // namespace gemmd
