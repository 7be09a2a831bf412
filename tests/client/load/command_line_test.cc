// SPDX-License-Identifier: Apache-2.0
//
// gemmload in this process against servers in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "client/load/load_command_line.h"
#include "client/load/load_session.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/load/delayed_server.h"
#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct LoadOutcome {
  ExitCode code;
  std::string out;
  std::string err;
};

LoadOutcome RunLoadLine(const std::vector<std::string>& arguments, const std::string& address,
                        const StopRequests& stop = {}) {
  char* texts[2] = {};
  size_t sizes[2] = {};
  std::FILE* const out = open_memstream(&texts[0], &sizes[0]);
  std::FILE* const err = open_memstream(&texts[1], &sizes[1]);
  LoadOutcome outcome;
  outcome.code = RunGemmload(arguments, address, {stdin, out, err}, false, stop);
  std::fclose(out);
  std::fclose(err);
  outcome.out.assign(texts[0], sizes[0]);
  outcome.err.assign(texts[1], sizes[1]);
  std::free(texts[0]);
  std::free(texts[1]);
  return outcome;
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(GemmloadTest, WritesEveryReport) {
  const FakeServer server(ComputingScript());
  const ScratchFolder folder;
  const auto path = [&](const char* name) { return folder.Path(name); };
  const LoadOutcome outcome = RunLoadLine(
      {"--shape", "8,8,8", "--rate", "200,400", "--count", "50", "--warmup", "100ms", "--json",
       path("r.json"), "--csv", path("r.csv"), "--html", path("r.html"), "--verify", "1"},
      server.address());
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("== 200/s"), HasSubstr("== 400/s"),
                                 HasSubstr("from intended send"), HasSubstr(" 0 wrong")));
  EXPECT_THAT(outcome.err, HasSubstr("in flight"));
  const auto json = nlohmann::json::parse(TextOf(path("r.json")));
  EXPECT_EQ(json["steps"][1]["calls"], 50);
  EXPECT_EQ(json["steps"][1]["verification"]["wrong"], 0);
  EXPECT_THAT(TextOf(path("r.csv")), HasSubstr("\"200/s\",200,"));
  EXPECT_THAT(TextOf(path("r.html")), HasSubstr("</html>"));

  const LoadOutcome compared =
      RunLoadLine({"compare", path("r.json"), path("r.json")}, server.address());
  EXPECT_EQ(compared.code, ExitCode::kOk) << compared.err;
  EXPECT_THAT(compared.out, AllOf(HasSubstr("+0.0 %"), HasSubstr("200/s"), HasSubstr("400/s")));
}

TEST(GemmloadTest, ExitCodesTellFailureFromWrongAnswers) {
  FakeScript refusing;
  refusing.multiply = [](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                         v1::MultiplyResponse&) -> std::optional<grpc::Status> {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "kernel: got \"x\"");
  };
  const FakeServer refuser(refusing);
  const std::vector<std::string> few = {"--shape",  "8,8,8", "--count", "5",
                                        "--warmup", "0",     "--quiet"};
  const LoadOutcome refused = RunLoadLine(few, refuser.address());
  EXPECT_EQ(refused.code, ExitCode::kRefused);
  EXPECT_THAT(refused.out, HasSubstr("first NOT_FOUND: kernel: got \"x\""));
  EXPECT_EQ(refused.err, "");

  const DelayedServer empty({});  // Answers without a D.
  const LoadOutcome wrong = RunLoadLine(few, empty.address());
  EXPECT_EQ(wrong.code, ExitCode::kVerification);
  EXPECT_THAT(wrong.out, HasSubstr("wrong answers: 1 of "));

  EXPECT_EQ(RunLoadLine(few, "127.0.0.1:1").code, ExitCode::kUnreachable);
}

TEST(GemmloadTest, RefusesBadUsage) {
  const auto refused = [](std::vector<std::string> arguments, const char* message) {
    const LoadOutcome outcome = RunLoadLine(arguments, "127.0.0.1:1");
    EXPECT_EQ(outcome.code, ExitCode::kUsage) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  refused({"--rate", "10", "--concurrency", "2"}, "--concurrency");
  refused({"--profile", "huge"}, "--profile");
  refused({"--rate", "0"}, "--rate");
  refused({"--duration", "never"}, "--duration: got \"never\"");
  refused({"--interval", "0"}, "--interval: got \"0\"");
  refused({"--mix", "/nowhere.json"}, "/nowhere.json");
  refused({"--replay", "/nowhere"}, "/nowhere");
  refused({"--html", "/nowhere/r.html"}, "/nowhere/r.html: cannot be written");
  refused({"--slo", "p99=2ms", "--rate", "10,20"}, "--slo");
  refused({"compare", "/nowhere", "/nowhere"}, "/nowhere: cannot be read");
}

TEST(GemmloadTest, SearchesForTheRateThatHolds) {
  // One connection of a server that takes 50 ms a call: with one call in flight, at most 20 a
  // second.
  const DelayedServer server({.delay = absl::Milliseconds(50)});
  const LoadOutcome outcome =
      RunLoadLine({"--shape", "8,8,8", "--slo", "p90=200ms", "--rate", "4", "--most-in-flight", "1",
                   "--duration", "1500ms", "--warmup", "0", "--verify", "0", "--quiet"},
                  server.address());
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("rule      a rate holds when in each of 3 windows of 0.5 s"),
                    HasSubstr("does not hold: window"), HasSubstr("highest rate that holds: ")));
  const size_t at = outcome.out.find("highest rate that holds: ") + 25;
  EXPECT_LE(std::atof(outcome.out.c_str() + at), 26);  // What a short window forgives.
}

TEST(StepsOfTest, FollowsTheFlags) {
  LoadFlags flags;
  flags.concurrency = {1, 8};
  flags.count = 100;
  auto steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  ASSERT_EQ(steps->size(), 2);
  EXPECT_EQ((*steps)[1].name, "8 in flight");
  EXPECT_EQ(std::get<ClosedLoop>((*steps)[1].step.loop).concurrency, 8);
  EXPECT_GT((*steps)[1].step.duration_ns, 1'000'000'000'000);  // The count decides.

  flags = {};
  flags.rates = {100};
  flags.ramp_to = 300;
  flags.warmup = "2";
  flags.duration = "8s";
  flags.arrivals = "poisson";
  steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  EXPECT_EQ((*steps)[0].name, "100/s to 300/s");
  const ArrivalPlan& arrivals = std::get<OpenLoop>((*steps)[0].step.loop).arrivals;
  EXPECT_TRUE(arrivals.is_poisson);
  EXPECT_EQ(arrivals.rate.to, 300);
  EXPECT_EQ(arrivals.rate.ramp_ns, 10'000'000'000);
}

TEST(StepsOfTest, ReplaysAFile) {
  const ScratchFolder folder;
  LoadFlags flags;
  flags.replay_path = folder.Path("gaps");
  std::ofstream(flags.replay_path) << "1ms\n2ms\n";
  const auto steps = StepsOf(flags);
  ASSERT_THAT(steps, IsOk());
  EXPECT_THAT(std::get<OpenLoop>((*steps)[0].step.loop).arrivals.replay_gaps_ns,
              testing::ElementsAre(1'000'000, 2'000'000));
  std::ofstream(flags.replay_path) << "x\n";
  EXPECT_THAT(StepsOf(flags),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gaps: line 1: got \"x\"")));
}

TEST(MixOfTest, KernelAndDeviceHoldWhereAProductNamesNone) {
  const ScratchFolder folder;
  LoadFlags flags;
  flags.mix_path = folder.Path("mix.json");
  flags.kernel = "all";
  std::ofstream(flags.mix_path)
      << R"([{"m":1,"n":1,"k":1,"kernel":"own"},{"m":2,"n":1,"k":1,"device":"cpu"}])";
  const auto mix = MixOf(flags);
  ASSERT_THAT(mix, IsOk());
  EXPECT_EQ((*mix)[0].kernel, "own");
  EXPECT_EQ((*mix)[1].kernel, "all");
  EXPECT_EQ((*mix)[1].device, "cpu");
}

}  // namespace
}  // namespace gemmd
