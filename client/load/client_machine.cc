// SPDX-License-Identifier: Apache-2.0
#include "client/load/client_machine.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gemmd {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

int64_t SteadyNowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecondNs + now.tv_nsec;
}

bool SleepUntil(int64_t time_ns, const StopRequests& stop) {
  while (stop.load(std::memory_order_relaxed) == 0) {
    const int64_t now = SteadyNowNs();
    if (now >= time_ns) return true;
    const int64_t until = std::min(time_ns, now + kStopPatienceNs);
    const timespec wake = {until / kSecondNs, until % kSecondNs};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
  }
  return false;
}

void WakeThisThreadOnTime() { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The path of this process's cgroup v2, "/" in a container; empty if there is none. Its line begins
// with "0::" and follows those of cgroup v1.
std::string OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

// The smallest quota of that group and its ancestors.
double CoresOfGroups() {
  double cores = std::numeric_limits<double>::infinity();
  std::string group = OwnGroup();
  if (group.empty()) return cores;
  for (;; group.resize(group.rfind('/'))) {
    if (group == "/") group.clear();
    cores = std::min(cores, CoresOfQuota(FirstLine("/sys/fs/cgroup" + group + "/cpu.max")));
    if (group.find('/') == group.npos) return cores;
  }
}

}  // namespace

int64_t ProcessCpuNs() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + int64_t{time.tv_usec} * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

double CoresOfQuota(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  double quota_us = 0;
  double period_us = 0;
  const bool is_quota = (text >> quota_us >> period_us) && quota_us > 0 && period_us > 0;
  return is_quota ? quota_us / period_us : std::numeric_limits<double>::infinity();
}

double UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const double by_affinity =
      sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return std::min(by_affinity, CoresOfGroups());
}

namespace {

// "[::1]:8470", "host:8470" or an address without a port.
absl::string_view HostOf(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "[")) return address.substr(0, address.find(']'));
  const size_t colon = address.find(':');
  // Several colons without brackets are those of an IPv6 address.
  if (colon == address.npos || address.find(':', colon + 1) != address.npos) return address;
  return address.substr(0, colon);
}

// True for "127.0.0.1" and other IPv4 loopback addresses, but not for "127.example.org".
bool IsLoopback4(absl::string_view host) {
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == host.npos;
}

}  // namespace

bool IsThisMachine(absl::string_view address, absl::string_view host_name) {
  if (!absl::ConsumePrefix(&address, "tls:")) absl::ConsumePrefix(&address, "mtls:");
  for (absl::string_view scheme : {"unix:", "unix-abstract:"}) {
    if (absl::StartsWith(address, scheme)) return true;
  }
  for (absl::string_view scheme : {"dns:", "ipv4:", "ipv6:", "passthrough:"}) {
    if (!absl::ConsumePrefix(&address, scheme)) continue;
    // "//", the name server, "/".
    if (absl::ConsumePrefix(&address, "//")) {
      const size_t slash = address.find('/');
      address.remove_prefix(slash == address.npos ? 0 : slash + 1);
    }
    break;
  }
  const absl::string_view host = HostOf(address.substr(0, address.find(',')));
  return IsLoopback4(host) || host == "::1" || absl::EqualsIgnoreCase(host, "localhost") ||
         (!host_name.empty() && absl::EqualsIgnoreCase(host, host_name));
}

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

namespace {

// The processor's name in the text of /proc/cpuinfo; empty if there is none.
std::string CpuOf(absl::string_view cpuinfo) {
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

}  // namespace

ClientMachine ThisMachine() {
  std::ostringstream cpuinfo;
  cpuinfo << std::ifstream("/proc/cpuinfo").rdbuf();
  return {.host = HostName(),
          .cpu = CpuOf(cpuinfo.str()),
          .cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
          .usable_cores = UsableCores()};
}

}  // namespace gemmd
