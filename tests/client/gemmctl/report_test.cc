// SPDX-License-Identifier: Apache-2.0
//
// What gemmctl prints: percentiles, numbers, tables, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "client/gemmctl/command.h"
#include "client/gemmctl/explain.h"
#include "client/gemmctl/product_report.h"
#include "client/gemmctl/server_commands.h"
#include "client/terminal/text.h"
#include "gemmd/v1/gemm.pb.h"
#include "gemmd/v1/registry.pb.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PercentileTest, IsAMeasuredValueByNearestRank) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0), 7);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({2, 1}, 0.5), 1);
  EXPECT_EQ(Percentile({3, 1, 2}, 0.5), 2);
  // The nearest rank is never below.
  EXPECT_EQ(Percentile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.11), 2);
  EXPECT_EQ(Percentile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.91), 10);
  std::vector<int64_t> hundred;
  for (int64_t i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(Percentile(hundred, 0), 1);
  EXPECT_EQ(Percentile(hundred, 0.5), 50);
  EXPECT_EQ(Percentile(hundred, 0.99), 99);
  EXPECT_EQ(Percentile(hundred, 1), 100);
  const Spread spread = SpreadOf({30, 10, 20});
  EXPECT_EQ(spread.min, 10);
  EXPECT_EQ(spread.p50, 20);
  EXPECT_EQ(spread.p99, 30);
}

TEST(FormatTest, ChoosesUnits) {
  EXPECT_EQ(FormatNanoseconds(0), "0 ns");
  EXPECT_EQ(FormatNanoseconds(999), "999 ns");
  EXPECT_EQ(FormatNanoseconds(1000), "1.00 us");
  EXPECT_EQ(FormatNanoseconds(12'345), "12.3 us");
  EXPECT_EQ(FormatNanoseconds(123'456'789), "123 ms");
  EXPECT_EQ(FormatNanoseconds(90'000'000'000), "90.0 s");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(64 << 20), "64.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{5} << 40), "5.00 TiB");
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(-123456), "-123,456");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatRate(1.234e12), "1.23 TFLOP/s");
  EXPECT_EQ(FormatOperationRate(2'000'000, 1000), "2.00 TFLOP/s");
  EXPECT_EQ(FormatOperationRate(2'000'000, 0), "");
}

TEST(TextTableTest, AlignsColumns) {
  TextTable table({{"name"}, {"value", TextTable::Align::kRight}, {"why"}});
  table.AddRow({"a", "1", "short"});
  table.AddRow({"longer", "12,345", "a|b"});
  table.AddRow({"only"});
  EXPECT_EQ(table.Print(),
            "name     value  why\n"
            "a            1  short\n"
            "longer  12,345  a|b\n"
            "only\n");
}

v1::ListKernelsResponse TwoKernels() {
  v1::ListKernelsResponse kernels;
  v1::Kernel& first = *kernels.add_kernels();
  first.set_name("cpu_onednn_f16");
  first.set_provider("oneDNN");
  first.set_a_type(v1::ELEMENT_TYPE_F16);
  first.set_b_type(v1::ELEMENT_TYPE_F16);
  first.set_compute_type_a(v1::ELEMENT_TYPE_F32);
  first.set_compute_type_b(v1::ELEMENT_TYPE_F32);
  first.set_accumulation_type(v1::ELEMENT_TYPE_F32);
  first.set_description("Widens to f32.");
  first.add_availability()->set_device("cpu");
  first.mutable_availability(0)->set_available(true);
  v1::Kernel& second = *kernels.add_kernels();
  second.set_name("cpu_onednn_u8_s8");
  second.set_provider("oneDNN");
  second.set_a_type(v1::ELEMENT_TYPE_U8);
  second.set_b_type(v1::ELEMENT_TYPE_S8);
  second.set_compute_type_a(v1::ELEMENT_TYPE_U8);
  second.set_compute_type_b(v1::ELEMENT_TYPE_S8);
  second.set_accumulation_type(v1::ELEMENT_TYPE_S32);
  second.set_description("Exact.");
  second.add_availability()->set_reason("no VNNI");
  return kernels;
}

TEST(KernelTableTest, JsonTellsHowKernelsCompute) {
  const auto kernels = MessageJson(TwoKernels())["kernels"];
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]["name"], "cpu_onednn_f16");
  EXPECT_EQ(kernels[0]["description"], "Widens to f32.");
  EXPECT_EQ(kernels[1]["a_type"], "u8");
  EXPECT_EQ(kernels[1]["b_type"], "s8");
  EXPECT_EQ(kernels[1]["compute_type_a"], "u8");
  EXPECT_EQ(kernels[1]["compute_type_b"], "s8");
  EXPECT_EQ(kernels[1]["accumulation_type"], "s32");
  EXPECT_EQ(kernels[1]["provider"], "oneDNN");
}

TEST(KernelTableTest, SaysWhereKernelsRun) {
  EXPECT_EQ(KernelTable(TwoKernels(), false),
            "kernel            A    B    accumulation  computed in  provider  runs on\n"
            "cpu_onednn_f16    f16  f16  f32           f32          oneDNN    cpu\n"
            "cpu_onednn_u8_s8  u8   s8   s32           u8, s8       oneDNN    -\n");
}

CallTiming TimingOf(int64_t compute_ns, int64_t total_ns, int64_t round_trip_ns) {
  CallTiming call;
  call.server.set_receive_ns(5);
  call.server.set_compute_ns(compute_ns);
  call.server.set_total_ns(total_ns);
  call.round_trip_ns = round_trip_ns;
  return call;
}

TEST(TimingReportTest, ShowsEveryStageOfOneCall) {
  const std::string table = TimingTable({TimingOf(1000, 2500, 4000)}, 2'000'000);
  for (const char* stage : {"receive", "queue", "copy_in", "compute", "copy_out", "send_prepare",
                            "total", "overhead", "round_trip"}) {
    EXPECT_THAT(table, HasSubstr(stage));
  }
  EXPECT_THAT(table, HasSubstr("compute       1.00 us  2.00 TFLOP/s\n"));
  EXPECT_THAT(table, HasSubstr("overhead      1.50 us\n"));
  EXPECT_THAT(table, Not(HasSubstr("p99")));
}

TEST(TimingReportTest, SpreadsRepeatedCalls) {
  const std::vector<CallTiming> calls = {TimingOf(100, 300, 500), TimingOf(200, 500, 900),
                                         TimingOf(300, 900, 950)};
  const std::string table = TimingTable(calls, 1000);
  EXPECT_THAT(table, HasSubstr("min     p50     p99"));
  EXPECT_THAT(table, HasSubstr("overhead      200 ns  300 ns  600 ns\n"));
  const auto json = TimingJson(calls);
  EXPECT_EQ(json["overhead"].dump(), R"({"min_ns":200,"p50_ns":300,"p99_ns":600})");
  EXPECT_EQ(json["round_trip"]["p99_ns"], 950);
}

TEST(MessageJsonTest, IsProtobufsMappingWithNumbersAndWithoutBytes) {
  v1::MultiplyResponse response;
  response.set_request_id("a \"quoted\" id");
  response.set_operations(int64_t{1} << 53);
  response.mutable_d()->set_type(v1::ELEMENT_TYPE_BF16);
  response.mutable_d()->set_data("secret");
  response.mutable_verification()->set_outcome(v1::VERIFY_OUTCOME_NOT_VERIFIED);
  const auto json = nlohmann::json::parse(JsonLine(MessageJson(response)));
  EXPECT_EQ(json["request_id"], "a \"quoted\" id");
  EXPECT_EQ(json["operations"], int64_t{1} << 53);
  EXPECT_TRUE(json["operations"].is_number_integer());
  EXPECT_EQ(json["d"]["type"], "bf16");
  EXPECT_EQ(json["d"]["order"], "row");  // Defaults are included.
  EXPECT_EQ(json["verification"]["outcome"], "not_verified");
  EXPECT_EQ(json["bytes_read"], 0);
  EXPECT_FALSE(json["d"].contains("data"));
  EXPECT_FALSE(json.contains("timing"));  // An absent message stays absent.
  v1::TensorSpec spec;
  spec.set_sparsity(v1::SPARSITY_2_4);
  EXPECT_EQ(MessageJson(spec)["sparsity"], "2:4");
}

TEST(MessageJsonTest, CoversListsFloatsAndBooleans) {
  v1::ListDevicesResponse devices;
  v1::Device& device = *devices.add_devices();
  device.set_ready(true);
  device.set_threads(2);
  device.add_rates()->set_operations_per_second(std::numeric_limits<double>::infinity());
  v1::Operand operand;
  operand.mutable_scale()->add_values(0.5F);
  operand.mutable_scale()->add_values(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(MessageJson(devices)["devices"][0]["ready"], true);
  EXPECT_EQ(MessageJson(devices)["devices"][0]["threads"], 2);
  EXPECT_EQ(MessageJson(devices)["devices"][0]["rates"][0]["operations_per_second"], "Infinity");
  EXPECT_EQ(MessageJson(operand)["scale"]["values"].dump(), R"([0.5,"NaN"])");
  EXPECT_EQ(MessageJson(v1::ListDevicesResponse()).dump(), R"({"devices":[]})");
}

TEST(MessageJsonTest, PrintsOneLineWhateverTheText) {
  const std::string line = JsonLine({{"text", "a\nb\xff"}});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_TRUE(nlohmann::json::accept(line));
}

TEST(ServerTablesTest, ShowWhatTheServerSays) {
  v1::MultiplyRequest request;
  request.set_m(4095);
  request.set_n(4097);
  request.set_k(4093);
  request.mutable_a()->set_type(v1::ELEMENT_TYPE_BF16);
  request.mutable_b()->set_type(v1::ELEMENT_TYPE_BF16);
  v1::ExplainResponse explanation;
  explanation.set_device("cpu");
  explanation.set_operations(2'000'000);
  v1::Candidate& candidate = *explanation.add_candidates();
  candidate.set_kernel("cpu_onednn_bf16");
  candidate.set_predicted_ns(1000);
  candidate.set_reason("fastest");
  explanation.add_refusals()->set_kernel("cpu_openblas_f64");
  explanation.mutable_refusals(0)->set_reason("a.type: got bf16, want f64");
  const std::string text = ExplanationTable(request, explanation, true);
  EXPECT_THAT(text, HasSubstr("product  4095 x 4097 x 4093, bf16 x bf16"));
  EXPECT_THAT(text, HasSubstr("cpu_onednn_bf16    1.00 us  2.00 TFLOP/s  fastest\n"));
  EXPECT_THAT(text, HasSubstr("cpu_openblas_f64  a.type: got bf16, want f64\n"));
  EXPECT_THAT(text, Not(HasSubstr("bits ")));
  explanation.set_bits_may_vary(true);
  EXPECT_THAT(ExplanationTable(request, explanation, true), HasSubstr("bits     may depend on"));
  EXPECT_THAT(ExplanationTable(request, {}, true), HasSubstr("No kernel can run it."));

  v1::GetServerInfoResponse info;
  info.set_version("0.1.0");
  info.set_draining(true);
  info.add_features("multiply-stream");
  EXPECT_THAT(ServerInfoText(info), HasSubstr("draining"));
  EXPECT_THAT(ServerInfoText(info), HasSubstr("multiply-stream"));
}

}  // namespace
}  // namespace gemmd
