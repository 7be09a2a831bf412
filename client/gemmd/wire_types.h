// SPDX-License-Identifier: Apache-2.0
//
// Declares the wire names that the other headers use, without protobuf's headers, which would
// dominate their compile time:
//
//   auto w = gemmd::PackedView(gemmd::v1::kBf16, bytes, k, n);
//
// proto/gemmd/v1 defines their meaning. An enumeration's value {} is its default or unspecified
// value. Programs that use the messages, or the enumerations' own names, include gemmd/v1/gemm.pb.h
// and so on; the constants here equal those.
#pragma once

namespace gemmd::v1 {

class ExplainResponse;
class DescribeFragmentRequest;
class DescribeFragmentResponse;
class DropSessionResponse;
class GetIncidentProductResponse;
class GetServerInfoResponse;
class GetStatisticsResponse;
class ListDevicesResponse;
class ListIncidentsResponse;
class ListInstructionsResponse;
class ListKernelsResponse;
class ListSessionsResponse;
class ListTensorsResponse;
class MultiplyRequest;
class MultiplyResponse;
class TensorInfo;
class TensorPart;
class Verification;

enum ElementType : int;
inline constexpr ElementType kF64{1};
inline constexpr ElementType kF32{2};
inline constexpr ElementType kTf32{3};
inline constexpr ElementType kF16{4};
inline constexpr ElementType kBf16{5};
inline constexpr ElementType kE4m3{6};
inline constexpr ElementType kE5m2{7};
inline constexpr ElementType kE3m2{8};
inline constexpr ElementType kE2m3{9};
inline constexpr ElementType kE2m1{10};
inline constexpr ElementType kS8{11};
inline constexpr ElementType kU8{12};
inline constexpr ElementType kS4{13};
inline constexpr ElementType kU4{14};
inline constexpr ElementType kB1{15};
inline constexpr ElementType kS32{16};

enum Order : int;
inline constexpr Order kRowMajor{0};
inline constexpr Order kColumnMajor{1};

enum Sparsity : int;
inline constexpr Sparsity kDense{0};
inline constexpr Sparsity kSparse24{1};

enum FactorType : int;
inline constexpr FactorType kFactorF32{1};
inline constexpr FactorType kFactorUe8m0{2};
inline constexpr FactorType kFactorUe4m3{3};

enum BiasAxis : int;
inline constexpr BiasAxis kBiasRows{1};
inline constexpr BiasAxis kBiasColumns{2};

enum Activation : int;
inline constexpr Activation kNoActivation{0};
inline constexpr Activation kRelu{1};
inline constexpr Activation kGeluErf{2};
inline constexpr Activation kGeluTanh{3};
inline constexpr Activation kSilu{4};

enum BitOperation : int;
inline constexpr BitOperation kBitAnd{0};
inline constexpr BitOperation kBitXor{1};

enum VerifyMode : int;
inline constexpr VerifyMode kVerifyNone{1};
inline constexpr VerifyMode kVerifySampled{2};
inline constexpr VerifyMode kVerifyChecksum{3};
inline constexpr VerifyMode kVerifyDuplicate{4};

enum Priority : int;
inline constexpr Priority kNormalPriority{1};
inline constexpr Priority kLowPriority{2};

}  // namespace gemmd::v1
