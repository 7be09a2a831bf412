// SPDX-License-Identifier: Apache-2.0
//
// gemmload in this process against servers in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/load/load_command_line.h"
#include "client/load/report/report.h"
#include "gemmd/v1/gemm.pb.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_service.h"
#include "tests/client/load/delayed_server.h"
#include "tests/testing/patience.h"
#include "tests/testing/scratch_folder.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
  outcome.code = RunGemmload(arguments, address, {stdin, out, err, "gemmload"}, false, stop);
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
  refused({"--html", "/nowhere/r.html"}, "/nowhere/r.html: cannot be written: No such file");
  refused({"--slo", "p99=2ms", "--rate", "10,20"}, "--slo");
  refused({"--slo", "p99"}, "--slo: got \"p99\"");
  refused({"--type", "bf16"}, "--shape");
  refused({"--operands", "residnet"},
          "--operands: got residnet, want inline, resident, resident-all or the path of a .npy");
  refused({"--operands", "a.npy,b.npy,c.npy"}, "want at most one place and two files");
  refused({"--operands", "inline,resident"}, "want at most one place and two files");
  refused({"--operands", "w.npy", "--b", "w.npy"}, "beside --a or --b, want each operand once");
  refused({"--operands", "a.npy,w.npy", "--a", "a.npy"}, "beside --a or --b, want each operand");
  refused({"--operands", "w.npy", "--profile", "small"}, "--operands: got files and --profile");
  refused({"--operands", "/nowhere.npy", "--shape", "2,2,2"}, "/nowhere.npy: ");
  refused({"--a", "/nowhere.npy"}, "/nowhere.npy");
  refused({"--a", "x.npy", "--profile", "small"}, "--profile");
  refused({"--metrics-listen", "localhost"}, "--metrics-listen: got \"localhost\", want an IP");
  refused({"--metrics-listen", "127.0.0.1:65536"}, "--metrics-listen");
  refused({"--metrics-listen", "127.0.0.1:+1"}, "--metrics-listen: got \"127.0.0.1:+1\", want");
  refused({"--metrics-listen", "203.0.113.1:0"}, "want an address that is free");
  refused({"--batch", "2", "--profile", "small"}, "--shape");
  refused({"--sparse"}, "--shape");
  refused({"--fast-accumulation"}, "--shape");
  refused({"--b-order", "column"}, "--shape");
  refused({"--b-order", "diagonal", "--shape", "8,8,8"}, "--b-order");
  refused({"--output-type", "f32"}, "--shape");
  refused({"--arrivals", "poisson"}, "--arrivals: got a closed loop");
  refused({"--arrivals", "poisson", "--replay", "x"}, "--replay");
  refused({"--rate", "nan"}, "--rate: got nan, want a number");
  refused({"--rate", "1,nan"}, "--rate: got nan, want a number");
  refused({"--rate", "1", "--ramp-to", "nan"}, "--ramp-to: got nan, want a number");
  refused({"--verify", "nan"}, "--verify: got nan, want a number");
  refused({"--max-in-flight", "3"}, "--max-in-flight: got a closed loop");
  // Its earlier name, which --help does not show.
  refused({"--most-in-flight", "3"}, "--max-in-flight: got a closed loop");
  refused({"--most-in-flight=3"}, "--max-in-flight: got a closed loop");
  refused({"--most-in-flights=3"}, "option: got --most-in-flights");
  EXPECT_THAT(RunLoadLine({"--help"}, "").out,
              AllOf(HasSubstr("--max-in-flight"), Not(HasSubstr("--most-in-flight"))));
  refused({"--max-in-flight", "3", "--concurrency", "3"}, "--concurrency");
  refused({"--count", "0"}, "--count: got 0, want a whole number from 1 to 9007199254740992");
  for (const char* number : {"-1", "18446744073709551616", "0x10", "+1", "1.0", "one"}) {
    const std::string want = absl::StrCat(
        "--seed: got ", number, ", want a whole number from 0 to ", "18446744073709551615");
    refused({"--seed", number}, want.c_str());
  }
  refused({"--concurrency", "1,100001"},
          "--concurrency: got 100001, want a whole number from 1 to 100000");
  refused({"--rate", "1e8"}, "--rate: got 1e8, want a number from 0.001 to 1e+07");
  refused({"--rate", "10", "--ramp-to", "20", "--count", "5"}, "--ramp-to: got no --duration");
  refused({"compare", "/nowhere", "/nowhere"}, "/nowhere: cannot be read");
}

// A failure before the first call leaves earlier reports, and the mix, unchanged.
TEST(GemmloadTest, EarlierReportsOutliveAFailure) {
  const ScratchFolder folder;
  const std::string report = folder.Path("r.json");
  const std::string mix = folder.Path("mix.json");
  const std::string text = R"([{"m":1,"n":1,"k":1}])";
  std::ofstream(report) << "earlier";
  std::ofstream(mix) << text;
  EXPECT_EQ(RunLoadLine({"--json", report, "--html", folder.Path("new")}, "127.0.0.1:1").code,
            ExitCode::kUnreachable);
  EXPECT_EQ(TextOf(report), "earlier");
  EXPECT_FALSE(std::ifstream(folder.Path("new")).is_open());
  const LoadOutcome same = RunLoadLine({"--mix", mix, "--json", mix}, "127.0.0.1:1");
  EXPECT_EQ(same.code, ExitCode::kUsage);
  EXPECT_THAT(same.err, HasSubstr("want another file than that of --mix"));
  EXPECT_EQ(TextOf(mix), text);
  const LoadOutcome twice =
      RunLoadLine({"--json", folder.Path("a"), "--csv", folder.Path("./a")}, "127.0.0.1:1");
  EXPECT_EQ(twice.code, ExitCode::kUsage);
  EXPECT_THAT(twice.err, HasSubstr("want another file than that of --json"));
}

// "--address a,b" from the environment.
TEST(GemmloadTest, AnAddressMayBeAList) {
  const FakeServer one(ComputingScript());
  const FakeServer two(ComputingScript());
  const LoadOutcome outcome =
      RunLoadLine({"--shape", "8,8,8", "--count", "10", "--warmup", "0", "--quiet"},
                  one.address() + "," + two.address());
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_EQ(one.multiply_calls(), 5);
  EXPECT_EQ(two.multiply_calls(), 5);
}

TEST(GemmloadTest, CallsNeverSentFailTheRun) {
  const DelayedServer server({.delay = absl::Milliseconds(100)});
  const LoadOutcome outcome =
      RunLoadLine({"--shape", "8,8,8", "--rate", "1000", "--max-in-flight", "1", "--duration",
                   "300ms", "--warmup", "0", "--verify", "0", "--quiet"},
                  server.address());
  EXPECT_EQ(outcome.code, ExitCode::kRefused);
  EXPECT_THAT(outcome.out, HasSubstr("calls were never sent"));
}

TEST(GemmloadTest, AStopBeforeTheFirstCallSaysSo) {
  const DelayedServer server({});
  const StopRequests stop = 1;
  const LoadOutcome outcome = RunLoadLine({"--quiet"}, server.address(), stop);
  EXPECT_EQ(outcome.code, ExitCode::kRefused);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted before the first call"));
}

// Runs gemmload and requests a stop once this many calls have arrived.
LoadOutcome RunAndStop(const std::vector<std::string>& arguments, const DelayedServer& server,
                       int64_t calls) {
  StopRequests stop = 0;
  std::thread stopper([&] {
    EXPECT_TRUE(Eventually([&] { return server.calls() >= calls; }));
    stop = 1;
  });
  LoadOutcome outcome = RunLoadLine(arguments, server.address(), stop);
  stopper.join();
  return outcome;
}

TEST(GemmloadTest, AStopSaysHowManyStepsWereBegun) {
  const DelayedServer server({});
  const LoadOutcome outcome =
      RunAndStop({"--shape", "8,8,8", "--concurrency", "1,2,4", "--duration", "1h", "--warmup", "0",
                  "--verify", "0", "--quiet"},
                 server, 10);
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("interrupted: 1 of 3 steps were begun"));
}

// A search that begins at 50 calls a second, and whose first window takes a third of the duration.
std::vector<std::string> SearchFor(const std::string& duration) {
  return {"--shape", "8,8,8",      "--slo",  "p50=500ms", "--rate", "50",     "--warmup",
          "0",       "--duration", duration, "--verify",  "0",      "--quiet"};
}

// 30 calls are due in the first window, and about as many in each later one until the answer is
// found.
TEST(GemmloadTimed, AnInterruptedSearchSaysWhatHeld) {
  const DelayedServer server({});
  const LoadOutcome outcome = RunAndStop(SearchFor("1800ms"), server, 70);
  EXPECT_EQ(outcome.code, ExitCode::kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("search interrupted; at least "));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("highest rate that holds")));
}

TEST(GemmloadTest, AnInterruptedSearchSaysWhatItKnows) {
  const DelayedServer server({});
  const LoadOutcome early = RunAndStop(SearchFor("3h"), server, 10);
  EXPECT_EQ(early.code, ExitCode::kRefused);
  EXPECT_THAT(early.out, AllOf(HasSubstr("search interrupted before any rate held"),
                               HasSubstr("== 50.0/s"), HasSubstr("warning: interrupted")));
}

TEST(GemmloadTest, WrongAnswersFailASearch) {
  const DelayedServer empty({});  // Answers without a D.
  const LoadOutcome outcome = RunLoadLine({"--shape", "8,8,8", "--slo", "p50=1s", "--rate", "50",
                                           "--duration", "100ms", "--warmup", "0", "--quiet"},
                                          empty.address());
  EXPECT_EQ(outcome.code, ExitCode::kVerification);
  EXPECT_THAT(outcome.out, HasSubstr("verdict   no rate holds: wrong answers: "));
}

// On a busy machine, windows may contradict each other, which the search then reports.
TEST(GemmloadTimed, SearchesForTheRateThatHolds) {
  // One connection to a server that takes 50 ms per call: with one call in flight, at most 20 a
  // second.
  const DelayedServer server({.delay = absl::Milliseconds(50)});
  const ScratchFolder folder;
  const LoadOutcome outcome =
      RunLoadLine({"--shape", "8,8,8", "--slo", "p50=200ms", "--rate", "8", "--max-in-flight", "1",
                   "--duration", "1500ms", "--warmup", "0", "--verify", "0", "--quiet", "--json",
                   folder.Path("r.json")},
                  server.address());
  const auto slo = nlohmann::json::parse(TextOf(folder.Path("r.json")))["slo"];
  EXPECT_EQ(outcome.code, slo["conclusive"].get<bool>() ? ExitCode::kOk : ExitCode::kInconclusive)
      << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rule      a window holds when it has at least 2 calls"),
                                 HasSubstr("verdict   " + slo["verdict"].get<std::string>())));
  EXPECT_THAT(slo["windows"][0]["verdict"], "holds");
  // At 22/s the eleventh call is due 45 ms before a window ends and is not sent within it.
  EXPECT_LE(slo["rate_per_s"], 22);
  EXPECT_GE(slo["rate_per_s"], 8);
  if (!slo["conclusive"].get<bool>()) return;
  EXPECT_THAT(outcome.out, HasSubstr("highest rate that holds: "));
  EXPECT_LE(slo["interval_per_s"][0], slo["rate_per_s"]);
  EXPECT_GE(slo["interval_per_s"][1], slo["rate_per_s"]);
}

TEST(GemmloadTest, EachEndOfASearchHasItsExitCode) {
  LoadReport report;
  SloAnswer& answer = report.slo.emplace().answer;
  using End = SloAnswer::End;
  for (const auto& [end, code] :
       {std::pair(End::kFound, ExitCode::kOk), std::pair(End::kEveryRate, ExitCode::kOk),
        std::pair(End::kInterrupted, ExitCode::kOk),
        std::pair(End::kClientLimit, ExitCode::kInconclusive),
        std::pair(End::kTooNoisy, ExitCode::kInconclusive)}) {
    answer = {.end = end, .rate = 100};
    EXPECT_EQ(ExitCodeOf(report), code);
  }
  for (const End end : {End::kNoRate, End::kHopeless, End::kInterrupted}) {
    answer = {.end = end};
    EXPECT_EQ(ExitCodeOf(report), ExitCode::kRefused);
  }
  report.steps.emplace_back().verified.wrong = 1;
  EXPECT_EQ(ExitCodeOf(report), ExitCode::kVerification);
}

}  // namespace
}  // namespace gemmd
