// SPDX-License-Identifier: Apache-2.0
//
// grpc.health.v1: Check and Watch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "gemmd/client.h"
#include "tests/client/fake_service.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;

TEST(HealthTest, AsksForTheHealth) {
  FakeServer server({});
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  EXPECT_EQ(*client->CheckHealth(), ServingStatus::kServing);
  EXPECT_EQ(*client->CheckHealth("gemmd.v1.Gemm"), ServingStatus::kServing);
  EXPECT_THAT(client->CheckHealth("nonsense"), StatusIs(absl::StatusCode::kNotFound));
  server.SetServing(false);
  EXPECT_EQ(*client->CheckHealth(), ServingStatus::kNotServing);
}

TEST(HealthTest, WatchesTheHealth) {
  FakeServer server({});
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  std::vector<ServingStatus> seen;
  const absl::Status status = client->WatchHealth("gemmd.v1.Gemm", [&](ServingStatus serving) {
    seen.push_back(serving);
    server.SetServing(seen.size() % 2 == 0);
    return seen.size() < 3;
  });
  EXPECT_THAT(status, IsOk());
  EXPECT_THAT(seen, ElementsAre(ServingStatus::kServing, ServingStatus::kNotServing,
                                ServingStatus::kServing));
}

TEST(HealthTest, WatchesUntilTheDeadline) {
  const FakeServer server({});
  auto client = Client::Create(server.address());
  ASSERT_THAT(client, IsOk());
  std::vector<ServingStatus> seen;
  // A busy machine may not see the change by the first deadline.
  for (absl::Duration limit = absl::Milliseconds(200); seen.empty() && limit < kPatience;
       limit *= 2) {
    const absl::Status status = client->WatchHealth("nonsense",
                                                    [&](ServingStatus serving) {
                                                      seen.push_back(serving);
                                                      return true;
                                                    },
                                                    {.timeout = limit});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_THAT(seen, ElementsAre(ServingStatus::kServiceUnknown));
}

}  // namespace
}  // namespace gemmd
