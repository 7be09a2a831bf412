// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/cpu_libraries.h"

#include <cblas.h>

#include <dnnl.hpp>
#include <memory>

namespace gemmd::bench {
namespace {

template <typename T>
const T* As(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}

// A matmul primitive, made once and run many times.
DirectCall MatMul(const Shape& s, Order b_order, ElementType type) {
  using Descriptor = dnnl::memory::desc;
  const auto data_type =
      type == ElementType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const auto b_tag =
      b_order == Order::kRowMajor ? dnnl::memory::format_tag::ab : dnnl::memory::format_tag::ba;
  const Descriptor a({s.m, s.k}, data_type, dnnl::memory::format_tag::ab);
  const Descriptor b({s.k, s.n}, data_type, b_tag);
  const Descriptor d({s.m, s.n}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::ab);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
#if DNNL_VERSION_MAJOR < 3
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, d), engine);
#else
  const dnnl::matmul::primitive_desc description(engine, a, b, d);
#endif
  const dnnl::matmul matmul(description);
  const dnnl::stream stream(engine);
  const auto run = [=](const std::byte* a_data, const std::byte* b_data, std::byte* d_data) {
    matmul.execute(stream,
                   {{DNNL_ARG_SRC, dnnl::memory(a, engine, const_cast<std::byte*>(a_data))},
                    {DNNL_ARG_WEIGHTS, dnnl::memory(b, engine, const_cast<std::byte*>(b_data))},
                    {DNNL_ARG_DST, dnnl::memory(d, engine, d_data)}});
    dnnl::stream(stream).wait();
  };
  return {"dnnl::matmul", type, type, ElementType::kF32, run};
}

DirectCall Sgemm(const Shape& s, Order b_order) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    dnnl_sgemm('N', is_row_major ? 'N' : 'T', s.m, s.n, s.k, 1, As<float>(a), s.k, As<float>(b),
               is_row_major ? s.n : s.k, 0, reinterpret_cast<float*>(d), s.n);
  };
  return {"dnnl_sgemm", ElementType::kF32, ElementType::kF32, ElementType::kF32, run};
}

DirectCall IntegerGemm(const Shape& s, Order b_order, bool a_is_unsigned) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const char flag = is_row_major ? 'N' : 'T';
  const int64_t ldb = is_row_major ? s.n : s.k;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    const int32_t zero = 0;
    auto* sums = reinterpret_cast<int32_t*>(d);
    if (a_is_unsigned) {
      dnnl_gemm_u8s8s32('N', flag, 'F', s.m, s.n, s.k, 1, As<uint8_t>(a), s.k, 0, As<int8_t>(b),
                        ldb, 0, 0, sums, s.n, &zero);
    } else {
      dnnl_gemm_s8s8s32('N', flag, 'F', s.m, s.n, s.k, 1, As<int8_t>(a), s.k, 0, As<int8_t>(b), ldb,
                        0, 0, sums, s.n, &zero);
    }
  };
  return {a_is_unsigned ? "dnnl_gemm_u8s8s32" : "dnnl_gemm_s8s8s32",
          a_is_unsigned ? ElementType::kU8 : ElementType::kS8, ElementType::kS8, ElementType::kS32,
          run};
}

DirectCall CblasF32(const Shape& s, Order b_order) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, is_row_major ? CblasNoTrans : CblasTrans,
                static_cast<blasint>(s.m), static_cast<blasint>(s.n), static_cast<blasint>(s.k), 1,
                As<float>(a), static_cast<blasint>(s.k), As<float>(b),
                static_cast<blasint>(is_row_major ? s.n : s.k), 0, reinterpret_cast<float*>(d),
                static_cast<blasint>(s.n));
  };
  return {"cblas_sgemm", ElementType::kF32, ElementType::kF32, ElementType::kF32, run};
}

DirectCall CblasF64(const Shape& s, Order b_order) {
  const bool is_row_major = b_order == Order::kRowMajor;
  const auto run = [=](const std::byte* a, const std::byte* b, std::byte* d) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, is_row_major ? CblasNoTrans : CblasTrans,
                static_cast<blasint>(s.m), static_cast<blasint>(s.n), static_cast<blasint>(s.k), 1,
                As<double>(a), static_cast<blasint>(s.k), As<double>(b),
                static_cast<blasint>(is_row_major ? s.n : s.k), 0, reinterpret_cast<double*>(d),
                static_cast<blasint>(s.n));
  };
  return {"cblas_dgemm", ElementType::kF64, ElementType::kF64, ElementType::kF64, run};
}

}  // namespace

std::vector<DirectCall> DirectCalls(std::string_view engine, const Shape& shape, Order b_order,
                                    bool a_is_unsigned) {
  if (engine == "onednn.f32") {
    return {Sgemm(shape, b_order), MatMul(shape, b_order, ElementType::kF32)};
  }
  if (engine == "onednn.bf16") return {MatMul(shape, b_order, ElementType::kBf16)};
  if (engine == "onednn.s8") return {IntegerGemm(shape, b_order, a_is_unsigned)};
  if (engine == "openblas.f32") return {CblasF32(shape, b_order)};
  if (engine == "openblas.f64") return {CblasF64(shape, b_order)};
  return {};
}

}  // namespace gemmd::bench
