// SPDX-License-Identifier: Apache-2.0
//
// NVML without a GPU: a library with the same name and functions and with known numbers. It has the
// GPUs 0000:0a:00.0, which reports everything, 0000:0b:00.0, which reports little, and
// 0000:0f:00.0, which a test may make hang.
#include <atomic>
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;

int talkative_gpu = 0;
int silent_gpu = 1;
int hanging_gpu = 2;
std::atomic<bool> is_hanging = false;
std::atomic<int> initialised = 0;

template <typename T>
int Tell(void* device, T value, T* to) {
  if (device == &hanging_gpu) is_hanging.wait(true);
  if (device != &talkative_gpu) return kNotSupported;
  *to = value;
  return kSuccess;
}

struct MemoryInfo {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};

}  // namespace

extern "C" {

// For tests: whether readings of the hanging GPU hang.
void fakeNvmlHang(bool should_hang) {
  is_hanging = should_hang;
  is_hanging.notify_all();
}

// For tests: how many callers have NVML initialised.
int fakeNvmlInitialised() { return initialised; }

int nvmlInit_v2() {
  ++initialised;
  return kSuccess;
}

int nvmlShutdown() {
  --initialised;
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  if (initialised == 0) return kInvalidArgument;
  if (std::strcmp(bus, "0000:0a:00.0") == 0)
    *device = &talkative_gpu;
  else if (std::strcmp(bus, "0000:0b:00.0") == 0)
    *device = &silent_gpu;
  else if (std::strcmp(bus, "0000:0f:00.0") == 0)
    *device = &hanging_gpu;
  else
    return kNotFound;
  return kSuccess;
}

int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  std::strncpy(version, "580.1.2", bytes);
  return kSuccess;
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned bytes) {
  std::strncpy(uuid, device == &talkative_gpu ? "GPU-0a" : "GPU-0b", bytes);
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  return Tell(device, {.gpu = 75, .memory = 30}, rates);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return Tell(device, 512'250U, milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  return Tell(device, 700'000U, milliwatts);
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  // Grows with each reading.
  static std::atomic<unsigned long long> joules = 123'455;
  return Tell(device, ++joules * 1000 + 789, millijoules);
}
int nvmlDeviceGetMemoryInfo_v2(void* device, MemoryInfo* memory) {
  // The second version, of 40 bytes.
  if (memory->version != 0x2000028) return kInvalidArgument;
  return Tell(device,
              {.version = memory->version,
               .total = 150'000'000'000,
               .reserved = 1'000'000'000,
               .free = 49'000'000'000,
               .used = 100'000'000'000},
              memory);
}

// SM clock 1, memory clock 2.
int nvmlDeviceGetClockInfo(void* device, int clock, unsigned* megahertz) {
  if (clock != 1 && clock != 2) return kInvalidArgument;
  return Tell(device, clock == 1 ? 1755U : 3201U, megahertz);
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  return sensor == 0 ? Tell(device, 61U, celsius) : kInvalidArgument;
}

// Corrected 0, uncorrected 1; since the driver's start 0, ever 1.
int nvmlDeviceGetTotalEccErrors(void* device, int severity, int since, unsigned long long* count) {
  if (since != 0) return kInvalidArgument;
  return Tell(device, severity == 0 ? 7ULL : 2ULL, count);
}

}  // extern "C"
