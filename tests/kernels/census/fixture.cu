// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the test of the census: row 0 is one HMMA, row 1 has no tensor core; and one that
// keeps an array in local memory.
namespace gemmd {

namespace row_type {
template <int kOf>
struct Row {
  static constexpr int kNumber = kOf;
};
}  // namespace row_type

template <typename Row>
__global__ void MmaKernel(float* values) {
  float d[4] = {};
  if constexpr (Row::kNumber == 0) {
    const auto* words = reinterpret_cast<const unsigned*>(values);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(words[4]), "r"(words[5]));
  }
  values[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
template __global__ void MmaKernel<row_type::Row<0>>(float*);
template __global__ void MmaKernel<row_type::Row<1>>(float*);

}  // namespace gemmd

#ifdef GEMMD_SPILLS
__global__ void Indexes(float* values, int count) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = values[i];
  for (int i = 0; i < count; ++i) kept[static_cast<int>(values[i]) & 63] += values[i];
  for (int i = 0; i < 64; ++i) values[i] = kept[i];
}
#endif
