// SPDX-License-Identifier: Apache-2.0
#include "kernels/output_check.h"

#include <vector>

#include "kernels/option/same_file.h"
#include "kernels/text.h"

namespace gemmd {

absl::Status CheckOutputs(std::span<const OptionFile> outputs, std::span<const OptionFile> inputs) {
  std::vector<OptionFile> others(inputs.begin(), inputs.end());
  for (const OptionFile& output : outputs) {
    if (output.path.empty()) continue;
    for (const OptionFile& other : others) {
      if (other.path.empty() || !option::IsSameFile(output.path, other.path)) continue;
      return absl::InvalidArgumentError(
          GotWant(output.option, output.path, Concat("another file than that of ", other.option)));
    }
    others.push_back(output);
  }
  return absl::OkStatus();
}

}  // namespace gemmd
