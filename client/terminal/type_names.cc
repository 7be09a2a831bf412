// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/type_names.h"

#include "gemmd/element_type.h"

namespace gemmd {

std::vector<std::string> TypeNames() {
  std::vector<std::string> names;
  const google::protobuf::EnumDescriptor& types = *v1::ElementType_descriptor();
  for (int i = 0; i < types.value_count(); ++i) {
    const auto type = static_cast<v1::ElementType>(types.value(i)->number());
    if (type != v1::ELEMENT_TYPE_UNSPECIFIED) names.emplace_back(ElementTypeName(type));
  }
  return names;
}

std::string TypeText(v1::ElementType type) { return std::string(ElementTypeName(type)); }

}  // namespace gemmd
