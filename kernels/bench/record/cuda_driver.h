// SPDX-License-Identifier: Apache-2.0
//
// The small part of CUDA's driver API that a recording needs, loaded from the driver's library at
// run time: building needs neither nvcc nor CUDA's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gemmd {

struct GpuFacts {
  std::string name;      // "NVIDIA H200".
  int capability = 0;    // 90.
  std::string driver;    // "580.159.04"; empty where it is unknown.
  int cuda_version = 0;  // The version of the driver: 13000 is 13.0.
};

// A kernel of one warp or warpgroup per block on operands of 32-bit words.
struct GpuJob {
  const std::string& ptx;
  const char* entry;
  unsigned blocks;
  unsigned threads;
  std::vector<const std::vector<uint32_t>*> inputs;  // The first parameters; may be empty.
  std::vector<uint32_t>& result;                     // The last parameter; the kernel writes all of
                                                     // it.
};

// The first GPU.
class Gpu {
 public:
  Gpu();
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Empty, or the reason why there is no GPU.
  std::string Open();
  const GpuFacts& facts() const { return facts_; }

  // Assembles and runs a job. Empty, or the driver's error.
  std::string Run(const GpuJob& job);

 private:
  struct Library;

  std::string RunModule(void* module, const GpuJob& job);
  std::string Launch(void* function, const GpuJob& job, std::vector<uint64_t>& memory);
  std::string ErrorText(const char* what, int code) const;
  void Reset();

  std::unique_ptr<Library> library_;
  int device_ = 0;
  GpuFacts facts_;
};

}  // namespace gemmd
