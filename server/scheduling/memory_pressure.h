// SPDX-License-Identifier: Apache-2.0
//
// How near the process is to the limit of its memory, by what is resident, whatever the account of
// admission says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace gemmd {

enum class Pressure : uint8_t {
  kNone,
  kHigh,      // From 85 % of the limit: no new large products and tensors.
  kSevere,    // From 92 %: no new products, bytes of tensors or sessions; questions of operators
              // alone.
  kCritical,  // From 95 %: whoever does not read an answer loses the call.
};
inline constexpr size_t kPressures = 4;
std::string_view NameOf(Pressure pressure);  // "high"

class MemoryPressure {
 public:
  using ReadResidentBytes = std::function<std::optional<int64_t>()>;

  // `give_back` is called where much of what is resident may be free memory.
  MemoryPressure(int64_t limit_bytes, ReadResidentBytes read, std::function<void()> give_back);

  // Reads what is resident and tells the pressure; without a reading, the last one. `held_bytes`
  // are those that admission knows of. Threads: one at a time.
  Pressure Measure(int64_t held_bytes);

  // What was read last. Threads: as Measure.
  int64_t used_bytes() const { return used_bytes_; }

 private:
  int64_t PercentOf(int64_t bytes) const;

  const int64_t limit_bytes_;
  const ReadResidentBytes read_;
  const std::function<void()> give_back_;
  int64_t floor_bytes_ = 0;   // What was resident when memory was given back, or later and less.
  int64_t lowest_bytes_ = 0;  // What was resident at the least.
  int measures_ = 0;          // Since memory was given back.
  int64_t used_bytes_ = 0;
  Pressure last_ = Pressure::kNone;
};

}  // namespace gemmd
