// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/type_option.h"

#include <vector>

namespace gemmd {
namespace {

const std::vector<std::string>& TypeNames() {
  static const std::vector<std::string> names = {"f64",  "f32",  "tf32", "f16",  "bf16", "e4m3",
                                                 "e5m2", "e3m2", "e2m3", "e2m1", "s8",   "u8",
                                                 "s4",   "u4",   "b1",   "s32"};
  return names;
}

}  // namespace

CLI::Option* AddTypeOption(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help) {
  // Sixteen names would drown the help of every such option; the commands' footers have them.
  return app.add_option(name, value, help)
      ->check(CLI::IsMember(TypeNames()).description(""))
      ->type_name("TYPE");
}

}  // namespace gemmd
